"""Requests of changing size: their simulation, settings that suit all of them, and runs of many."""
