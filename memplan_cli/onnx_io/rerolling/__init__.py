"""Loops that an exporter unrolled, found in a graph and written as loops again."""
