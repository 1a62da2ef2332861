"""Constant folding: computing values that depend on initializers only, once, when the model is written."""
