"""Decoder caches updated in place, as reported and as a written file says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

from memplan_cli.core.json_types import Natural, one_of
from memplan_cli.core.serialization import SPARSE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMS = ("concat", "cast", "operator", "shared", "constant")
"""How a graph extends a cache: a Concat; a Concat between Casts; an operator with past and
present; an operator that writes into its past itself; not at all."""


class CacheBuffer(NamedTuple):
    """A cache input and the output that replaces it, in one buffer.

    Attributes:
        input: the input.
        output: the output.
        axis: the axis that grows, ``capacity`` long in the buffer; 0 for a constant cache.
        form: how the graph extends the cache.
    """

    input: str
    output: str
    axis: Natural
    form: Annotated[str, one_of(*FORMS)]


class KeptCache(NamedTuple):
    """A cache that is not updated in place, and the reason."""

    input: str
    output: str
    reason: str


@dataclass(frozen=True, slots=True)
class Caches:
    """Caches that a model updates in place, and how such a model is run.

    Attributes:
        capacity: the number of entries that each buffer holds; 0: no cache is in place.
        position: the input with the number of valid entries.
        length: the output with the number of valid entries after the step.
        buffers: the caches.
        tokens: inputs and their axes whose length is the number of new entries, if known.
        kept: caches that are not updated in place.
        bytes: the size of all buffers, each once, if known.
        before: bytes of inputs, outputs and plan of the original's step that fills the
            capacity.
        planned_at: the position for which the step was planned.
        steps: the number of new entries in each step whose outputs were compared with the
            original's.
    """

    capacity: Natural = 0
    position: str = ""
    length: str = ""
    buffers: tuple[CacheBuffer, ...] = ()
    tokens: tuple[tuple[str, Natural], ...] = field(default=(), metadata=SPARSE)
    kept: tuple[KeptCache, ...] = field(default=(), metadata=SPARSE)
    bytes: Natural = field(default=0, metadata=SPARSE)
    before: tuple[Natural, Natural, Natural] | None = field(default=None, metadata=SPARSE)
    planned_at: Natural = field(default=0, metadata=SPARSE)
    steps: tuple[Natural, ...] = field(default=(), metadata=SPARSE)

    @property
    def growing(self) -> tuple[CacheBuffer, ...]:
        """The buffers that a step writes."""
        return tuple(each for each in self.buffers if each.form != "constant")

    @property
    def donated(self) -> tuple[tuple[str, str], ...]:
        """``(input, output)`` of the buffers that a TensorScatter writes."""
        written = ("concat", "cast", "operator")
        return tuple((b.input, b.output) for b in self.buffers if b.form in written)


STEP_NUMBERS: Mapping[str, Callable[[int, int], int]] = {
    "new": lambda _, new: new,
    "total": lambda past, new: past + new,
    "past": lambda past, _: past,
    "one": lambda *_: 1,
    "five": lambda *_: 5,
}
"""The rule of a dimension -> its number in a step with so many valid and new entries."""


def step_dims(rules: Mapping[str, str], past: int, new: int) -> dict[str, int]:
    """Return the number of each dimension by its rule, a key of `STEP_NUMBERS`."""
    return {name: STEP_NUMBERS[rule](past, new) for name, rule in rules.items()}
