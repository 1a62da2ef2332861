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

_INSERTED_CAST_MARK = "InsertedPrecisionFreeCast_"
"""ONNX Runtime puts this before the name of a float16 value for its float32 value, between a kernel that has no
float16 and a Cast that the runtime inserts."""


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
    """Return a block of a dump with its ops, and those of its bodies, in the order of their node indices.

    A dump does not have the indices. Nodes of the file come first, then those of inlined functions, and last the
    Casts that ONNX Runtime inserted around kernels without float16.

    Args:
        block: the dump as ops; ``source`` of an op is the place of its node in ``dumped_nodes``.
        dumped_nodes: the nodes of the dump.
        file_nodes: the nodes of the same graph in the file. A dumped node is one of them if both have the same
            operator and an output with the same name.
    """
    # By operator and output name, the key by which a dumped node is found in the file (`_products`).
    file_index = {
        product: index for index, node in enumerate(file_nodes) for product in _products(node)
    }
    from_file: list[tuple[int, Op]] = []  # each with its index in the file
    inlined: list[Op] = []
    inserted: dict[VarId, Op] = {}  # the inserted Casts, by their float32 value
    for op in block.ops:
        dumped = dumped_nodes[op.source]
        # Of several outputs one is enough: an unused output may be missing in the dump or in the file.
        indices = [file_index[key] for key in _products(dumped) if key in file_index]
        float32_value = _value_of_inserted_cast(op)  # None for all other ops
        if indices:
            in_file = file_nodes[indices[0]]
            from_file.append((indices[0], _with_sorted_bodies(op, dumped, in_file)))
        elif float32_value is not None:
            inserted[float32_value] = op
        else:
            inlined.append(op)  # the bodies of such an op keep the order of the dump
    file_ops = [op for _, op in sorted(from_file, key=itemgetter(0))]
    # ONNX Runtime inserts the Casts in the order of the first ops that read or write their float32 values.
    casts = _in_order_of_insertion(inserted, block.ops)
    return replace(block, ops=(*file_ops, *inlined, *casts))


def _with_sorted_bodies(op: Op, dumped: NodeProto, in_file: NodeProto) -> Op:
    """Return an op with the ops in its bodies in the order of the file's nodes (`_sorted_block`).

    ``dumped`` is the op's node in the dump, ``in_file`` the same node in the file.
    """
    # ``op.bodies`` are in the order of the subgraphs of ``dumped``. In the file, a subgraph is found by its name.
    file_graphs = dict(subgraphs(in_file))
    bodies = tuple(
        _sorted_block(body, graph.node, file_graphs[name].node)
        for body, (name, graph) in zip(op.bodies, subgraphs(dumped), strict=True)
    )
    return op._replace(bodies=bodies)


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
    return [(kind, name.removeprefix(_INSERTED_CAST_MARK)) for name in node.output if name]


def _value_of_inserted_cast(op: Op) -> VarId | None:
    """Return the float32 value of a Cast that the runtime inserted; None for any other op.

    The value is the output of a Cast before a kernel without float16, and the input of a Cast after such a
    kernel. Its name is marked, behind the path of its block.
    """
    if op.type != "Cast":
        return None
    return next((var for var in (*op.inputs, *op.outputs) if _INSERTED_CAST_MARK in var), None)


def _in_order_of_insertion(casts: dict[VarId, Op], ops: Sequence[Op]) -> list[Op]:
    """Return the Casts that the runtime inserted, in the order in which it made them.

    The runtime visits all other ops, nearly in the order of the dump. At an op without a kernel for float16, it
    makes a Cast for each input, and then one for each output (core/optimizer/insert_cast_transformer.cc). A value
    has one Cast, made at the first op that reads or writes its float32 value.

    Args:
        casts: the inserted Casts, by their float32 value.
        ops: the ops of the dump, Casts included.
    """
    made: dict[VarId, Op] = {}
    for op in ops:
        if _value_of_inserted_cast(op) not in casts:
            for var in (*op.inputs, *op.outputs):
                if var in casts:
                    made.setdefault(var, casts[var])
    # Casts whose value only bodies of ops read come last.
    return list((made | casts).values())
