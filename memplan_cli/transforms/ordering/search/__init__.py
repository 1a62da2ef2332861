"""Searches for orders, on integers: list scheduling, beams, exact search, divide at the peak."""
