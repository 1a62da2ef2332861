"""Large tensors that two matrix products read along different axes, such as gradients of logits.

A training step reads the gradient G of its logits by rows for ``dX = G W'``, and by columns
for ``dW = X' G``. No region can contain both products: one needs chunks of rows, the other
chunks of columns. So the second product gets a copy of the ops that compute G, which can be
cut along columns:

    X ---- MatMul ---- LogSoftmax ---- ... ---- G ---- dX = G W'       chunks of rows
            \\              | max, -log(sum)       \\
             \\             v                       (X' G replaced)
              MatMul' ---- Sub, Add ---- ... ----- G' --- dW = X' G'   chunks of columns

LogSoftmax mixes columns, so its copy is computed from statistics of rows. ONNX Runtime
computes ``(x - max(x)) - log(sum)`` in this order. At the maximum the result is ``-log(sum)``,
the largest element of the row. So ReduceMax of the input and of the output give both
statistics without rounding, and ``(x - max) + (-log(sum))`` has the bits of LogSoftmax.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.analysis.cost import total_cost
from memplan_cli.core.operators import Family, operator, qualified_name
from memplan_cli.core.program import Op, VarId
from memplan_cli.features.chunking.axes.split import Role
from memplan_cli.features.chunking.writer import ProgramWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.program import Attribute, Program
    from memplan_cli.features.chunking.axes.split import Dims, Node
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.stage import Stage

_BUDGET_DIVISOR = 4
"""Tensors of at most the budget divided by this are not computed twice."""

_TENSOR_DIVISOR = 4
"""Inputs of less than the tensor divided by this are not computed again, but read whole."""

_MAX_COPIED_TENSORS = 32

_REDUCE_AXES_INPUT_OPSET = 18
"""The opset since which ReduceMax has its axes as an input."""

_SUFFIX = "__columns"


def stage_with_copies(stage: Stage, budget: int) -> Stage | None:
    """Return the program of `copy_for_products` as the next stage; None if nothing is copied."""
    copied = copy_for_products(stage.graph, budget)
    if copied is None:
        return None
    return stage.rewritten(
        copied.program,
        copied.constants,
        kept_vars=stage.graph.kept_vars,
        added_work=total_cost(copied.program).work - total_cost(stage.graph.program).work,
    )


@dataclass(frozen=True, slots=True)
class CopiedProgram:
    """A program in which products read copies of tensors that are computed a second time.

    Attributes:
        constants: the values of its new constants.
    """

    program: Program
    constants: Mapping[VarId, Dims] = field(default_factory=dict)


def copy_for_products(graph: Graph, budget: int) -> CopiedProgram | None:
    """Return a program in which the ops that compute a large input of a product are copied.

    Two products may read a tensor along different axes. One of them then reads a copy of the tensor,
    so that each can be in chunks together with the ops that compute its own input.

    None if no product needs that (`_chains_to_copy`). Tensors far below the budget, in bytes, are not
    computed twice.
    """
    chains = _chains_to_copy(graph, budget)
    if not chains:
        return None
    writer = _CopyWriter(graph)
    for chain in chains:
        writer.copy(chain)
    return writer.finish()


@dataclass(frozen=True, slots=True)
class _Chain:
    """The ops that compute a large input of a matrix product from small tensors.

    Attributes:
        product: the index of the matrix product, which is no op of the chain.
        result: its large input, which the last op of the chain makes.
        axes: each tensor that the chain computes, with the axis along which chunks of the product
        need it sliced.
        ops: the indices of the ops, in order.
    """

    product: int
    result: VarId
    axes: Mapping[VarId, int]
    ops: tuple[int, ...]


def _chains_to_copy(graph: Graph, budget: int) -> list[_Chain]:
    """Return the chains to copy; no two have an op in common.

    A chain is the ops that compute a large input of a matrix product. For example, the product needs this
    input in slices of columns, and another reader needs it in slices of rows. Then the product gets a copy of
    the chain in chunks of columns, and the original is in chunks of rows with the other reader.
    """
    candidates = [
        chain
        for index in range(len(graph.ops))
        for chain in _chains_of_product(graph, index, budget)
        if _has_conflict(graph, chain) and _original_can_be_chunked(graph, chain)
    ]
    # Of two chains with an op in common, only the first is copied. Chains with a LogSoftmax come first:
    # a LogSoftmax cannot be split along its axis, but its copy, which consists of other ops, can.
    candidates.sort(key=lambda chain: (not _has_log_softmax(graph, chain), chain.product))
    chains: list[_Chain] = []
    copied_ops: set[int] = set()
    for chain in candidates:
        if copied_ops.isdisjoint(chain.ops):
            copied_ops.update(chain.ops)
            chains.append(chain)
    return chains


def _chains_of_product(graph: Graph, index: int, budget: int) -> Iterator[_Chain]:
    """Yield for each large input of a matrix product the chain of ops that compute the input in slices.

    Chunks of rows slice the first matrix, and chunks of columns the second. An input is large if it exceeds
    ``budget`` bytes divided by `_BUDGET_DIVISOR`. Nothing is yielded for other ops than matrix products.
    """
    op = graph.ops[index]
    if operator(op).family is not Family.MATRIX_PRODUCT:
        return
    for split in graph.splits(index):
        if split.role not in {Role.ROWS, Role.COLUMNS}:
            continue  # chunks of batches slice both matrices
        position = 0 if split.role is Role.ROWS else 1
        var, axis_map = op.inputs[position], split.inputs[position]
        if axis_map is not None and graph.bytes(var) > budget / _BUDGET_DIVISOR:
            axes = _axes_of_slices(graph, var, axis_map.axis)
            # None if an op cannot compute its output in such slices; empty if no op makes the input.
            if axes:
                ops = sorted({graph.dataflow.producer[tensor] for tensor in axes})
                yield _Chain(index, var, axes, tuple(ops))


def _has_log_softmax(graph: Graph, chain: _Chain) -> bool:
    """Whether an op of a chain is a LogSoftmax along the axis along which its output is sliced."""
    return any(
        _is_log_softmax(graph.node_with_shapes(graph.dataflow.producer[tensor]), axis)
        for tensor, axis in chain.axes.items()
    )


def _axes_of_slices(graph: Graph, var: VarId, axis: int) -> dict[VarId, int] | None:
    """Return along which axis each tensor is sliced if ``var`` is computed in slices along ``axis``.

    The tensors are ``var`` and those from which it is computed, up to tensors that are small or that no op makes:
    these are read whole. None if an op cannot compute its output in such slices, if slices of one tensor
    are needed along two axes, or if there are too many tensors.
    """
    min_bytes = graph.bytes(var) // _TENSOR_DIVISOR
    producer = graph.dataflow.producer
    axes: dict[VarId, int] = {}
    stack = [(var, axis)]
    while stack:
        tensor, tensor_axis = stack.pop()
        if tensor not in producer or graph.bytes(tensor) < min_bytes:
            continue
        if tensor in axes:  # a second op reads the tensor
            if axes[tensor] != tensor_axis:
                return None
            continue
        axes[tensor] = tensor_axis
        inputs = _sliced_inputs(graph, producer[tensor], tensor, tensor_axis)
        if inputs is None or len(axes) > _MAX_COPIED_TENSORS:
            return None
        stack += inputs
    return axes


def _sliced_inputs(
    graph: Graph, index: int, output: VarId, axis: int
) -> list[tuple[VarId, int]] | None:
    """Return the inputs that an op reads in slices if its copy makes ``output`` in slices.

    None if the copy cannot be split along ``axis``. Only float32 is copied: of other types it was
    not measured that copies have the same bits.

    The copy of a LogSoftmax, or of a ScatterElements that adds to rows, consists of other ops. These
    can be split along the axis along which the original cannot (`_CopyWriter`).

    Returns:
        The sliced inputs, each with its axis; inputs that are read whole are left out.
    """
    op, node = graph.ops[index], graph.node(index)
    if node is None or graph.program.vars[output].dtype != "float32":
        return None
    # Indices and updates of the ScatterElements have one column each: they are read whole.
    if _is_log_softmax(node, axis) or _adds_one_element_per_row(graph, node, axis):
        return [(op.inputs[0], axis)]
    for split in graph.splits(index):
        output_map = graph.output_map(index, split, output)
        if output_map is not None and output_map.axis == axis:
            pairs = zip(op.inputs, split.inputs, strict=True)
            return [(var, axis_map.axis) for var, axis_map in pairs if axis_map is not None]
    return None


def _is_log_softmax(node: Node, axis: int) -> bool:
    """Whether an op is a LogSoftmax along an axis."""
    return (
        qualified_name(node.op) == "LogSoftmax"
        and node.int_attribute("axis", -1) % len(node.output_shape) == axis
    )


def _adds_one_element_per_row(graph: Graph, node: Node, axis: int) -> bool:
    """Whether an op is a ScatterElements that adds one element to each row, and rows lie along ``axis``, the last one.

    Its copy consists of other ops, among them an Equal, which can be split along this axis (`_scatter_add_ops`).
    """
    if qualified_name(node.op) != "ScatterElements":
        return False
    output = node.output_shape
    last_axis = len(output) - 1
    return (
        axis == last_axis
        and node.int_attribute("axis", 0) % len(output) == last_axis
        and node.string_attribute("reduction", "none") == "add"
        and node.input_shape(1) == (*output[:-1], 1)  # one index per row
        # The Equal of the copy compares the indices with column numbers, which are int64.
        and graph.program.vars[node.op.inputs[1]].dtype == "int64"
    )


def _has_conflict(graph: Graph, chain: _Chain) -> bool:
    """Whether a chain cannot be in chunks together with the matrix product that reads its result.

    Chunks of the product need each tensor of the chain along one axis. The conflict is an op without a
    split along this axis: the one that makes the tensor, or one that reads it beside the product.
    """
    for var, axis in chain.axes.items():
        if axis not in graph.output_axes(var):
            return True
        other_readers = [index for index in graph.consumers(var) if index != chain.product]
        if any(axis not in graph.input_axes(reader, var) for reader in other_readers):
            return True
    return False


def _original_can_be_chunked(graph: Graph, chain: _Chain) -> bool:
    """Whether the original of a copied chain can be chunked along an axis of each op that still reads it.

    A chain is the ops that compute ``chain.result``, a large input of a matrix product. Chunks of the product need
    slices along ``product_axis``, which some op of the chain or another reader cannot use. So the product reads the
    copy, and the original is for slices along another axis.
    """
    product_axis = chain.axes[chain.result]
    for reader in _consumers_of_original(graph, chain):
        reader_axes = graph.input_axes(reader, chain.result) - {product_axis}
        # `_axes_of_slices`: the axes along which the chain can be computed to make slices along ``axis``.
        if not any(_axes_of_slices(graph, chain.result, axis) for axis in reader_axes):
            return False
    return True


def _consumers_of_original(graph: Graph, chain: _Chain) -> list[int]:
    """Return the consumers of a chain's result that read the original once the chain is copied.

    The matrix product reads the copy, in chunks along ``product_axis``. A consumer that can be sliced only along
    this axis, such as the sum over rows for the gradient of a bias, reads the copy too. All other consumers
    read the original, also those that cannot be sliced at all.
    """
    product_axis = chain.axes[chain.result]
    return [
        reader
        for reader in graph.consumers(chain.result)
        if reader != chain.product and graph.input_axes(reader, chain.result) != {product_axis}
    ]


class _CopyWriter:
    """Writes copies of chains before the products that read them.

    Attributes:
        _graph: the original program.
        _writer: makes the new vars and constants; its list of ops is not used.
        _copied_ops: the indices of the ops of all chains that were copied.
        _ops_before: new ops that run before an original op.
        _ops_after: new ops that run after an original op.
        _renamed_inputs: for each op that reads a copy, the copy of each original input.
    """

    def __init__(self, graph: Graph) -> None:
        """Begin with a program of which no ops are copied yet."""
        self._graph = graph
        # The new constants are named after the chunks of the copies, which are columns.
        self._writer = ProgramWriter(graph, constant_prefix="columns")
        # Ops are given by their index in the original program.
        self._copied_ops: set[int] = set()
        self._ops_before: dict[int, list[Op]] = {}
        self._ops_after: dict[int, list[Op]] = {}
        self._renamed_inputs: dict[int, dict[VarId, VarId]] = {}

    def copy(self, chain: _Chain) -> None:
        """Add a copy of a chain, the ops that compute an input of the matrix product ``chain.product``.

        From now on the product reads the result of the copy, and so do readers that can be split only along
        the same axis as the product. All other readers keep the original (`_consumers_of_original`).
        """
        self._copied_ops.update(chain.ops)
        original_readers = _consumers_of_original(self._graph, chain)
        copy_readers = [
            reader
            for reader in self._graph.consumers(chain.result)
            if reader not in original_readers
        ]
        # Outputs that the product does not need are not in ``chain.axes``: the copied ops omit them.
        names = {
            var: self._writer.new_var(var, _SUFFIX)
            for index in chain.ops
            for var in self._graph.ops[index].outputs
            if var in chain.axes
        }
        new_ops = self._ops_before.setdefault(min(copy_readers), [])
        for index in chain.ops:
            new_ops += self._copy_op(index, chain, names)
        for reader in copy_readers:
            self._renamed_inputs.setdefault(reader, {})[chain.result] = names[chain.result]

    def _copy_op(self, index: int, chain: _Chain, names: Mapping[VarId, VarId]) -> list[Op]:
        """Return ops that compute the outputs of an op of a chain once more, in new vars.

        The ops can be split along the axis along which the chain's copy will be in chunks. If the original
        cannot, other ops with the same result take its place.

        Args:
            index: the op.
            chain: the chain, with the axis for each of its vars.
            names: the copy of each var of the chain. Inputs that are not in the chain are read whole, and
                outputs that are not in it are left out.
        """
        op, node = self._graph.ops[index], self._graph.node_with_shapes(index)
        axis = next(chain.axes[var] for var in op.outputs if var in chain.axes)
        if _is_log_softmax(node, axis):
            # A chunk cannot sum whole rows, but it can subtract statistics of whole rows.
            return self._log_softmax_ops(index, axis, names)
        if _adds_one_element_per_row(self._graph, node, axis):
            # A chunk cannot add at an index outside of it, but it can compare its columns with the index.
            return self._scatter_add_ops(op, names)
        return [
            op._replace(
                name=self._writer.op_name(f"{op.label}{_SUFFIX}"),
                inputs=tuple(names.get(var, var) for var in op.inputs),
                outputs=tuple(names.get(var, VarId("")) for var in op.outputs),
            )
        ]

    def _log_softmax_ops(
        self, index: int, axis: int, names: Mapping[VarId, VarId]
    ) -> list[Op]:
        """Return the ops of ``(x - max(x)) + max(log_softmax(x))``, which copy a LogSoftmax along ``axis``.

        The original LogSoftmax stays. Behind it, two ReduceMax over ``axis`` are added, which compute both
        maxima. ``names`` has the copy of each var that the chain computes, here of the output.
        """
        op = self._graph.ops[index]
        data, output = op.inputs[0], op.outputs[0]
        data_maximum = self._add_row_maximum(data, index, axis, "_max")
        output_maximum = self._add_row_maximum(output, index, axis, "_log")
        copied_data = names.get(data, data)  # an input from outside the chain is not copied
        copied_output = names[output]
        shifted = self._writer.new_var(output, f"{_SUFFIX}_shifted")
        return [
            self._named_op("Sub", (copied_data, data_maximum), shifted),
            self._named_op("Add", (shifted, output_maximum), copied_output),
        ]

    def _add_row_maximum(self, var: VarId, index: int, axis: int, suffix: str) -> VarId:
        """Add a ReduceMax of a var over an axis after op ``index``, and return its output."""
        dims = list(self._graph.dims(var))
        dims[axis] = 1
        output = self._writer.new_var(var, suffix, tuple(dims))
        attributes: Mapping[str, Attribute] = {"keepdims": 1}
        inputs: tuple[VarId, ...] = (var,)
        if self._graph.context.opset < _REDUCE_AXES_INPUT_OPSET:
            attributes = {**attributes, "axes": (axis,)}
        else:
            inputs = (var, self._writer.constant((axis,)))
        op = self._named_op("ReduceMax", inputs, output, attributes)
        self._ops_after.setdefault(index, []).append(op)
        return output

    def _scatter_add_ops(self, op: Op, names: Mapping[VarId, VarId]) -> list[Op]:
        """Return the ops of ``where(column == index, data + update, data)`` for a ScatterElements.

        The ScatterElements adds one update to each row (`_adds_one_element_per_row`). Its ``index`` is
        int64 ``[rows, 1]``, and may be negative: then the number of columns is added. Unlike
        ScatterElements these ops can be split along columns. ``names`` has the copies of vars, as for
        `_copy_op`: that of the output, and those of inputs that are copied too.
        """
        data, index, update = (names.get(var, var) for var in op.inputs)
        output, writer = op.outputs[0], self._writer
        columns = self._graph.dims(output)[-1]
        is_negative = writer.new_var(index, f"{_SUFFIX}_below", dtype="bool")
        shifted_index = writer.new_var(index, f"{_SUFFIX}_above")
        column_index = writer.new_var(index, f"{_SUFFIX}_own")
        is_hit = writer.new_var(output, f"{_SUFFIX}_there", dtype="bool")
        total = writer.new_var(output, f"{_SUFFIX}_sum")
        zero, column_count = writer.constant((0,)), writer.constant((columns,))
        all_columns = writer.constant(tuple(range(columns)))
        return [
            self._named_op("Less", (index, zero), is_negative),
            self._named_op("Add", (index, column_count), shifted_index),
            self._named_op("Where", (is_negative, shifted_index, index), column_index),
            self._named_op("Equal", (column_index, all_columns), is_hit),
            self._named_op("Add", (data, update), total),
            self._named_op("Where", (is_hit, total, data), names[output]),
        ]

    def _named_op(
        self,
        kind: str,
        inputs: tuple[VarId, ...],
        output: VarId,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Op:
        """Return a new op, named after its output; the caller puts it among the program's ops."""
        return self._writer.new_op(
            f"{output}/{kind.lower()}", kind, inputs, output, attributes
        )

    def finish(self) -> CopiedProgram:
        """Return the program with the copies, without the original ops that are unused now."""
        ops = [
            new_op
            for index, op in enumerate(self._graph.ops)
            for new_op in (
                *self._ops_before.get(index, ()),
                self._with_renamed_inputs(index, op),
                *self._ops_after.get(index, ()),
            )
        ]
        unused = self._unused_originals(ops)  # all outputs of an op, or none of them
        variables = self._writer.vars.items()
        program = self._graph.program.with_ops(
            [op for op in ops if unused.isdisjoint(op.outputs)],
            {var: record for var, record in variables if var not in unused},
        )
        constants = {var: values for values, var in self._writer.constants.items()}
        return CopiedProgram(program, constants)

    def _with_renamed_inputs(self, index: int, op: Op) -> Op:
        names = self._renamed_inputs.get(index, {})
        return op._replace(inputs=tuple(names.get(var, var) for var in op.inputs))

    def _unused_originals(self, ops: Sequence[Op]) -> frozenset[VarId]:
        """Return the outputs of copied ops that no op reads now, or only ops that are unused themselves.

        ``ops`` are all ops of the new program: the originals with their renamed inputs, and the copies.
        """
        uses = Counter(var for op in ops for var in op.reads)
        uses.update(self._graph.outputs)
        unused: set[VarId] = set()
        for index in sorted(self._copied_ops, reverse=True):  # consumers before producers
            original = self._with_renamed_inputs(index, self._graph.ops[index])
            outputs = [var for var in original.outputs if var]
            if not any(uses[var] for var in outputs):
                unused.update(outputs)
                uses.subtract(original.reads)
        return frozenset(unused)
