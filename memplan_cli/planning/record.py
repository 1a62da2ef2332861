"""The plan of what was decided: each tensor's row, the order, the releases."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import release_ticks
from memplan_cli.core.compact.columns import Columns, Groups, Made, column, numbers
from memplan_cli.core.program import VarId, blocks, label, own_name
from memplan_cli.core.results.placements import ArenaFacts, BlockOrder, Placement, Release
from memplan_cli.core.results.plan import Plan
from memplan_cli.core.version import VERSION
from memplan_cli.planning.account import report_of
from memplan_cli.planning.print_log import refusals

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from memplan_cli.analysis.liveness import Timeline
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.program import Op, Program
    from memplan_cli.planning.decided import Decided
    from memplan_cli.settings.settings import Settings


def plan_of(decided: Decided) -> Plan:
    """Write decisions down as a plan."""
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
        report=report_of(decided, len(tensors) - refused),
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


def _placements(decided: Decided) -> Sequence[Placement]:
    needs, allocation = decided.needs, decided.allocation
    arenas = {arena.unit: (index, arena) for index, arena in enumerate(allocation.arenas)}
    live, pinned, vars_ = needs.live, needs.pinned, decided.program.vars
    lasting = {
        each.id: each.live
        for arena in (allocation.arenas if pinned else ())
        for each in arena.problem.buffers
        if VarId(each.id) in pinned
    }
    known = [vars_[identity] for identity in needs.sizes]
    buffers = [allocation.buffers[identity] for identity in needs.sizes]
    places = [arenas[size.unit if size.symbols else "1"] for size in needs.sizes.values()]
    ranges = [
        lasting[buffer] if identity in pinned else live[identity]
        for identity, buffer in zip(needs.sizes, buffers, strict=True)
    ]
    layouts = list(zip([arena for _, arena in places], buffers, strict=True))
    return Columns(
        Placement,
        [var.name for var in known],
        column([var.block for var in known]),
        column([var.dtype for var in known]),
        column([var.shape or () for var in known]),
        numbers(size.coefficient for size in needs.sizes.values()),
        numbers(index for index, _ in places),
        numbers(arena.layout.offsets[buffer] for arena, buffer in layouts),
        column([arena.slots.get(buffer) for arena, buffer in layouts]),
        numbers(first for first, _ in ranges),
        numbers(last for _, last in ranges),
        column(
            [
                None if v.id == str(buffer) else buffer
                for v, buffer in zip(known, buffers, strict=True)
            ]
        ),
        column([pinned.get(identity) for identity in needs.sizes]),
    )


def _orders(program: Program) -> Iterator[BlockOrder]:
    for block in blocks(program.body):
        count = Counter(op.name for op in block.ops)
        names = [own_name(op.name) if count[op.name] == 1 else "" for op in block.ops]
        if all(names):
            yield BlockOrder(block.path, tuple(names))
        else:
            sources = numbers(op.source for op in block.ops)
            yield BlockOrder(block.path, Made(_entry, column(names), sources))


def _entry(name: str, source: int) -> str:
    """Return a node in an order: its name if no other has it, or its index in the file."""
    return name or f"#{source}"


def releases(timeline: Timeline, planned: Container[VarId]) -> Sequence[Release]:
    """Return, in order of execution, the planned tensors that die after each node."""
    last = release_ticks(timeline)
    dying = [var for var in last if var in planned]
    dying.sort(key=last.__getitem__)
    ticks = numbers(tick for tick, _ in groupby(dying, last.__getitem__))
    tensors = Groups(sorted(group) for _, group in groupby(dying, last.__getitem__))
    ops = [timeline.ending[tick] for tick in ticks]
    return Columns(Release, ticks, _labels(ops), tensors)


def _labels(ops: Sequence[Op]) -> Sequence[str]:
    """Return the label of each op, made when read where there are no names.

    Of what they are made of alone: a plan must not keep its program.
    """
    names = [own_name(op.name) for op in ops]
    if all(names):
        return names
    sources = numbers(op.source for op in ops)
    return Made(label, column(names), column([op.type for op in ops]), sources)
