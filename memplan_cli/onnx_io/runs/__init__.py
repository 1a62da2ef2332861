"""Inputs for runs, given or random, and models prepared to be run."""
