"""Runs of ONNX Runtime: every session runs in a process of its own."""
