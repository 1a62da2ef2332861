"""One module for each thing that a user can ask for; the Python API."""
