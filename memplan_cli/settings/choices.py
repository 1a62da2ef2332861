"""The values that settings may take, as types, and the default alignment."""

from __future__ import annotations

from typing import Literal

Kind = Literal["train", "test"]
"""What a model counts as: with a backward part, or without."""

Level = Literal[0, 1, 2]
PhaseChoice = Literal["auto", "train", "test"]
OrderChoice = Literal["keep", "auto"]
TargetChoice = Literal["portable", "cpu", "cuda"]
ChunkChoice = Literal["none", "auto"]
CacheChoice = Literal["keep", "in-place"]
ExternalWeightsChoice = Literal["auto", "keep"]
NotesChoice = Literal["model", "plan"]
RecomputeChoice = Literal["none", "checkpoints", "auto"]

DEFAULT_ALIGNMENT = 64
"""Bytes; what CPU kernels want for their widest loads."""
