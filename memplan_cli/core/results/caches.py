"""Decoder caches updated in place, as reported and as a written file says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from memplan_cli.core.deserialization import one_of
from memplan_cli.core.results.placements import Natural  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import Keys, sparse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FORMS = ("concat", "cast", "operator", "shared", "constant")
"""How a graph extends a cache: a Concat; one between Casts; an operator with past and present;
one that writes into its past itself; not at all."""


class CacheBuffer(NamedTuple):
    """An input and the output that replaces it: one buffer, ``capacity`` long along ``axis``.

    A constant one has no axis that grows: its ``axis`` is 0 and nothing is written.
    """

    input: str
    output: str
    axis: Natural
    form: Annotated[str, one_of(*FORMS)]


class KeptCache(NamedTuple):
    """A cache that is left as it was, and why."""

    input: str
    output: str
    reason: str


@dataclass(frozen=True, slots=True)
class Caches:
    """How a model with caches in place is run.

    ``position`` is the input that says how many entries are valid; ``length`` the output that
    says how many are after the step. ``tokens`` are the input and the axis whose length is the
    number of new entries, where they are known.
    """

    json_keys: ClassVar[Keys] = (
        "capacity",
        "position",
        "length",
        "buffers",
        *sparse("tokens", "kept"),
        *sparse("bytes", "before", "planned_at", "steps"),
    )

    capacity: Natural = 0
    position: str = ""
    length: str = ""
    buffers: tuple[CacheBuffer, ...] = ()
    tokens: tuple[tuple[str, Natural], ...] = ()
    kept: tuple[KeptCache, ...] = ()
    bytes: Natural = 0
    """Of all buffers, each once, where their sizes are known."""
    before: tuple[Natural, Natural, Natural] | None = None
    """Bytes of inputs, outputs and plan of the original's step that fills the capacity."""
    planned_at: Natural = 0
    """The position at which the step was planned."""
    steps: tuple[Natural, ...] = ()
    """New entries in each step in which outputs were compared with the original's."""

    @property
    def growing(self) -> tuple[CacheBuffer, ...]:
        """The buffers that are written."""
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
"""What the number of a dim is in a step with some valid and some new entries."""


def step_dims(rules: Mapping[str, str], past: int, new: int) -> dict[str, int]:
    """Return a number for each dim by its rule, a key of `STEP_NUMBERS`."""
    return {name: STEP_NUMBERS[rule](past, new) for name, rule in rules.items()}
