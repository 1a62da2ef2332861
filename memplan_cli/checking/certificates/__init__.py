"""Certificates checked against a model and a plan, by code that shares nothing with a search."""
