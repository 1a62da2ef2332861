"""The index that ONNX Runtime gave to each node of a graph that it loaded and dumped.

Both execution orders go by that index, and a dump does not state it. It is reconstructed:

1. Nodes of the file have the indices of their places in the file.
2. Nodes of inlined functions follow. ONNX Runtime inlines in rounds: first all calls of the
   file's nodes in index order, each appending the nodes of its body, then all calls among
   the appended nodes, and so on (core/framework/graph_partitioner.cc; confirmed by
   ``node_index`` in profiles).
3. Nodes that the runtime inserts itself (Casts) come last.

The inlining is repeated here, with the names that ONNX Runtime gives to the values of a body: a prefix of
the call and the name in the body. By these names, a node of the dump is one of the repeated inlining.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from typing import TYPE_CHECKING

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.functions import Definitions, definitions_of, kind_of
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.runtime.simulate.planner import default_order

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.core.program import Op, Program, Var, VarId
    from memplan_cli.onnx_io.functions import Kind

_Product = tuple["Kind", str]
"""The operator of a node and the name of one of its outputs, by which the node is found in another graph."""

_OTHER_PRECISION = "InsertedPrecisionFreeCast_"
"""ONNX Runtime puts this before the name of a float16 value that it computes in float32."""


def in_index_order(program: Program, dump: GraphProto, source: ModelProto) -> Program:
    """Return a dumped program with the ops of every block in the order of their node indices.

    The indices are reconstructed from ``source`` (see above). In their order, an op may come before
    the ops that it reads from, so the result is no valid program yet. It is only an argument for the
    runtime's execution orders (`planner.ORDERS`), which start from this order and make a valid one.

    Args:
        program: the dump as a program.
        dump: the graph that the runtime wrote, without optimization.
        source: the model that the runtime had loaded; its functions are not inlined.
    """
    dtypes = {var.name: var.dtype for var in program.vars.values()}
    sorter = _Sorter(definitions_of(source), dtypes, program.vars)
    body = sorter.sorted_block(program.body, dump.node, source.graph.node)
    return replace(program, body=body)


@dataclass(frozen=True, slots=True)
class _Sorter:
    """Sorts the ops of a dump by their node indices.

    Attributes:
        definitions: the functions that nodes may call.
        dtypes: by name in the dump.
        variables: of the dump.
    """

    definitions: Definitions
    dtypes: Mapping[str, str]
    variables: Mapping[VarId, Var]

    def sorted_block(
        self,
        block: Block,
        dumped_nodes: Sequence[NodeProto],
        original_nodes: Sequence[NodeProto],
    ) -> Block:
        """Return a block with its ops, and those of its bodies, in the order of their node indices.

        ONNX Runtime's execution orders start from the indices that nodes have after the inlining, which the
        dump has lost. So the inlining of the original nodes is repeated. A dumped node has the index of the
        repeated node with which it shares a product: the same operator and the same output name.

        Dumped nodes without such an index come last, in the order of `_in_insertion_order`: the runtime
        has inserted them, or inlined a function whose body is not known. Their bodies stay in the order of
        the dump.

        Args:
            block: the block; ``source`` of an op is the place of its node in ``dumped_nodes``.
            dumped_nodes: the nodes of the block, as the runtime wrote them.
            original_nodes: its nodes in the model, before inlining.
        """
        # A call whose products are in the dump was not inlined.
        dumped_products = {product for node in dumped_nodes for product in _products(node)}
        nodes = self._inlined(original_nodes, dumped_products)
        index_of = {
            product: index for index, node in enumerate(nodes) for product in _products(node)
        }
        indexed: list[tuple[int, Op]] = []
        inserted: list[Op] = []
        for op in block.ops:
            # All products of a node have its index. Unused outputs may be missing in one of the graphs.
            products = _products(dumped_nodes[op.source])
            index = next((index_of[p] for p in products if p in index_of), None)
            if index is None:
                inserted.append(op)
            else:
                indexed.append((index, op))
        ops = [
            self._with_sorted_bodies(op, dumped_nodes[op.source], nodes[index])
            for index, op in sorted(indexed, key=itemgetter(0))
        ]
        last_ops = _in_insertion_order(inserted, ops, self.variables)
        return replace(block, ops=(*ops, *last_ops))

    def _with_sorted_bodies(self, op: Op, dumped: NodeProto, original: NodeProto) -> Op:
        """Return an op with its bodies sorted, given its dumped node and the node with the same index.

        Both nodes have the same operator, and so the same subgraphs.
        """
        original_graphs = dict(subgraphs(original))
        bodies = tuple(
            self.sorted_block(body, graph.node, original_graphs[name].node)
            for body, (name, graph) in zip(op.bodies, subgraphs(dumped), strict=True)
        )
        return op._replace(bodies=bodies)

    def _inlined(
        self, original_nodes: Sequence[NodeProto], dumped: Collection[_Product]
    ) -> list[NodeProto]:
        """Return the nodes of a graph in the order of the indices that ONNX Runtime gives them.

        These are the original nodes, and then those of each function body that it inlines. A call of a
        function keeps its index, although the call itself is gone.

        Values in a body are renamed as ONNX Runtime does it: they get the prefix ``_inlfunc_<operator>``.
        If the graph has that prefix already, it becomes ``_inlfunc_<operator>_token_<number>``; the
        numbers are counted for all functions of the graph together (``Graph::GenerateNodeName``,
        core/graph/graph.cc). The original nodes are not changed.

        Args:
            original_nodes: the nodes before inlining.
            dumped: what the nodes of the dump produce. A node whose product is among them was not inlined.
        """
        nodes = list(original_nodes)
        prefixes: set[str] = set()
        numbers = count()
        for node in nodes:  # also those that this loop appends: a body may call functions
            if any(product in dumped for product in _products(node)):
                continue
            body = self.definitions.of_call(node, [self._dtype(name) for name in node.input])
            # No call: the runtime removed the node, such as a Constant or a Cast.
            if body is None:
                continue
            base = prefix = f"_inlfunc_{node.op_type}"
            while prefix in prefixes:
                prefix = f"{base}_token_{next(numbers)}"
            prefixes.add(prefix)
            # A call may leave optional inputs and outputs out: such inputs are empty in the body too,
            # such outputs get the prefix like other values of the body.
            outer_names = dict.fromkeys(body.inputs, "")
            outer_names |= zip(body.inputs, node.input, strict=False)
            outputs = zip(body.outputs, node.output, strict=False)
            outer_names |= {inner: outer for inner, outer in outputs if outer}
            _rename_values(body.nodes, outer_names, prefix)
            nodes += body.nodes
        return nodes

    def _dtype(self, name: str) -> str:
        """Return the dtype of a value, empty if it is not known."""
        is_float16 = _OTHER_PRECISION + name in self.dtypes
        return self.dtypes.get(name, "float16" if is_float16 else "")


def _products(node: NodeProto) -> list[_Product]:
    """Return the operator of a node with each of its outputs, by their names in the model.

    By these a node that the runtime dumped is found among the model's nodes. The dump has other names
    around an operator without a kernel for float16: if it computes ``y`` from ``x``, the runtime inserts
    two Casts.

        Cast:  x -> InsertedPrecisionFreeCast_x
        node:  InsertedPrecisionFreeCast_x -> InsertedPrecisionFreeCast_y
        Cast:  InsertedPrecisionFreeCast_y -> y

    The node's output is ``y`` in the model, so the prefix is removed.
    """
    kind = kind_of(node)
    if node.op_type == "Cast":  # without its prefix the first Cast would seem to compute ``x``
        return [(kind, node.output[0])]
    return [(kind, name.removeprefix(_OTHER_PRECISION)) for name in node.output if name]


def _rename_values(
    nodes: Iterable[NodeProto], outer_names: Mapping[str, str], prefix: str
) -> None:
    """Rename what the nodes of an inlined body read and write, subgraphs included, in place.

    Only products of nodes are compared afterwards, so declarations of subgraphs (inputs, outputs,
    initializers) keep their names.

    Args:
        nodes: of the body.
        outer_names: the arguments of the call, by their names in the body.
        prefix: for all other names.
    """
    for node in nodes:
        for values in (node.input, node.output):
            values[:] = [name and outer_names.get(name, f"{prefix}_{name}") for name in values]
        for _, graph in subgraphs(node):
            _rename_values(graph.node, outer_names, prefix)


def _in_insertion_order(
    inserted: Sequence[Op], ops: Sequence[Op], variables: Mapping[VarId, Var]
) -> list[Op]:
    """Return the inserted ops in the order in which the runtime made them.

    Only for Casts is that order known: the runtime visits the ops of the graph without Casts once, in
    the order of ``ExecutionOrder.DEFAULT``. At each op that has no kernel for float16, it makes a Cast
    from float16 for each input, then a Cast to float16 for each output
    (core/optimizer/insert_cast_transformer.cc). Other inserted ops come last.

        without Casts:  x -> op1 -> op2
        with Casts:     x -> Cast -> op1 -> Cast to float16 -> Cast -> op2

    ``ops`` are the other ops of the block in index order, which the default order depends on.
    """
    casts = {op.outputs[0]: op for op in inserted if op.type == "Cast"}
    if not casts:
        return list(inserted)
    from_float16: dict[VarId, Op] = {}  # Casts by the result
    to_float16: dict[VarId, list[Op]] = defaultdict(list)  # Casts by the var that is cast
    for result, cast in casts.items():
        if variables[result].dtype == "float16":
            to_float16[cast.inputs[0]].append(cast)
        else:
            from_float16[result] = cast
    # The Casts in the order in which they were made. The key, the node's place in the dump, only lets a Cast
    # that several ops read count once.
    ordered: dict[int, Op] = {}
    for op in _default_order_without(casts, ops):
        input_casts = [from_float16[var] for var in op.inputs if var in from_float16]
        output_casts = [cast for var in op.outputs for cast in to_float16.get(var, ())]
        for cast in (*input_casts, *output_casts):
            ordered.setdefault(cast.source, cast)
    return [*ordered.values(), *(op for op in inserted if op.source not in ordered)]


def _default_order_without(casts: Mapping[VarId, Op], ops: Sequence[Op]) -> list[Op]:
    """Return ops in the default order of the graph without some Casts, which are given by their result."""

    def before_casts(var: VarId) -> VarId:
        """Return the value that Casts made a variable from."""
        while var in casts:
            var = casts[var].inputs[0]
        return var

    copies = [op._replace(inputs=tuple(before_casts(var) for var in op.inputs)) for op in ops]
    op_by_source = {op.source: op for op in ops}  # an op and its copy have one source
    return [op_by_source[copy.source] for copy in default_order(Block((), (), tuple(copies)))]
