"""ONNX Runtime's planner and arena, simulated."""
