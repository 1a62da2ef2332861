"""Plug-ins for other tools: a pass for Olive and a command for optimum."""
