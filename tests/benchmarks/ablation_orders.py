"""Each method of the ordering search off in turn: peaks and bounds that are lost.

Graphs are random, of 15 to 250 ops, some with neighbours only and some with long skips, and
the shared models whose order is searched for longer than a moment.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.transforms.ordering.effort import Effort
from memplan_cli.transforms.ordering.solve import solve
from order_graphs import graph_of

from .ablation_modules import put, undo
from .ordering import SHARED, SHARING, one

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memplan_cli.transforms.ordering.graph import TaskGraph

GRAPHS = 60
WORK = 1_000_000
LONG = 0.3
"""Seconds of a search that is worth measuring."""

HEAD = (
    "off", "set", "problems", "taller", "lower", "worst", "mean peak", "bounds lost", "seconds",
)  # fmt: skip


def _nothing(*_arguments: object) -> None:
    """Find no order, and raise no bound."""


def _off(*places: tuple[str, str]) -> None:
    for module, name in places:
        put(module, name, _nothing)


def _without_sections() -> None:
    put("divide", "_searched", lambda *_: [])


OFF: Mapping[str, Callable[[], None]] = {
    "nothing": _nothing,
    "beams": partial(_off, ("solve", "beam"), ("divide", "beam")),
    "beams of the whole graph": partial(_off, ("solve", "beam")),
    "exact search of the whole graph": partial(_off, ("solve", "_exact")),
    "search of small sections": _without_sections,
    "proofs at the order found last": partial(_off, ("solve", "_prove_again")),
    "proofs by pairs": partial(_off, ("certify", "Certificate.look_at_pairs")),
    "proofs along a path": partial(_off, ("certify", "Certificate.look_along")),
}
"""What is switched off, and how."""


@dataclass(frozen=True)
class Outcome:
    """What a search came out with."""

    peak: int
    bound: int
    seconds: float


def random_graph(seed: int) -> TaskGraph:
    """Return a graph whose ops read up to three earlier results, in place or not."""
    draw = random.Random(seed)
    size, near = draw.choice((15, 30, 60, 120, 250)), draw.choice((5, 15, 1000))
    reads = [
        draw.sample(
            range(max(0, op - near), op), min(op, near, draw.choice((0, 1, 1, 1, 2, 2, 3)))
        )
        for op in range(size)
    ]
    weight = [
        draw.choice((1, 2, 3, 5, 8)) if seed % 2 else draw.randint(1, 1000) for _ in reads
    ]
    ends = draw.sample(range(size), draw.randint(0, 2))
    return graph_of(reads, weight, ends, draw.sample(range(size), draw.randint(0, size // 2)))


def of_graph(graph: TaskGraph) -> Outcome:
    """Order a graph."""
    started = time.process_time()
    found = solve(graph, Effort(WORK), _nothing)
    return Outcome(found.peak, found.bound, time.process_time() - started)


def of_model(name: str, sharing: str) -> Outcome:
    """Order a model."""
    row = one(name, sharing)
    return Outcome(row.peak, row.bound, row.seconds)


def problems() -> Mapping[str, Sequence[Callable[[], Outcome]]]:
    """Return the searches of each set."""
    graphs = [partial(of_graph, random_graph(seed)) for seed in range(GRAPHS)]
    names = [path.stem for path in sorted(SHARED.glob("*.onnx"))]
    models = [partial(of_model, name, sharing) for name in names for sharing in SHARING]
    return {
        "random graphs": graphs,
        "models": [search for search in models if search().seconds > LONG],
    }


def rows(only: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each method and set."""
    for kind, searches in problems().items():
        usual = [search() for search in searches]
        for name, off in OFF.items():
            if only not in name or name == "nothing" or not searches:
                continue
            try:
                off()
                found = [search() for search in searches]
            finally:
                undo()
            yield name, kind, *_compared(usual, found)


def _compared(usual: Sequence[Outcome], found: Sequence[Outcome]) -> tuple[str, ...]:
    ratios = [other.peak / max(one.peak, 1) for one, other in zip(usual, found, strict=True)]
    lost = sum(o.bound < u.bound for u, o in zip(usual, found, strict=True))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    seconds = (f"{sum(one.seconds for one in part):.1f}" for part in (usual, found))
    return (
        str(len(ratios)),
        str(sum(ratio > 1 for ratio in ratios)),
        str(sum(ratio < 1 for ratio in ratios)),
        f"{max(ratios):.4f}",
        f"{mean:.5f}",
        str(lost),
        ", ".join(seconds),
    )
