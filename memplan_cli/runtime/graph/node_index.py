"""The index that ONNX Runtime gave to each node of a graph that it loaded and dumped.

A node of the file has its place in the file, nodes of inlined functions come after all of
the file's (`inlining`), and what the runtime inserted on its own comes last. Both execution
orders go by that index.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Block
from memplan_cli.runtime.graph.inlining import Dumped, laid_out
from memplan_cli.runtime.simulate.planner import default_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, ModelProto

    from memplan_cli.core.program import Op, Program, Var, VarId
    from memplan_cli.runtime.graph.inlining import Rank

_INSERTED = 1 << 62


def by_index(program: Program, dump: GraphProto, source: ModelProto) -> Program:
    """Return a dumped program with the ops of every block by the index of their nodes.

    Ops of such a program may stand before what they read: only the runtime's own orders
    (`order.ORDERS`) make a run of it.

    Args:
        program: the dump, as it was read.
        dump: the graph that the runtime wrote with optimisation off.
        source: the model that it had loaded, as it is written: calls not inlined.
    """
    dtypes = {var.name: var.dtype for var in program.vars.values()}
    whole = laid_out(dump, source, dtypes)
    _guess(whole)
    return replace(program, body=_block(program.body, whole, program.vars))


def _block(block: Block, dump: Dumped, types: Mapping[VarId, Var]) -> Block:
    ops = []
    for op in block.ops:
        inner = dump.bodies.get(op.source, ())
        if inner:
            pairs = zip(op.bodies, inner, strict=True)
            op = op._replace(bodies=tuple(_block(*pair, types) for pair in pairs))  # noqa: PLW2901
        ops.append(op)
    ranks = [rank or (_INSERTED, place) for place, rank in enumerate(dump.ranks)]
    ops.sort(key=lambda op: ranks[op.source])
    count = next((i for i, op in enumerate(ops) if ranks[op.source][0] == _INSERTED), len(ops))
    return replace(block, ops=(*ops[:count], *_inserted(ops[:count], ops[count:], types)))


def _inserted(
    ops: Sequence[Op], inserted: Sequence[Op], types: Mapping[VarId, Var]
) -> list[Op]:
    """Return what the runtime inserted in the order of its making.

    It goes once through the other ops, in the order of ``ExecutionOrder.DEFAULT``, and puts
    Casts before what has no kernel for float16, then behind it (as in
    core/optimizer/insert_cast_transformer.cc).
    """
    casts = {op.outputs[0]: op for op in inserted if op.type == "Cast"}
    behind: dict[VarId, list[Op]] = defaultdict(list)
    for var, cast in casts.items():
        if types[var].dtype == "float16":
            behind[cast.inputs[0]].append(cast)
    bare = [op._replace(inputs=tuple(_source(var, casts) for var in op.inputs)) for op in ops]
    real = {op.source: op for op in ops}
    made: dict[int, Op] = {}
    for each in default_order(Block((), (), tuple(bare))) if casts else ():
        op = real[each.source]
        near = [casts[var] for var in op.inputs if var in casts]
        near = [cast for cast in near if types[cast.outputs[0]].dtype != "float16"]
        near += [cast for var in op.outputs for cast in behind.get(var, ())]
        made.update((cast.source, cast) for cast in near if cast.source not in made)
    return [*made.values(), *(op for op in inserted if op.source not in made)]


def _source(var: VarId, casts: Mapping[VarId, Op]) -> VarId:
    """Return what a var is without the Casts that led to it."""
    while var in casts:
        var = casts[var].inputs[0]
    return var


def _guess(dump: Dumped) -> None:
    """Rank what came from function bodies that are not known: by the call that it leads to.

    Such are functions of the runtime's own, and those that it writes in another way than
    ONNX does: these are taken in the dump's order as a whole.
    """
    caller: dict[str, Rank] = {}
    strange = frozenset(dump.strange.values())
    other: set[Rank] = set()
    for place in range(len(dump.nodes) - 1, -1, -1):
        node, rank = dump.nodes[place], dump.ranks[place]
        if rank is None:
            calls = [caller[name] for name in node.output if name in caller]
            calls += [dump.strange[place]] if place in dump.strange else []
            # A Cast that no body has is one that the runtime inserted.
            if calls and (node.op_type != "Cast" or min(calls) in strange):
                call = min(calls)
                other.add(call)
                rank = dump.ranks[place] = (len(call), *call, place)
        if rank and rank[0]:
            for name in node.input:
                caller[name] = min(rank[1:-1], caller.get(name, rank[1:-1]))
        for body in dump.bodies.get(place, ()):
            _guess(body)
    for place, rank in enumerate(dump.ranks):
        if rank and rank[1:-1] in other:
            dump.ranks[place] = (*rank[:-1], place)
