"""Shapes inside the bodies of If, Loop, Scan and SequenceMap."""
