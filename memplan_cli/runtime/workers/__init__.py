"""Processes that run models: sessions, inputs, profiles and the jobs that they do."""
