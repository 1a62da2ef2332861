"""What ONNX Runtime really takes: memory, time and shapes observed in one run."""
