"""Simulation of ONNX Runtime's memory: allocation planner, memory pattern, arena, and settings of the arena."""
