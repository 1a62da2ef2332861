"""Dynamic allocators simulated on the requests of a run, beside the static plan.

The requests are those of one run with real shapes, in the order of the run: allocate what
an op makes, free what it was the last to read. Dynamic allocators see them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import binding_options, input_shapes
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.errors import SettingsError, UnknownSizeError
from memplan_cli.runtime.simulation.bfc import ArenaRules
from memplan_cli.runtime.simulation.ledger import UnknownBytesError
from memplan_cli.runtime.simulation.predict import Executed, model_of, predict
from memplan_cli.runtime.simulation.requests import (
    held_after,
    most_in_use,
    requests_of,
)
from memplan_cli.runtime.simulation.trace import Trace, height_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memplan_cli.runtime.simulation.trace import Request

_IN_FILE_ORDER = RuntimeSettings(
    session={
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
    }
)


@dataclass(frozen=True, slots=True)
class Simulation:
    """What an allocator does with a run.

    Attributes:
        allocator: its name.
        held: bytes it takes from the system.
        live: the most bytes of tensors alive at once: no allocator takes less.
        requests: how often it is asked for memory.
    """

    allocator: str
    held: int
    live: int
    requests: int

    @property
    def fragmentation(self) -> float:
        """Return the share of what is held that no tensor ever needed at once."""
        return (self.held - self.live) / self.held if self.held else 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """What each allocator needs, and what the static plan of the model needs, in bytes.

    ``planned`` is None where sizes in the plan are not numbers.
    """

    planned: int | None
    simulations: tuple[Simulation, ...]
    warnings: tuple[str, ...] = ()


def best_fit(requests: Sequence[Request]) -> int:
    """One region without an end, the tightest gap first, free neighbours joined."""
    return height_of(Trace.of(requests))


def bfc(requests: Sequence[Request]) -> int:
    """Best fit with coalescing in regions that double, as TensorFlow and others do."""
    return held_after(requests, ArenaRules(), runs=1)


def exact_regions(requests: Sequence[Request]) -> int:
    """The same, each region as large as the request that asked for it."""
    return held_after(requests, ArenaRules(exact=True), runs=1)


ALLOCATORS: Mapping[str, Callable[[Sequence[Request]], int]] = {
    "best-fit": best_fit,
    "bfc": bfc,
    "bfc-exact": exact_regions,
}

RUNTIME = "ort"
"""The runtime itself, under its defaults: its own order, reuse, pattern and arena."""


def simulate(executed: Executed, allocator: str) -> Simulation:
    """Return what one allocator needs for a run of a program in its own order.

    Args:
        executed: the program, its real shapes bound (`settle` sees what data
            decides).
        allocator: ``best-fit``, ``bfc``, ``bfc-exact`` or ``ort``.

    Raises:
        SettingsError: there is no such allocator.
        UnknownSizeError: the size of a tensor is not known.
    """
    if allocator != RUNTIME and allocator not in ALLOCATORS:
        known = ", ".join((*ALLOCATORS, RUNTIME))
        raise SettingsError(f"unknown allocator {allocator!r}", hint=f"Choose one of {known}.")
    try:
        requests = requests_of(model_of(executed, _IN_FILE_ORDER), {})
    except UnknownBytesError as error:
        raise UnknownSizeError(
            f"the size of {error} is not known before the run",
            hint=binding_options(input_shapes(executed.program)),
        ) from error
    if allocator == RUNTIME:
        held = predict(executed).held or 0
    else:
        held = ALLOCATORS[allocator](requests)
    count = sum(request.size >= 0 for request in requests)
    return Simulation(allocator, held, most_in_use(requests, chunk=1), count)
