"""Regions as a Scan over pieces, whose number and length the graph works out from its inputs."""
