"""Removal of the copies that a program's peak does not need.

Choosing works on estimates and never takes a copy back that others have made needless: each
is left out in turn, the dearest first, and stays out where the peak stays under its limit.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import op_cost
from memplan_cli.features.recompute.build import mentions, with_names
from memplan_cli.features.recompute.solve import live_at
from memplan_cli.ordering.terms import Terms

if TYPE_CHECKING:
    from memplan_cli.core.program import Op, Program, VarId
    from memplan_cli.features.recompute.build import Copied
    from memplan_cli.features.recompute.solve import Trial

_WORK = 200_000
"""Ops that may be measured in all; with more copies than that allows none is left out."""


def pruned(trial: Trial, base: Program, terms: Terms, budget: int) -> Trial:
    """Return a trial with the copies that keep it under its peak or the budget.

    Args:
        trial: A program with copies.
        base: The program without any; what it names keeps its name.
        terms: Of the base program.
        budget: Bytes that the peak may have; where the trial has more, it may have those.
    """
    limit = max(trial.peak, budget)
    if len(trial.copied.copies) * len(trial.copied.program.body.ops) > _WORK:
        return trial
    variables = trial.copied.program.vars
    dearest = sorted(trial.copied.copies, key=lambda op: -op_cost(op, variables).work)
    for op in dearest:
        if base.vars.keys().isdisjoint(filter(None, op.outputs)):
            trial = _tried(trial, op, terms, limit)
    return trial


def _tried(trial: Trial, op: Op, terms: Terms, limit: int) -> Trial:
    fewer = _without(trial.copied, op)
    if fewer is None:
        return trial
    own = Terms(fewer.sizes, terms.pinned, terms.aliasing)
    peak = int(live_at(fewer.program, own).max(initial=0))
    if peak > limit:
        return trial
    variables = fewer.program.vars
    work = sum(op_cost(each, variables).work for each in fewer.copies)
    if work >= trial.work and peak > trial.peak:
        return trial  # bytes for nothing
    return replace(trial, copied=fewer, peak=peak, work=work)


def _without(copied: Copied, op: Op) -> Copied | None:
    """Return a program in which the consumers of a copy read its twin before it, if it has one."""
    ops = copied.program.body.ops
    at = next((at for at, each in enumerate(ops) if each.outputs == op.outputs), None)
    if at is None or op.bodies or set(op.outputs) & set(copied.program.body.outputs):
        return None
    twin = next((e for e in ops[:at] if e.source == op.source and e.type == op.type), None)
    if twin is None:
        return None
    names = {new: old for new, old in zip(op.outputs, twin.outputs, strict=True) if new}
    if not all(names.values()):
        return None
    kept = [with_names(each, names) if i != at else None for i, each in enumerate(ops)]
    _drop_unread(kept, copied)
    return _rebuilt(copied, kept)


def _drop_unread(ops: list[Op | None], copied: Copied) -> None:
    """Drop the copies that nothing reads any more, the last one first."""
    results = set(copied.program.body.outputs)
    consumers = Counter(var for op in ops if op is not None for var in mentions(op))
    copies = {op.outputs for op in copied.copies}
    for at in range(len(ops) - 1, -1, -1):
        op = ops[at]
        if op is None or op.outputs not in copies:
            continue
        if not any(consumers[var] or var in results for var in op.outputs if var):
            consumers.subtract(mentions(op))
            ops[at] = None


def _rebuilt(copied: Copied, kept: list[Op | None]) -> Copied:
    program = copied.program
    gone: set[VarId] = set()
    for before, after in zip(program.body.ops, kept, strict=True):
        if after is None:
            gone.update(before.outputs)
    copies = {op.outputs for op in copied.copies}
    ops = tuple(op for op in kept if op is not None)
    vars_ = {name: var for name, var in program.vars.items() if name not in gone}
    places = zip(copied.places, kept, strict=True)
    return replace(
        copied,
        program=program.with_ops(ops, vars_),
        sizes={name: size for name, size in copied.sizes.items() if name not in gone},
        places=tuple(place for place, op in places if op is not None),
        copies=tuple(op for op in ops if op.outputs in copies),
    )
