"""The planning loop: candidates, their evaluation by allocation, and the choice among them."""
