"""The values that settings may take, as types, and the default alignment."""

from __future__ import annotations

from typing import Literal

Kind = Literal["train", "test"]
"""Whether a model is a training step or an inference graph."""

Level = Literal[0, 1, 2]
PhaseChoice = Literal["auto", "train", "test"]
OrderChoice = Literal["keep", "auto"]
TargetChoice = Literal["portable", "cpu", "cuda"]
ChunkChoice = Literal["none", "auto"]
CacheChoice = Literal["keep", "in-place"]
ExternalWeightsChoice = Literal["auto", "keep"]
NotesChoice = Literal["auto", "model", "plan"]
RecomputeChoice = Literal["none", "checkpoints", "auto"]

DEFAULT_ALIGNMENT = 64
"""Bytes; the alignment of the widest loads of CPU kernels."""
