"""Candidates of `optimize`: planned, run beside the original, and compared with it."""
