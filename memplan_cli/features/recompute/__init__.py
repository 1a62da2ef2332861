"""Rematerialization: recompute values to lower the peak, by checkpoints or within a budget."""
