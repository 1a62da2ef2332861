"""Runs of models: what is run, in which process, what it produced, and how two runs compare."""
