"""A written model and its plan held against each other, with no code of the planner's."""
