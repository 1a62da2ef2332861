"""What the user, and a runtime that was asked, know about shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import TensorProto

    from memplan_cli.core.program import Shape


Known = Mapping[str, tuple[str, "Shape"]]
"""The dtype and shape of values, by name."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """What the user knows about shapes.

    ``dims`` gives symbols their values. ``shapes`` gives a value its shape: an input's,
    or any value's whose shape depends on data. ``known`` holds types and shapes found by
    other means (a runtime's inference), used where the file says nothing. ``untrusted`` names
    values whose declared types their nodes contradict: if there is one, what inference finds
    goes before all that the file declares of results. ``values`` holds what inputs were given
    that is small enough to decide shapes and conditions.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    untrusted: frozenset[str] = frozenset()
    values: Mapping[str, TensorProto] = field(default_factory=dict)
