"""The searches behind `transforms.order`, on integers: no program, no var, no name."""
