"""The forward model as the gradient rules want it: tensors, parameters, initial values."""
