"""Certificates: proofs of a plan's bounds that can be verified without the planner."""
