"""Donation: outputs of a training step written over the inputs that they replace."""
