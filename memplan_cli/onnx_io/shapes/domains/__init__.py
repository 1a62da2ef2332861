"""Types of what operators outside of ONNX's own domain make: ai.onnx.ml, and those of ONNX Runtime."""
