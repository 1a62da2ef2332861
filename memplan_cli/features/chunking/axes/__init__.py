"""How each axis of an operator's results comes from axes of its inputs, by operator family."""
