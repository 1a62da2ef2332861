"""Precedence between the ops of a block: edges, and what a runtime adds to them.

Random ops draw from one generator. A runtime may change a sequence where it stands. And
ONNX Runtime writes the running statistics that a BatchNormalization in training mode
gives over those that it reads, unless they are results of the graph: whoever reads the old
ones or the new ones reads one place in memory, and must not change places with another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import VarId, blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.program import Block, Op

_NONE = -1
"""Stands for no op."""

_STATISTICS = ((3, 1), (4, 2))
"""Where a BatchNormalization reads its running mean and variance, and gives the new ones."""

Edges = tuple[tuple[int, ...], ...]
"""For each op of a block, by its index, the indices of others."""


def predecessors(block: Block) -> Edges:
    """Return which ops each op of a block has to follow, ascending."""
    producer = block.dataflow.producer
    last: dict[str, int] = {}
    changing = overwritten(block)
    preds = []
    for index, (op, read) in enumerate(zip(block.ops, block.dataflow.reads, strict=True)):
        before = {producer.get(var, _NONE) for var in read}
        before.discard(_NONE)
        kinds = _kept_in_turn(op)
        if changing:
            kinds += tuple(dict.fromkeys(changing[var] for var in read if var in changing))
        for kind in kinds:
            if kind in last:
                before.add(last[kind])
            last[kind] = index
        preds.append(tuple(sorted(before)) if len(before) > 1 else tuple(before))
    return tuple(preds)


def successors(preds: Sequence[Iterable[int]]) -> Edges:
    """Return which ops have to follow each op, ascending."""
    succs: list[list[int]] = [[] for _ in preds]
    for op, before in enumerate(preds):
        for pred in before:
            succs[pred].append(op)
    return tuple(map(tuple, succs))


def overwritten(block: Block) -> Mapping[VarId, VarId]:
    """Return the vars that may be written over while others read them, old and new ones.

    Each is mapped to the oldest var of its bytes.
    """
    oldest: dict[VarId, VarId] = {}
    for inner in blocks(block):
        for op in inner.ops:
            if op.type != "BatchNormalization":
                continue
            for read, made in _STATISTICS:
                new = op.outputs[made] if made < len(op.outputs) else VarId("")
                if new and new not in block.outputs:
                    old = op.inputs[read]
                    oldest[new] = oldest.setdefault(old, old)
    return oldest


def _kept_in_turn(op: Op) -> tuple[str, ...]:
    """Name the kinds of ops that this one must not overtake."""
    kinds = ("random",) if op.is_random else ()
    if op.type.startswith("Sequence") or (op.bodies and _holds_sequence_ops(op)):
        kinds = (*kinds, "sequence")
    return kinds


def _holds_sequence_ops(op: Op) -> bool:
    inside = [inner for body in op.bodies for block in blocks(body) for inner in block.ops]
    return any(inner.type.startswith("Sequence") for inner in inside)
