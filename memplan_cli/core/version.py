"""The version of memplan."""

VERSION = "0.1.0"
