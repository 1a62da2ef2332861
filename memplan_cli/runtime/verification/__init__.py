"""Verification of a written model: its outputs, its memory, and the settings that its runs confirm."""
