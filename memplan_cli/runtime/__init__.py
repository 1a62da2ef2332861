"""The only door to ONNX Runtime: every session lives in a process of its own."""
