"""Which index did ONNX Runtime give to each node of a graph that it loaded and dumped?

A node of the file has its place in the file. Functions are inlined one after the other,
by the place of the node that called them, and their nodes come after all of the file's
(seen in the profile's ``node_index``, 1.31.1). Both execution orders go by that index.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from memplan_cli.ir import Block, Op, Program

Rank = tuple[int, int, int]

_FROM_FILE, _INLINED, _INSERTED = range(3)


def by_index(program: Program, dump: GraphProto, source: GraphProto) -> Program:
    """Return a dumped program with the ops of every block by the index of their nodes.

    Ops of such a program may stand before what they read: only the runtime's own orders
    (`order.ORDERS`) make a run of it.

    Args:
        program: the dump, as it was read.
        dump: the graph that the runtime wrote with optimisation off.
        source: the graph that it had loaded.
    """
    return replace(program, body=_block(program.body, dump, source))


def _block(block: Block, dump: GraphProto, source: GraphProto) -> Block:
    ranks = _ranks(dump, source)
    twins = {name: node for node in source.node for name in node.output if name}
    ops = [_op(op, dump.node[op.source], twins) for op in block.ops]
    return replace(block, ops=tuple(sorted(ops, key=lambda op: ranks[op.source])))


def _op(op: Op, node: NodeProto, twins: dict[str, NodeProto]) -> Op:
    twin = next((twins[name] for name in node.output if name in twins), None)
    if not op.bodies or twin is None or twin.op_type != node.op_type:
        return op
    pairs = zip(op.bodies, subgraphs(node), subgraphs(twin), strict=True)
    return op._replace(
        bodies=tuple(_block(b, ours, theirs) for b, (_, ours), (_, theirs) in pairs)
    )


def _ranks(dump: GraphProto, source: GraphProto) -> list[Rank]:
    """Return for each node of the dump what its index is ordered by."""
    here = {
        name: (index, node) for index, node in enumerate(source.node) for name in node.output
    }
    known = {*here, *(value.name for value in source.input)}
    known.update(tensor.name for tensor in source.initializer)
    caller: dict[str, int] = {}
    ranks: list[Rank] = [(_INSERTED, 0, place) for place in range(len(dump.node))]
    for place in range(len(dump.node) - 1, -1, -1):
        node = dump.node[place]
        twin = next((here[name] for name in node.output if name in here), None)
        if twin is not None and twin[1].op_type == node.op_type:
            ranks[place] = (_FROM_FILE, twin[0], 0)
            continue
        # Backwards from a value of the file through values that only the inlining made.
        callers = [caller[name] for name in node.output if name in caller]
        if twin is not None:
            callers.append(twin[0])
        if callers:
            ranks[place] = (_INLINED, min(callers), place)
            caller.update((name, min(callers)) for name in node.input if name not in known)
    return ranks
