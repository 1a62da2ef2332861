"""The byte totals of a model, their definitions, and their certainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, get_args

from memplan_cli.core.bindings import Provenance
from memplan_cli.core.json_types import Count, Natural, one_of
from memplan_cli.core.serialization import OPTIONAL

if TYPE_CHECKING:
    from collections.abc import Mapping


DEFINITIONS: Mapping[str, str] = {
    "weights": "initializers and Constant outputs",
    "inputs": "graph inputs that are not initializers; not part of the plan",
    "outputs": "graph outputs; not part of the plan",
    "naive": "sum of all intermediates: no memory is reused",
    "live_peak": "most bytes of intermediates that are live at one step of this node order; no "
    "plan of this order is smaller",
    "resident": "most bytes of intermediates and outputs that are live at one step, if each is freed "
    "after its last consumer; views share memory, and donated outputs need none",
    "foldable": "part of live_peak, the lower bound, that depends on initializers and constants only",
    "planned": "what this level needs for the intermediates, including excluded tensors",
    "total": "weights + inputs + outputs + planned; donated pairs count once",
    "order_bound": "lower bound on live_peak over all orders",
    "coverage": "share of intermediates whose size is known",
}
"""Each number of `Memory`, and its definition as reports print it."""

WORKSPACE = "memory that kernels allocate for themselves, as measured; not part of the total"

EXACT, BOUND, OBSERVED, PARTIAL, UNKNOWN = "exact", "bound", "observed", "partial", "unknown"

CERTAINTY: Mapping[str, str] = {
    EXACT: "for any data",
    OBSERVED: "as seen in one run; other data may need more",
    BOUND: "never exceeded for dims within their bounds",
    PARTIAL: "only tensors of a known size",
    UNKNOWN: "known only after a run",
}
"""How certain a number is, most certain first, and the meaning as reports print it."""


def weakest(*certainties: str) -> str:
    """Return the least certain of several keys of `CERTAINTY`: the certainty of a sum."""
    ranks = list(CERTAINTY)
    return max(certainties, key=ranks.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The bytes of a model, as `DEFINITIONS` defines them; null: a size is unknown."""

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

    def without_intermediates(self) -> Memory:
        """Return the bytes of weights, inputs and outputs alone."""
        return Memory(
            weights=self.weights,
            inputs=self.inputs,
            outputs=self.outputs,
            naive=None,
            live_peak=None,
            planned=None,
            total=None,
        )


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
