"""Slots that are handed on whole: levels 0 and 1."""
