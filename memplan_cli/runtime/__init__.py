"""The only door to ONNX Runtime: every session runs in a process of its own."""
