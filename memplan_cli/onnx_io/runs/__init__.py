"""Models and inputs made to be run: feeds, seeds, single-op models, probes."""
