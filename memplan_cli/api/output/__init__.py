"""The files that commands write: a model, its weights, its plan; all of them or none."""
