"""The buffers of a program, with their sizes and live ranges.

`live_peak` of these buffers is the number that ordering minimizes and that the report prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.aliasing import SHARE_SAFELY, Aliasing, share_storage
from memplan_cli.analysis.liveness import Timeline, duration
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, lower_bound
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import FIXED_UNIT, size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.symbolic.sizes import Size


class Storage(NamedTuple):
    """The buffers of a program's planned vars.

    Attributes:
        buffer_of: The buffer id of each planned var.
        buffers_by_unit: The buffers whose sizes have the same unit, which is the product of the
            symbols in a size (``batch*seq``), or ``"1"`` for sizes in bytes.
    """

    buffer_of: dict[VarId, BufferId]
    buffers_by_unit: dict[str, tuple[Buffer, ...]]


def storage_of(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
    timeline: Timeline | None = None,
) -> Storage:
    """Return the buffer id of each var in ``sizes``, and the buffers by the symbols in their sizes (`Storage`).

    Args:
        program: The ops in the order in which they run.
        sizes: The vars to plan. Graph inputs are not among them. Graph outputs may be, and get buffers of
            their own.
        pinned: Planned vars that keep a buffer of their own for the whole run.
        aliasing: The operators whose vars may share bytes.
        timeline: ``Timeline(program)``, if the caller has it already.
    """
    timeline = timeline or Timeline(program)
    unshared = {*pinned, *program.body.outputs}
    sharing = {var: size for var, size in sizes.items() if var not in unshared}
    shared = share_storage(program, sharing, aliasing, timeline.live, timeline.steps)
    buffer_of = {var: BufferId(var) for var in sizes} | shared
    live = dict(timeline.live)  # graph outputs are live to the end already
    whole_run = LiveRange(0, max(duration(program), 1))  # one tick at least, even without ops
    live.update(dict.fromkeys(pinned, whole_run))
    return Storage(buffer_of, _buffers_by_unit(program, sizes, buffer_of, live))


def _buffers_by_unit(
    program: Program,
    sizes: Mapping[VarId, Size],
    buffer_of: Mapping[VarId, BufferId],
    live: Mapping[VarId, LiveRange],
) -> dict[str, tuple[Buffer, ...]]:
    """Return the buffers by unit. A buffer has the size, dtype and shape of its oldest var."""
    ranges = _buffer_ranges(buffer_of, live)
    buffers: dict[str, list[Buffer]] = {}
    for var_id, size in sizes.items():
        buffer_id = buffer_of[var_id]
        if buffer_id != BufferId(var_id):  # a buffer has the id of its oldest var
            continue
        var = program.vars[var_id]
        live_range, shape = ranges[buffer_id], var.shape or ()
        buffer = Buffer(buffer_id, size.coefficient, live_range, var.dtype, shape)
        buffers.setdefault(size.unit, []).append(buffer)
    return {unit: tuple(same_unit) for unit, same_unit in buffers.items()}


def _buffer_ranges(
    buffer_of: Mapping[VarId, BufferId], live: Mapping[VarId, LiveRange]
) -> dict[BufferId, LiveRange]:
    """Return the live range of each buffer: from the first use of any of its vars to the last."""
    ranges: dict[BufferId, LiveRange] = {}
    for var, buffer_id in buffer_of.items():
        known, added = ranges.get(buffer_id), live[var]
        ranges[buffer_id] = (
            added
            if known is None
            else LiveRange(min(known.start, added.start), max(known.end, added.end))
        )
    return ranges


def live_peak(
    program: Program,
    sizes: Mapping[VarId, Size],
    pinned: Collection[VarId] = (),
    aliasing: Aliasing = SHARE_SAFELY,
) -> int:
    """Return the most bytes of planned vars that are live at one tick. Sizes must be numbers.

    Vars on the same bytes count once, pinned vars count at every tick. Arguments as `storage_of`.
    """
    storage = storage_of(program, sizes, pinned, aliasing)
    return lower_bound(Problem(storage.buffers_by_unit.get(FIXED_UNIT, ())))


def result_sizes(program: Program) -> dict[VarId, Size]:
    """Return the sizes of the graph outputs that ops compute and whose shape is known.

    A runtime allocates such an output when its producer runs and holds it to the end. So the `live_peak` of
    planned vars and these outputs is the most that the runtime holds at once, besides weights and inputs.
    Reports call it ``resident``.
    """
    sizes: dict[VarId, Size] = {}
    for name in program.body.outputs:
        var = program.vars[name]
        if var.origin is Origin.OP:
            size = size_of(var.shape, var.dtype)
            if size is not None:
                sizes[name] = size
    return sizes
