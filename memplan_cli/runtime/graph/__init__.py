"""The graph that ONNX Runtime runs: its optimized form, its node indices, its fusions."""
