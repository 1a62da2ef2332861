"""Ordering of ops for the least live peak: the task graph, searches, and lower bounds."""
