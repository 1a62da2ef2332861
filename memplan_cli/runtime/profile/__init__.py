"""Facts about one version of ONNX Runtime: measured numbers, constants of its sources, kernel tables."""
