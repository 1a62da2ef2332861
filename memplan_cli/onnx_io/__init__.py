"""The only door to protobufs: ONNX files in, programs out, and back again."""
