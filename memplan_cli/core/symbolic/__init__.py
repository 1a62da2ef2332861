"""Arithmetic on sizes that contain free dims: polynomials, dims, sizes and their bounds."""
