"""Total bytes of a model: for the plan of a report, and for each binding of dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, get_args

from memplan_cli.core.bindings import Provenance
from memplan_cli.core.deserialization import one_of
from memplan_cli.core.results.placements import Natural  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, optional

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as in `figures.DEFINITIONS`; None where some size is not a number."""

    json_keys: ClassVar[Keys] = (
        "weights",
        "inputs",
        "outputs",
        "naive",
        "live_peak",
        *optional("resident", "foldable"),
        "planned",
        "total",
        "order_bound",
        "order_proved",
    )

    weights: int
    inputs: int | None
    outputs: int | None
    naive: int | None
    live_peak: int | None
    planned: int | None
    total: int | None
    order_bound: int | None = None
    order_proved: bool = False
    foldable: int | None = None
    resident: int | None = None


@dataclass(frozen=True, slots=True)
class BoundDim:
    """The number that a dim has, and who said it: `bindings.Provenance`."""

    value: int
    source: Annotated[str, one_of(*get_args(Provenance))]


@dataclass(frozen=True, slots=True)
class Profile:
    """Total bytes of a plan for these dims alone, beside one plan that is valid for several."""

    dims: Mapping[str, int]
    memory: Memory


@dataclass(frozen=True, slots=True)
class ExternalWeights:
    """Weights that left the model file: the file they lie in now, and their bytes there."""

    file: str = ""
    bytes: Natural = 0
