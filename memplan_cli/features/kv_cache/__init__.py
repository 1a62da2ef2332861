"""Decoder caches of ONNX graphs: recognised by structure, and updated in buffers of fixed size."""
