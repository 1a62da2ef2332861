"""Compute again instead of keeping: checkpoints by name, or what fits a budget."""
