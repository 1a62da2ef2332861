"""Models, plans and weights on disk: their names, and writing them all or none."""
