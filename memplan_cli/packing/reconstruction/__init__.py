"""Series-parallel reconstruction of nearly full arenas from composite blocks."""
