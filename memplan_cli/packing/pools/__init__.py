"""Pools of slots, each reused whole: levels 0 and 1."""
