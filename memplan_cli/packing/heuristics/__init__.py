"""Allocators that place each buffer once and never move it."""
