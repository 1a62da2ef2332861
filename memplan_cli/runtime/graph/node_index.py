"""The indices of the nodes in a graph that ONNX Runtime has loaded without optimization and dumped.

``ExecutionOrder.PRIORITY_BASED`` goes by these indices. A dump is in the order of ``ExecutionOrder.DEFAULT``, and
does not state them. In their order there are:

1. nodes of the file, in the order of the file;
2. nodes of inlined functions;
3. Casts that ONNX Runtime inserts itself around kernels that have no float16.
"""

from __future__ import annotations

from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.functions import kind_of
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Block, Op, Program, VarId
    from memplan_cli.onnx_io.functions import Kind

_Product = tuple["Kind", str]
"""The operator of a node and the name of one of its outputs, by which the node is found in another graph."""

_OTHER_PRECISION = "InsertedPrecisionFreeCast_"
"""ONNX Runtime puts this before the name of a float16 value that it computes in float32."""


def in_index_order(program: Program, dump: GraphProto, source: ModelProto) -> Program:
    """Return a dumped program with the ops of every block in the order of their node indices.

    An op may come before ops that it reads from, so the result is no valid program. It is an argument for
    `planner.priority_order`, which makes a valid order of it. Nodes of functions keep the order of the dump
    among each other, as their own indices are not known.

    Args:
        program: the dump as a program.
        dump: the graph that the runtime wrote, without optimization.
        source: the model that the runtime had loaded; its functions are not inlined.
    """
    body = _sorted_block(program.body, dump.node, source.graph.node)
    return replace(program, body=body)


def _sorted_block(
    block: Block, dumped_nodes: Sequence[NodeProto], file_nodes: Sequence[NodeProto]
) -> Block:
    """Return a block with its ops, and those of its bodies, in the order of their node indices.

    Nodes of the file come first, in its order, then those of inlined functions, then inserted Casts. ``source``
    of an op is the place of its node in ``dumped_nodes``. An op is a node of the file if both have a product in
    common. Bodies of other ops stay as they are.
    """
    index_of = {p: index for index, node in enumerate(file_nodes) for p in _products(node)}
    indexed: list[tuple[int, Op]] = []  # the nodes of the file
    inlined: list[Op] = []
    for op in block.ops:
        dumped = dumped_nodes[op.source]
        # Unused outputs may be missing in one of the graphs.
        index = next((index_of[p] for p in _products(dumped) if p in index_of), None)
        if index is not None:
            file_graphs = dict(subgraphs(file_nodes[index]))
            bodies = tuple(
                _sorted_block(body, graph.node, file_graphs[name].node)
                for body, (name, graph) in zip(op.bodies, subgraphs(dumped), strict=True)
            )
            indexed.append((index, op._replace(bodies=bodies)))
        elif _inserted_cast_value(op) is None:  # inserted Casts follow at the end
            inlined.append(op)
    file_ops = [op for _, op in sorted(indexed, key=itemgetter(0))]
    return replace(block, ops=(*file_ops, *inlined, *_inserted_casts(block.ops)))


def _products(node: NodeProto) -> list[_Product]:
    """Return the operator of a node with each of its outputs, by their names in the model.

    The dump has other names around an operator without a kernel for float16. If it computes ``y`` from ``x``,
    the runtime inserts two Casts:

        Cast:  x -> InsertedPrecisionFreeCast_x
        node:  InsertedPrecisionFreeCast_x -> InsertedPrecisionFreeCast_y
        Cast:  InsertedPrecisionFreeCast_y -> y

    The node's output is ``y`` in the model, so the prefix is removed. Casts keep it: the first one would seem to
    compute ``x``.
    """
    kind = kind_of(node)
    if node.op_type == "Cast":
        return [(kind, node.output[0])]
    return [(kind, name.removeprefix(_OTHER_PRECISION)) for name in node.output if name]


def _inserted_cast_value(op: Op) -> VarId | None:
    """Return the float32 value that a Cast of the runtime reads or writes; None for any other op."""
    if op.type != "Cast":
        return None
    return next((var for var in (*op.inputs, *op.outputs) if _OTHER_PRECISION in var), None)


def _inserted_casts(ops: Sequence[Op]) -> list[Op]:
    """Return the Casts among the ops of a dump that the runtime inserted, in the order in which it made them.

    It visits all other ops, nearly in the order of the dump. At each op without a kernel for float16, it makes
    a Cast for each input, and then one for each output (core/optimizer/insert_cast_transformer.cc). An op that
    reads the float32 value of an earlier Cast gets no other Cast.
    """
    cast_of = {value: op for op in ops if (value := _inserted_cast_value(op))}
    casts: dict[VarId, Op] = {}
    for op in ops:
        if _inserted_cast_value(op) is None:
            casts |= {var: cast_of[var] for var in (*op.inputs, *op.outputs) if var in cast_of}
    # Casts whose value no other op of the block reads or writes come last.
    return list((casts | cast_of).values())
