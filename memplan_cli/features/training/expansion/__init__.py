"""Operators expanded, for differentiation, into the operators they stand for."""
