"""Inputs in files: ``.npz``, folders of ``input_*.pb``, JSON. Nothing is ever unpickled.

A reader yields what a file says of each input, and loads an array only when it is asked to:
names, types and sizes are judged before. Files are untrusted: sizes are read from headers,
compared with what is there, and limited.
"""
