"""Constant expressions replaced by their values.

Values are computed by ONNX's reference evaluator, one node at a time. External weights are mapped,
not read, and a value is freed after its last consumer, so that little more than the operands of one
node is in memory.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.program import Origin
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.graph_editor import keep, producer_nodes, replace_nodes
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.load import first_line
from memplan_cli.onnx_io.reference import evaluate_node
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import element_type, is_extension_dtype
from memplan_cli.onnx_io.weights.tensor_data import read_tensor, store_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.core.program import Block, Program, Var
    from memplan_cli.onnx_io.weights.tensor_data import Store

    Array = NDArray[Any]


@dataclass(frozen=True)
class Scope:
    """The names that nodes of a graph can read.

    Attributes:
        tensors: initializers, and the tensors of Constant nodes.
        producers: the other nodes, by the names of their outputs.
        outer: the scope of the graph around it; None for the main graph.
    """

    tensors: Mapping[str, TensorProto]
    producers: Mapping[str, NodeProto]
    outer: Scope | None = None

    @classmethod
    def of(cls, graph: GraphProto, outer: Scope | None = None) -> Scope:
        """Return the scope of a graph inside ``outer``; Constant nodes with a tensor are no producers."""
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        producers = producer_nodes(graph.node)
        for name, node in tuple(producers.items()):
            stored = stored_tensor(node)
            if stored is not None:
                tensors[name] = stored
                del producers[name]
        return cls(tensors, producers, outer)

    def defining(self, name: str) -> Scope:
        """Return the innermost scope that defines a name.

        Raises:
            ModelError: no scope does: it is a sparse initializer, or an input, which has no constant value.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tensors or name in scope.producers:
                return scope
            scope = scope.outer
        raise ModelError(
            f"{name[:120]!r} cannot be folded: it is not a dense tensor",
            hint="leave --fold-constants out, or --exclude the tensors that depend on it",
        )


class _Value(NamedTuple):
    """A value that a node reads or produces.

    Attributes:
        scope_id: ``id`` of the scope that defines it.
        name: its name in that scope.
    """

    scope_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Computes the values of constant expressions of a model, whose external data lies in ``folder``."""

    model: ModelProto
    folder: Path

    def values(self, scope: Scope, wanted: Sequence[str]) -> Iterator[tuple[str, Array]]:
        """Compute the named results of nodes in a scope; yield each as soon as it is known.

        Raises:
            ModelError: weights are missing, or a node cannot be computed (it is named).
        """
        order = _evaluation_order(scope, wanted)
        # Nodes that still have to read each value.
        remaining_reads = Counter(
            value for node, owner in order for value in _operand_values(node, owner)
        )
        held: dict[_Value, Array] = {}  # results that later nodes of the order read
        names = set(wanted)
        for node, owner in order:
            operands: dict[str, Array] = {}
            for value in _operand_values(node, owner):
                if value in held:
                    operands[value.name] = held[value]
                else:
                    tensor = owner.defining(value.name).tensors[value.name]
                    operands[value.name] = read_tensor(tensor, self.folder)
                remaining_reads[value] -= 1
                if not remaining_reads[value]:
                    held.pop(value, None)
            results = self._run(node, operands)
            del operands  # their memory is free while the caller stores the results
            for name in filter(None, node.output):
                result, value = results.pop(name), _Value(id(owner), name)
                if remaining_reads[value]:
                    held[value] = result
                if owner is scope and name in names:
                    yield name, result

    def _run(self, node: NodeProto, operands: Mapping[str, Array]) -> dict[str, Array]:
        """Compute a node; return its results by name.

        numpy's kernels do not know bfloat16 and the like. A node with such operands is folded only if it moves
        elements, so it is computed on integers of the same width, and its results are converted back.

        Raises:
            ModelError: the node cannot be computed.
        """
        carried = {name: _carried(array) for name, array in operands.items()}
        inputs = [carried.get(name) for name in node.input]
        own_kernel = _OWN_KERNELS.get(node.op_type)
        try:
            if own_kernel is None:
                results = evaluate_node(node, inputs, opset_versions(self.model))
            else:
                results = [own_kernel(node, inputs)]
            named = {
                name: array for name, array in zip(node.output, results, strict=True) if name
            }
        except Exception as error:  # numpy and the evaluator raise many types
            result = next(filter(None, node.output))
            raise ModelError(
                f"{(node.name or result)[:120]!r} cannot be folded: {node.op_type}: {first_line(error)}",
                hint=f"leave it as it is: --exclude {result}",
            ) from error
        return {name: _restored(array, operands.values()) for name, array in named.items()}


def _flattened(node: NodeProto, operands: Sequence[Array | None]) -> Array:
    """Compute a Flatten; the reference evaluator fails on empty tensors."""
    from math import prod

    data = operands[0]
    assert data is not None  # noqa: S101 - the operator requires it
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    axis += data.ndim if axis < 0 else 0
    return data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:]))


def _sliced(node: NodeProto, operands: Sequence[Array | None]) -> Array:
    """Compute a Slice, with bounds clamped as the operator's specification says.

    The reference evaluator (onnx 1.23.2) clamps as Python does: if ``step`` is negative and ``start``
    lies before the first element, it loses the first element.
    """
    data, starts, ends, axes, steps = _slice_operands(node, operands)
    slices: list[slice] = [slice(None)] * data.ndim
    for index, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = index if axes is None else int(axes[index])
        step, size = 1 if steps is None else int(steps[index]), data.shape[axis]
        first, stop = (bound + size if bound < 0 else bound for bound in (start, end))
        # A stop of -1, behind element 0 on the way backwards, is None in Python.
        lowest_stop, highest = (0, size) if step > 0 else (-1, size - 1)
        first = min(max(first, 0), highest)
        stop = min(max(stop, lowest_stop), highest)
        slices[axis] = slice(first, None if stop < 0 else stop, step)
    part: Array = data[tuple(slices)]
    return part


def _slice_operands(
    node: NodeProto, operands: Sequence[Array | None]
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Return data, starts, ends, axes and steps of a Slice.

    Before opset 10 all but the data are attributes. Axes and steps that are omitted are None.
    """
    import numpy as np

    attributes = {a.name: np.array(a.ints, np.int64) for a in node.attribute}
    data, starts, ends, axes, steps = (*operands, None, None, None, None)[:5]
    assert data is not None  # noqa: S101 - the operator requires it
    return (
        data,
        attributes["starts"] if starts is None else starts,
        attributes["ends"] if ends is None else ends,
        attributes.get("axes", axes),
        steps,
    )


_OWN_KERNELS: Mapping[str, Callable[[NodeProto, Sequence[Array | None]], Array]] = {
    "Flatten": _flattened,
    "Slice": _sliced,
}
"""Operators, of one result, that the reference evaluator computes wrongly or refuses."""


def _operand_values(node: NodeProto, scope: Scope) -> list[_Value]:
    """Return the values that a node reads, each once."""
    names = dict.fromkeys(filter(None, node.input))
    return [_Value(id(scope.defining(name)), name) for name in names]


def _evaluation_order(scope: Scope, wanted: Iterable[str]) -> list[tuple[NodeProto, Scope]]:
    """Return the nodes that names depend on, producers first, each with its scope.

    A depth-first search: a name is pushed back below its operands, and its node follows theirs. There is no
    cycle: a model with one is refused when its program is read. No node has subgraphs: those are not folded.
    """
    order: dict[int, tuple[NodeProto, Scope]] = {}  # by id of the node
    # Name, scope of its reader, and whether the operands of its node are in the order already.
    stack = [(name, scope, False) for name in reversed(list(wanted))]
    while stack:
        name, reader, has_operands = stack.pop()
        owner = reader.defining(name)  # the reader's scope or an outer one
        node = owner.producers.get(name)
        if node is None or id(node) in order:
            continue
        if has_operands:
            order[id(node)] = node, owner
        else:
            stack.append((name, owner, True))
            stack.extend(
                (operand, owner, False) for operand in reversed(node.input) if operand
            )
    return list(order.values())


_CARRIERS = {1: "uint8", 2: "uint16"}
"""Bytes of an element -> the integer dtype that carries its bits."""


def _carried(array: Array) -> Array:
    """Return an array that numpy can move: a dtype of another package is viewed as integers."""
    if is_extension_dtype(array.dtype):
        return array.view(_CARRIERS[array.dtype.itemsize])
    return array


def _restored(result: Array, operands: Iterable[Array]) -> Array:
    """Undo `_carried` in a result: view it as the dtype of its operand, if numpy lacks this dtype.

    For example, `_carried` views bfloat16 as uint16. The node only moves elements, so its result of uint16 is one
    of bfloat16. ``operands`` are those before `_carried`, with at most one dtype that numpy lacks.
    """
    import numpy as np

    result = np.asarray(result)
    for operand in operands:
        is_carried = is_extension_dtype(operand.dtype)
        if is_carried and _carried(operand).dtype == result.dtype:
            return result.view(operand.dtype)
    return result


_MAX_INSIDE = 64 << 20
"""Most bytes of new weights that are stored in a model file without external data."""


def goes_outside(model: ModelProto, added: int) -> bool:
    """Whether ``added`` bytes of new weights are stored in a file beside the model."""
    return added > _MAX_INSIDE or any(
        tensor.data_location == tensor.EXTERNAL for tensor in model.graph.initializer
    )


def folded_model(
    model: ModelProto, program: Program, evaluator: Evaluator, store: Store
) -> tuple[ModelProto, Program]:
    """Return a copy of a model with constant expressions folded, and the program with the node indices of the copy.

    Args:
        model: The model that the program was read from.
        program: The program after folding: folded ops are gone, their results are weights. Its ops still refer
            to the nodes of ``model``.
        evaluator: Computes the values.
        store: Stores new weights of the main graph; those of subgraphs stay in the model file.

    Raises:
        ModelError: a value cannot be computed, or differs in dtype or shape from its var.
    """
    copy = deepcopy(model)
    weights: dict[str, dict[str, Var]] = {}
    for var in program.vars.values():
        if var.origin is Origin.WEIGHT:
            weights.setdefault(var.block, {})[var.name] = var
    folding = _Folding(evaluator, weights, store)
    body = folding.fold(copy.graph, original=model.graph, block=program.body, outer=None)
    return copy, replace(program, body=body)


@dataclass(frozen=True, slots=True)
class _Folding:
    """Folds the graphs of one model in place.

    Attributes:
        evaluator: computes the values of weights.
        weights: those of the program after folding, by the path of their block and by name.
        store: stores new weights of the main graph.
    """

    evaluator: Evaluator
    weights: Mapping[str, Mapping[str, Var]]
    store: Store

    def fold(
        self, graph: GraphProto, original: GraphProto, block: Block, outer: Scope | None
    ) -> Block:
        """Fold a graph and its subgraphs in place; return the block with new node indices.

        Nodes without an op are removed. Their results that the program has as weights become initializers.

        Args:
            graph: The graph to change.
            original: The same graph unchanged, from which values are computed.
            block: The ops that remain. Several may be copies of one node, but not ops with subgraphs
                (`may_run_twice`).
            outer: The scope around the graph; None for the main graph.
        """
        kept = sorted({op.source for op in block.ops if op.source >= 0})
        new_index = {old: index for index, old in enumerate(kept)}
        scope = Scope.of(original, outer)
        ops = []
        for op in block.ops:
            if op.source < 0:  # inserted by chunking: a Slice or Concat without a node yet
                ops.append(op)
                continue
            bodies = zip(
                subgraphs(graph.node[op.source]),
                subgraphs(original.node[op.source]),
                op.bodies,
                strict=True,
            )
            folded = tuple(
                self.fold(inner, original_inner, body, scope)
                for (_, inner), (_, original_inner), body in bodies
            )
            ops.append(op._replace(source=new_index[op.source], bodies=folded))
        removed = {
            name
            for index, node in enumerate(original.node)
            if index not in new_index
            for name in node.output
        }
        self._store_results(graph, scope, block.path, removed)
        nodes = [graph.node[index] for index in kept]
        if len(nodes) < len(graph.node):
            replace_nodes(graph, nodes)
        return replace(block, ops=tuple(ops))

    def _store_results(
        self, graph: GraphProto, scope: Scope, path: str, removed: Collection[str]
    ) -> None:
        """Add an initializer for each result of a removed node that is still read, in place.

        Initializers that are not read any more, and declared types of removed results, are dropped.

        Args:
            graph: The graph to change.
            scope: The original's scope, from which values are computed.
            path: The path of the graph's block; empty for the main graph.
            removed: Names of the results of removed nodes.
        """
        weights = self.weights.get(path, {})  # what the program after folding still reads
        keep(graph.initializer, lambda tensor: tensor.name in weights)
        keep(graph.value_info, lambda value: value.name not in removed)
        computed = [name for name in weights if name in removed]
        store = store_inside if path else self.store  # weights of subgraphs are small
        for name, array in self.evaluator.values(scope, computed):
            tensor = graph.initializer.add()
            _declare(tensor, weights[name], array)
            store(tensor, array)


def _declare(tensor: TensorProto, var: Var, array: NDArray[Any]) -> None:
    """Set name, dtype and dims of an empty tensor.

    Raises:
        ModelError: the array has another dtype or shape than the var, for which the plan was made.
    """
    from onnx import helper

    dtype = element_type(var.dtype)
    if helper.tensor_dtype_to_np_dtype(dtype) != array.dtype or var.shape != array.shape:
        raise ModelError(
            f"{var.name[:120]!r} cannot be folded: it is planned as {var.dtype}"
            f"{list(var.shape or ())}, and its value is {array.dtype}{list(array.shape)}",
            hint=f"leave it as it is: --exclude {var.name}",
        )
    tensor.name, tensor.data_type = var.name, dtype
    tensor.dims.extend(array.shape)
