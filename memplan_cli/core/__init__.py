"""Data shared by all rooms: programs, packing problems, sizes, plans and reports."""
