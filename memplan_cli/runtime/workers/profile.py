"""The memory counters in a profile of ONNX Runtime (>= 1.28).

Every node event carries what the arena had given out when the kernel was done and before
its inputs were freed. Events of subgraphs lie inside the event of the op that has them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import Peaks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.core.results.observations import ProcessBytes

_SUFFIX = "_kernel_time"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One kernel of one run.

    Attributes:
        name: the node's name (or its type and index where it has none).
        op: its operator.
        provider: where it ran.
        start, end: microseconds since the start of the profile.
        requested: bytes asked for and not given back, at its end.
        in_use: the same in whole chunks of the arena.
        high: the most bytes in use so far, kernels' workspace included.
        held: what the arena has from the system.
        requested_before: bytes asked for at its start.
    """

    name: str
    op: str
    provider: str
    start: int
    end: int
    requested: int
    in_use: int
    high: int
    held: int
    requested_before: int


@dataclass(frozen=True, slots=True)
class Recording:
    """The node events of each run, in the order in which the kernels began."""

    runs: tuple[tuple[NodeEvent, ...], ...]
    milliseconds: tuple[float, ...]
    effort: tuple[float, ...] = ()
    process: ProcessBytes | None = None


def read_profile(events: Sequence[dict[str, Any]]) -> Recording:
    """Sort a profile's events into runs.

    Events without memory counters (the arena is off, or nothing of the kind is known) are
    left out.
    """
    runs = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "model_run")
    nodes = sorted(
        (_node(e) for e in events if e.get("cat") == "Node" and _counted(e)),
        key=lambda event: (event.start, -event.end),
    )
    # A run lasts until the next one begins: the clocks of events round differently.
    starts = [start for start, _ in runs] + [1 << 62]
    grouped = tuple(
        tuple(event for event in nodes if low <= event.start < high)
        for low, high in pairwise(starts)
    )
    return Recording(grouped, tuple(duration / 1000 for _, duration in runs))


def held_after(recording: Recording) -> list[int]:
    """Return what the arena had from the system after each run."""
    return [max(event.held for event in run) if run else 0 for run in recording.runs]


def _counted(event: dict[str, Any]) -> bool:
    return event["name"].endswith(_SUFFIX) and "mem_bytes_requested_in_use" in event["args"]


def _node(event: dict[str, Any]) -> NodeEvent:
    args = event["args"]
    requested = int(args["mem_bytes_requested_in_use"])
    return NodeEvent(
        name=event["name"].removesuffix(_SUFFIX),
        op=args["op_name"],
        provider=args.get("provider", ""),
        start=event["ts"],
        end=event["ts"] + event["dur"],
        requested=requested,
        in_use=int(args["mem_bytes_in_use"]),
        high=int(args["mem_in_use_peak"]),
        held=int(args["mem_arena_held"]),
        requested_before=requested - int(args["mem_requested_in_use_delta"]),
    )


def peaks_of(recording: Recording, milliseconds: Sequence[float] = ()) -> Peaks:
    """Return the peaks of a recording of at least one run.

    What is in use before the first kernel of the first run counts as weights, and is left
    out of the peaks of tensors. Figures that the profile does not have are None.
    """
    first, *later = [run for run in recording.runs if run] or [()]
    if not first:
        return Peaks(None, None, milliseconds=median(milliseconds) if milliseconds else None)
    weights = first[0].requested_before
    every = [event for run in (first, *later) for event in run]
    steady = [event.requested for run in later for event in run]
    return Peaks(
        first_run_peak=max(event.requested for event in first) - weights,
        steady_peak=max(steady) - weights if steady else None,
        held=max(event.held for event in every),
        scratch=max(event.high for event in every) - max(event.in_use for event in every),
        weights=weights,
        milliseconds=median(milliseconds) if milliseconds else None,
    )


def kernels_by_run(events: Sequence[dict[str, Any]]) -> list[list[list[Any]]]:
    """Return ``[name, read, written, begin]`` of each kernel, run by run of a profile.

    ``read`` and ``written`` are lists of ``[type, dims]``. The kernels of a run are in the
    order in which they ended: those of a subgraph before their control-flow node.
    """
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")[1:]
    runs: list[list[list[Any]]] = [[] for _ in range(len(starts) + 1)]
    for event in events:
        if kernel := _kernel(event):
            runs[bisect_right(starts, event["ts"])].append(kernel)
    return runs


def _kernel(event: dict[str, Any]) -> list[Any] | None:
    args = event.get("args", {})
    if event.get("cat") != "Node" or "output_type_shape" not in args:
        return None
    kinds = (args.get("input_type_shape", []), args["output_type_shape"])
    seen: list[Any] = [[list(*kind.items()) for kind in tensors] for tensors in kinds]
    return [str(event.get("name")).removesuffix(_SUFFIX), *seen, event["ts"]]
