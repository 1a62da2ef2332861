"""Operators that are differentiated as the operators they stand for."""
