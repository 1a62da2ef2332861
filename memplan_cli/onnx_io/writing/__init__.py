"""From a program and its plan to an annotated model file, verified."""
