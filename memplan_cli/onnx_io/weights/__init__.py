"""The data of initializers: its size, its files, and moving it out of a model."""
