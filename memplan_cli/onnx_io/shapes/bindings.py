"""What the user gave and a runtime observed about the shapes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import TensorProto

    from memplan_cli.core.program import Shape


Known = Mapping[str, tuple[str, "Shape"]]
"""By value name, the dtype and shape that a runtime observed."""


@dataclass(frozen=True, slots=True)
class Bindings:
    """What is known about shapes besides the model.

    Attributes:
        dims: sizes of symbols.
        shapes: shapes given for values by name: inputs, or values whose shape depends on data.
        known: types that a runtime observed; used where the model declares none, but not for untrusted
            values.
        untrusted: names of values whose types their nodes contradict, in any graph. If there is one, inferred
            types win over all that the model declares of node outputs.
        values: values given for inputs that are small enough to decide shapes and conditions.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    known: Known = field(default_factory=dict)
    untrusted: frozenset[str] = frozenset()
    values: Mapping[str, TensorProto] = field(default_factory=dict)
