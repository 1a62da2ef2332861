"""The plan of what was decided: each tensor's row, the order, the releases."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, cast

from memplan_cli.analysis.liveness import release_ticks
from memplan_cli.core.program import VarId, blocks, own_name
from memplan_cli.core.results.placements import ArenaFacts, BlockOrder, Placement, Release
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.version import VERSION
from memplan_cli.planning.account import report_of
from memplan_cli.planning.print_log import refusals

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.program import Program
    from memplan_cli.planning.account import FoldableTensors
    from memplan_cli.planning.decided import Decided
    from memplan_cli.settings.settings import Settings


def plan_of(decided: Decided, foldable_tensors: FoldableTensors) -> Plan:
    """Return the plan file's content: what was decided, and the report about it."""
    tensors = _placements(decided)
    refused = sum(1 for _ in refusals(tensors))
    return Plan(
        version=VERSION,
        graph_sha256=decided.source.graph_sha256,
        settings=settings_json(decided.settings),
        order=tuple(_orders(decided.program)),
        arenas=tuple(
            ArenaFacts(
                index, arena.unit, arena.layout.height, arena.bound, arena.problem.alignment
            )
            for index, arena in enumerate(decided.allocation.arenas)
        ),
        tensors=tensors,
        releases=releases(decided.needs.timeline, decided.needs.unpinned),
        report=report_of(decided, len(tensors) - refused, foldable_tensors),
    )


def settings_json(settings: Settings) -> Json:
    """Return the settings as the plan file holds them: every one, by its YAML name."""
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
        "bounds": {n: f"{low}..{high}" for n, (low, high) in sorted(settings.bounds.items())},
        "shapes": {name: list(shape) for name, shape in sorted(settings.shapes.items())},
        "profile_shapes": settings.profile_shapes,
        "order": settings.order,
        # Plans are compared by their digest: what is not asked for is not said.
        **({"fold_constants": True} if settings.fold_constants else {}),
        **({"notes": settings.notes} if settings.notes != "model" else {}),
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


def _placements(decided: Decided) -> tuple[Placement, ...]:
    needs, allocation = decided.needs, decided.allocation
    arenas = {arena.unit: (index, arena) for index, arena in enumerate(allocation.arenas)}
    live, pinned, vars_ = needs.live, needs.pinned, decided.program.vars
    lasting = {
        each.id: each.live
        for arena in (allocation.arenas if pinned else ())
        for each in arena.problem.buffers
        if VarId(each.id) in pinned
    }
    tensors: list[Placement] = []
    for identity, size in needs.sizes.items():
        var, buffer = vars_[identity], allocation.buffers[identity]
        index, arena = arenas[size.unit if size.symbols else "1"]
        first, last = lasting[buffer] if identity in pinned else live[identity]
        tensors.append(
            Placement(
                var.name,
                var.block,
                var.dtype,
                cast("tuple[int | str, ...]", var.shape or ()),
                size.coefficient,
                index,
                arena.layout.offsets[buffer],
                arena.slots.get(buffer),
                first,
                last,
                None if identity == str(buffer) else buffer,
                pinned.get(identity),
            )
        )
    return tuple(tensors)


def _orders(program: Program) -> Iterator[BlockOrder]:
    for block in blocks(program.body):
        count = Counter(op.name for op in block.ops)
        nodes = (
            (own_name(op.name) if count[op.name] == 1 else "") or f"#{op.source}"
            for op in block.ops
        )
        yield BlockOrder(block.path, tuple(nodes))


def releases(timeline: Timeline, planned: Container[VarId]) -> tuple[Release, ...]:
    """Return, in order of execution, the planned tensors that die after each node."""
    last = release_ticks(timeline)
    dying = [var for var in last if var in planned]
    dying.sort(key=last.__getitem__)
    return tuple(
        Release(tick, timeline.ending[tick].label, tuple(sorted(group)))
        for tick, group in groupby(dying, last.__getitem__)
    )
