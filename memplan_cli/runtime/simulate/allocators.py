"""Dynamic allocators simulated on the requests of a run, for comparison with a static plan.

The requests are those of one run with real shapes, in the order of the run: each op allocates its
outputs, then frees the tensors that it was the last to read. Dynamic allocators see one request
after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.binding_options import binding_options, input_shapes
from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.core.one_line import one_line_repr
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by
from memplan_cli.errors import SettingsError, UnknownSizeError
from memplan_cli.runtime.simulate.arena import ArenaSettings, best_fit_height, held_after_runs
from memplan_cli.runtime.simulate.predict import (
    ARENA_REUSE_ONLY,
    ExecutedGraph,
    predict_peaks,
    session_traces,
)
from memplan_cli.runtime.simulate.trace import UnknownBytesError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.runtime.simulate.trace import AllocationTrace


@dataclass(frozen=True, slots=True)
class Simulation:
    """What an allocator does with the requests of a run.

    Attributes:
        allocator: its name.
        held: bytes that it reserves from the system.
        live: the most bytes of tensors live at once. No allocator holds less.
        requests: number of allocations.
    """

    allocator: str
    held: Count
    live: Count
    requests: Count

    @property
    def fragmentation(self) -> float:
        """The share of the held bytes above the most live bytes."""
        return (self.held - self.live) / self.held if self.held else 0.0


@dataclass(frozen=True, slots=True)
class AllocatorComparison:
    """The memory of several allocators and of the static plan for a run, in bytes.

    Attributes:
        planned: the bytes of the static plan; null: some sizes are symbolic.
        simulations: the allocators.
        warnings: remarks for the user. Not in a file.
    """

    json_keys: ClassVar[Keys] = ("planned", "simulations")

    planned: int | None
    simulations: tuple[Simulation, ...]
    warnings: tuple[str, ...] = ()

    __repr__ = one_line_repr


ALLOCATORS: Mapping[str, Callable[[AllocationTrace], int]] = {
    "best-fit": best_fit_height,
    "bfc": partial(held_after_runs, settings=ArenaSettings(), runs=1),
    "bfc-exact": partial(held_after_runs, settings=ArenaSettings(exact=True), runs=1),
}
"""Functions that return the bytes held: by best fit in one region, and by best fit with coalescing in
regions that double (TensorFlow's) or that are as large as the requests."""

RUNTIME = "ort"
"""The runtime itself with default settings: its own order, reuse, pattern and arena."""


def simulate(executed: ExecutedGraph, allocator: str) -> Simulation:
    """Return what ``allocator``, one of `ALLOCATORS` or `RUNTIME`, needs for a run of a program.

    Live bytes and requests are those of a run in the order of the program, for all allocators alike. `RUNTIME`
    holds what it needs in its own order, with its own reuse.

    Raises:
        SettingsError: there is no such allocator.
        UnknownSizeError: the size of a tensor is not known.
    """
    if allocator != RUNTIME and allocator not in ALLOCATORS:
        known = ", ".join((*ALLOCATORS, RUNTIME))
        raise SettingsError(f"unknown allocator {allocator!r}", hint=f"Choose one of {known}.")
    try:
        # Ops run in the order of the program, and only the allocator reuses freed bytes.
        trace = session_traces(executed, ARENA_REUSE_ONLY, {}).first
    except UnknownBytesError as error:
        raise UnknownSizeError(
            f"the size of {error} is not known before the run",
            hint=binding_options(input_shapes(executed.program)),
        ) from error
    if allocator == RUNTIME:
        held = predict_peaks(executed).held
        assert held is not None  # noqa: S101 - the trace above has refused unknown sizes
    else:
        held = ALLOCATORS[allocator](trace)
    return Simulation(allocator, held, trace.live_peak, len(trace.sizes))
