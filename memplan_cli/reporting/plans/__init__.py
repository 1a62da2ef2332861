"""Renderings of one plan."""
