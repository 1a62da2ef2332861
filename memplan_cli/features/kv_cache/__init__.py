"""Decoder caches of ONNX graphs: recognized by structure, and updated in buffers of fixed size."""
