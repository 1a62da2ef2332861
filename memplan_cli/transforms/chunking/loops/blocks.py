"""Blocks of a program found, replaced, and rid of what nothing reads any longer."""

from __future__ import annotations

from dataclasses import replace

from memplan_cli.analysis.dataflow import op_reads
from memplan_cli.core.program import Block, Op, Program, VarId, blocks, walk


def block_at(program: Program, path: str) -> Block:
    """Return the block of a path."""
    return next(block for block in blocks(program.body) if block.path == path)


def part_of(program: Program, path: str) -> Program:
    """Return a block as a program of its own; what it captures no op of it makes."""
    return replace(program, body=block_at(program, path))


def with_block(block: Block, path: str, new: Block) -> Block:
    """Return a block with the one of a path in place of that which it has."""
    if block.path == path:
        return new
    ops = tuple(
        op._replace(bodies=tuple(with_block(body, path, new) for body in op.bodies))
        if op.bodies
        else op
        for op in block.ops
    )
    return replace(block, ops=ops)


def without_unread(program: Program, before: Program) -> Program:
    """Return a program without ops and vars that were read before and are no longer."""
    was_read = {var for _, op in walk(before.body) for var in op_reads(op)}
    ops = list(program.body.ops)
    while True:
        read = {*program.body.outputs, *(var for op in ops for var in op_reads(op))}
        left = [op for op in ops if not _is_idle(op, read, was_read)]
        if len(left) == len(ops):
            break
        ops = left
    body = replace(program.body, ops=tuple(ops))
    used = {*body.inputs, *program.overridable}
    for block, op in walk(body):
        used.update(op.inputs, op.outputs, block.outputs)
        used.update(var for inner in op.bodies for var in (*inner.inputs, *inner.outputs))
    gone = was_read | {var for var in program.vars if var not in before.vars}
    vars_ = {
        var: facts for var, facts in program.vars.items() if var in used or var not in gone
    }
    return replace(program, body=body, vars=vars_)


def _is_idle(op: Op, read: set[VarId], was_read: set[VarId]) -> bool:
    made = {var for var in op.outputs if var}
    return made.isdisjoint(read) and not made.isdisjoint(was_read)
