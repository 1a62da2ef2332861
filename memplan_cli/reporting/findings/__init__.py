"""Comparisons of plans as data: snapshots, diffs, verdicts of a gate, explanations."""
