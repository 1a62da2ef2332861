"""Optional capabilities of memplan, one folder each; removing one means deleting its folder and its lines in `api` and `cli`."""
