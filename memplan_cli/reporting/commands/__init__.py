"""Renderings of what the other commands find."""
