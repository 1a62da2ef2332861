"""Total bytes of a model: for the plan of a report, and for each binding of dims."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, get_args

from memplan_cli.core.bindings import Provenance
from memplan_cli.core.json_types import Count, Natural, one_of
from memplan_cli.core.serialization import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The bytes of a model, as `figures.DEFINITIONS` defines them; null: a size is unknown."""

    weights: Count
    inputs: Count | None
    outputs: Count | None
    naive: Count | None
    live_peak: Count | None
    resident: Count | None = field(default=None, metadata=OPTIONAL)
    foldable: Count | None = field(default=None, metadata=OPTIONAL)
    planned: Count | None
    total: Count | None
    order_bound: Count | None = None
    order_proved: bool = False


@dataclass(frozen=True, slots=True)
class BoundDim:
    """The number that a dimension is bound to.

    Attributes:
        value: the number.
        source: an option or a settings file, the data of an input, or an assumption.
    """

    value: Count
    source: Annotated[str, one_of(*get_args(Provenance))]


@dataclass(frozen=True, slots=True)
class Profile:
    """The bytes of a plan for one binding, beside a plan that is valid for several.

    Attributes:
        dims: the numbers of the dimensions.
        memory: the bytes of a plan for these numbers alone.
    """

    dims: Mapping[str, Count]
    memory: Memory


@dataclass(frozen=True, slots=True)
class ExternalWeights:
    """Weights that were moved out of the model file.

    Attributes:
        file: the file that holds them.
        bytes: their size in it.
    """

    file: str = ""
    bytes: Natural = 0
