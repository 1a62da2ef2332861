"""Read the profile that a session of ONNX Runtime (>= 1.28) writes: memory and shapes by kernel.

Each kernel's event has the counters of the arena at its end, before its inputs are freed. Events
of subgraphs lie within the event of their control-flow node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.results.observations import CPU, Peaks

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json

TensorTypes = Sequence[tuple[str, Sequence[int]]]
"""ONNX Runtime's type name, such as ``float``, and the dims of each tensor."""


class Kernel(NamedTuple):
    """One executed kernel. In JSON it is a list of these fields.

    Attributes:
        node: the name of its node, or ``<operator>_<number>`` if the node has no name.
        read: the tensors that it read; an input that is left out, or freed, is missing.
        wrote: the tensors that it wrote.
        start: microseconds since the start of the profile.
    """

    node: str
    read: TensorTypes
    wrote: TensorTypes
    start: int


_KERNEL_SUFFIX = "_kernel_time"

_END_OF_TIME = 1 << 62


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One kernel of one run.

    Attributes:
        name: the node's name, or its operator and index if it has none.
        start, end: microseconds since the start of the profile.
        requested: bytes of the arena that were requested and not freed, at its end.
        in_use: the same in whole chunks of the arena.
        high: the most bytes in use so far, workspace of kernels included.
        held: bytes that the arena holds from the system.
        requested_before: as ``requested``, at its start.
    """

    name: str
    start: int
    end: int
    requested: int
    in_use: int
    high: int
    held: int
    requested_before: int


Runs = tuple[tuple[NodeEvent, ...], ...]
"""The events of each run, in the order in which the kernels began."""


def read_profile(events: Sequence[Json], provider: str = CPU) -> Runs:
    """Return the events of a profile that have counters of the arena of a provider, run by run.

    Without an arena there are none. Kernels on another provider have the counters of another arena.
    """
    run_starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    nodes = sorted(
        (
            _node_event(event)
            for event in events
            if event.get("cat") == "Node"
            and event["name"].endswith(_KERNEL_SUFFIX)
            and "mem_bytes_requested_in_use" in event["args"]  # a counter of the arena
            and event["args"].get("provider", provider) == provider
        ),
        key=lambda event: (event.start, -event.end),
    )
    # Times are rounded differently, so a run counts until the next one begins.
    return tuple(
        tuple(event for event in nodes if start <= event.start < next_start)
        for start, next_start in pairwise([*run_starts, _END_OF_TIME])
    )


def _node_event(event: Json) -> NodeEvent:
    """Return a kernel's event of a profile, which has counters of the arena, as a record."""
    args = event["args"]
    requested = int(args["mem_bytes_requested_in_use"])
    return NodeEvent(
        name=event["name"].removesuffix(_KERNEL_SUFFIX),
        start=event["ts"],
        end=event["ts"] + event["dur"],
        requested=requested,
        in_use=int(args["mem_bytes_in_use"]),
        high=int(args["mem_in_use_peak"]),
        held=int(args["mem_arena_held"]),
        requested_before=requested - int(args["mem_requested_in_use_delta"]),
    )


def arena_peaks(runs: Runs) -> Peaks:
    """Return the peaks of the arena over some runs.

    Without an arena there are no events, and all figures are None. With one run, ``steady_peak`` is None.

    - ``weights``: bytes requested before the first kernel of the first run.
    - ``first_run_peak``: the most bytes requested at the end of a kernel of the first run, without weights.
    - ``steady_peak``: the same of all later runs.
    - ``held``: the most bytes that the arena held from the system, for weights too.
    - ``scratch``: how much the workspace of kernels raised the most bytes in use.
    """
    if not runs or not runs[0]:
        return Peaks(first_run_peak=None, steady_peak=None)
    first, *later = runs
    weights = first[0].requested_before
    events = [event for run in runs for event in run]
    steady = [event.requested for run in later for event in run]
    # A kernel frees its workspace before it ends, so `in_use` leaves workspace out, and `high` includes it.
    highest_in_use = max(event.in_use for event in events)
    return Peaks(
        first_run_peak=max(event.requested for event in first) - weights,
        steady_peak=max(steady) - weights if steady else None,
        held=max(event.held for event in events),
        scratch=max(event.high for event in events) - highest_in_use,
        weights=weights,
    )


def kernels_by_run(events: Sequence[Json]) -> list[list[Kernel]]:
    """Return the kernels of a profile, run by run.

    They are in the order in which they ended: those of a subgraph before their control-flow node.
    """
    run_starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    later_starts = run_starts[1:]
    runs: list[list[Kernel]] = [[] for _ in range(len(later_starts) + 1)]
    for event in events:
        args = event.get("args", {})
        if event.get("cat") == "Node" and "output_type_shape" in args:
            inputs = _types_and_dims(args.get("input_type_shape", []))
            outputs = _types_and_dims(args["output_type_shape"])
            node = str(event.get("name")).removesuffix(_KERNEL_SUFFIX)
            run = bisect_right(later_starts, event["ts"])
            runs[run].append(Kernel(node, inputs, outputs, event["ts"]))
    return runs


def _types_and_dims(tensors: Sequence[Json]) -> TensorTypes:
    """Return the type and dims of each tensor, from ``{type: dims}``."""
    return [
        (element_type, dims) for tensor in tensors for element_type, dims in tensor.items()
    ]
