"""The contents of a plan file: the row of each tensor, the order, and the releases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

from memplan_cli.analysis.liveness import last_uses
from memplan_cli.core.program import VarId, blocks, own_name
from memplan_cli.core.results.placements import BlockOrder, Placement, PlannedArena, Release
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.version import VERSION
from memplan_cli.planning.print_log import reuses
from memplan_cli.planning.report import report_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.program import Program
    from memplan_cli.planning.candidate import Source
    from memplan_cli.planning.report import Decision, FoldableTensors
    from memplan_cli.settings.settings import Settings


def plan_of(decision: Decision, foldable_tensors: FoldableTensors) -> Plan:
    """Return the plan of a decision, with its report."""
    # The report first: its buffers and the tensors of the plan are not in memory at the same time.
    report = report_of(decision, foldable_tensors)
    tensors = _placements(decision)
    return Plan(
        version=VERSION,
        graph_sha256=decision.source.graph_sha256,
        settings=settings_json(decision.settings, decision.source),
        order=tuple(_orders(decision.program)),
        arenas=tuple(
            PlannedArena(
                index, arena.unit, arena.layout.height, arena.bound, arena.problem.alignment
            )
            for index, arena in enumerate(decision.allocation.arenas)
        ),
        tensors=tensors,
        releases=releases(decision.needs.timeline, decision.needs.unpinned),
        report=replace(
            report, reuses=sum(reuse.donor is not None for reuse in reuses(tensors))
        ),
    )


def settings_json(settings: Settings, source: Source) -> Json:
    """Return the settings by their YAML names, as the plan file holds them.

    No plan has ``inputs`` (``dims`` has the numbers given by them), ``best_effort``, ``time_limit``,
    ``allow_partial`` and ``external_weights``.
    """
    return {
        "mem_param": {
            "optimize_train": settings.mem_param.optimize_train,
            "optimize_test": settings.mem_param.optimize_test,
            "exclude_blob": list(settings.mem_param.exclude_blob),
        },
        "level": settings.level,
        "exclude": list(settings.exclude),
        "expose": settings.expose,
        "phase": settings.phase,
        "skip_grads": settings.skip_grads,
        "loss": settings.loss,
        "dims": dict(sorted(settings.dims.items())),
        "bounds": {name: str(limits) for name, limits in sorted(settings.bounds.items())},
        "shapes": {name: list(shape) for name, shape in sorted(settings.shapes.items())},
        "profile_shapes": source.sizes_observed,  # named after a setting of earlier versions
        "order": settings.order,
        # Newer settings are left out at their defaults, so that plans made before have the same digest.
        **({"fold_constants": True} if settings.fold_constants else {}),
        **({} if settings.has_notes_in_model else {"notes": "plan"}),
        **({"chunk": settings.chunk} if settings.chunk != "none" else {}),
        **({"kv_cache": settings.kv_cache} if settings.kv_cache != "keep" else {}),
        **({"capacity": settings.capacity} if settings.capacity is not None else {}),
        "recompute": settings.recompute,
        "checkpoints": list(settings.checkpoints),
        "budget": settings.budget,
        "target": settings.target,
        "donate": dict(sorted(settings.donate.items())),
        "alignment": settings.alignment,
        **({} if settings.run else {"run": False}),
    }


def _placements(decision: Decision) -> tuple[Placement, ...]:
    """Return the row of each planned tensor: its type, its place in an arena, its live range.

    A size is a coefficient times a unit, such as 4096 times ``batch``; for bytes the unit is ``"1"``. The
    tensors of each unit have an arena, in which offsets are coefficients of the unit too.
    """
    # The id of a buffer is the id of the first var that it stores: the same text, in another type.
    needs, allocation = decision.needs, decision.allocation
    arenas = {arena.unit: (index, arena) for index, arena in enumerate(allocation.arenas)}
    pinned, vars_ = needs.pinned, decision.program.vars
    # A pinned var has a buffer of its own, with its id, that is live for the whole run.
    pinned_ranges = {
        VarId(buffer.id): buffer.live
        for arena in allocation.arenas
        for buffer in arena.problem.buffers
        if VarId(buffer.id) in pinned
    }
    live_ranges = {**needs.live, **pinned_ranges}
    tensors: list[Placement] = []
    for var_id, size in needs.sizes.items():
        var, buffer_id = vars_[var_id], allocation.buffers[var_id]
        index, arena = arenas[size.unit]
        first, end = live_ranges[var_id]
        tensors.append(
            Placement(
                name=var.name,
                block=var.block,
                dtype=var.dtype,
                # A planned var has a size, so all of its dims are known.
                shape=cast("tuple[int | str, ...]", var.shape),
                bytes=size.coefficient,
                arena=index,
                offset=arena.layout.offsets[buffer_id],
                slot=arena.slots.get(buffer_id),
                first=first,
                last=end,  # exclusive: the tick after the last use
                # The other vars in a buffer are aliases of its first one.
                alias_of=None if var_id == str(buffer_id) else buffer_id,
                pinned=pinned.get(var_id),
            )
        )
    return tuple(tensors)


def _orders(program: Program) -> Iterator[BlockOrder]:
    """Yield the planned order of each block, in which a node is denoted by its name.

    A node is denoted by ``#`` and its index in the file, such as ``#7``, if it has no name, if another node of the
    block has the same name, or if its name looks like such an index.
    """
    for block in blocks(program.body):
        # `own_name` returns "" for a missing name, and for one such as ``#7``. These do not count as names.
        name_counts = Counter(filter(None, (own_name(op.name) for op in block.ops)))
        nodes = (op.name if name_counts[op.name] == 1 else f"#{op.source}" for op in block.ops)
        yield BlockOrder(block.path, tuple(nodes))


def releases(timeline: Timeline, planned: Container[VarId]) -> tuple[Release, ...]:
    """Return the planned tensors that are released after each node, in order of execution."""
    last_use = last_uses(timeline)
    released = [var for var in last_use if var in planned]
    released.sort(key=lambda var: last_use[var].end)
    return tuple(
        Release(step.end, step.op.label, tuple(sorted(group)))
        for step, group in groupby(released, last_use.__getitem__)
    )
