"""Folding."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from memplan_cli.core.program import Origin
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.graph_editor import keep, replace_nodes
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.reference import evaluate_node
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.weights.tensor_data import inside, read_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.core.program import Block, Program, Var
    from memplan_cli.onnx_io.weights.tensor_data import Hold

    Array = NDArray[Any]


@dataclass(frozen=True)
class Scope:
    """What a graph names, and the graph around it."""

    tensors: Mapping[str, TensorProto]
    makers: Mapping[str, NodeProto]
    outer: Scope | None = None

    @classmethod
    def of(cls, graph: GraphProto, outer: Scope | None = None) -> Scope:
        """Return the scope of a graph."""
        tensors = {tensor.name: tensor for tensor in graph.initializer}
        makers: dict[str, NodeProto] = {}
        for node in graph.node:
            value = stored_tensor(node)
            if value is not None:
                tensors[node.output[0]] = value
            else:
                makers.update(dict.fromkeys(filter(None, node.output), node))
        return cls(tensors, makers, outer)

    def defining(self, name: str) -> Scope:
        """Return the innermost scope that defines a name.

        Raises:
            ModelError: none does in a way that has a value.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.tensors or name in scope.makers:
                return scope
            scope = scope.outer
        raise ModelError(
            f"{name[:120]!r} cannot be folded: it is no dense tensor",
            hint="leave --fold-constants out, or --exclude what hangs on it",
        )


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Computes what nodes of one model make of its weights."""

    model: ModelProto
    folder: Path

    def values(self, scope: Scope, wanted: Sequence[str]) -> Iterator[tuple[str, Array]]:
        """Yield the value of each name that nodes make, as soon as it is there.

        Raises:
            ModelError: weights are missing, or a node cannot be computed; it is named.
        """
        order = _order(scope, wanted)
        left = Counter(key for node, inner in order for key in _operands(node, inner))
        asked, held = set(wanted), dict[tuple[int, str], Any]()
        for node, inner in order:
            operands = {}
            for key in _operands(node, inner):
                operands[key[1]] = (
                    held[key] if key in held else self._weight(inner.defining(key[1]), key[1])
                )
            results = self._run(node, operands)
            for key in _operands(node, inner):
                left[key] -= 1
                if not left[key]:
                    held.pop(key, None)
            del operands
            for name in filter(None, node.output):
                value = results.pop(name)
                if left[id(inner), name]:
                    held[id(inner), name] = value
                if inner is scope and name in asked:
                    yield name, value

    def _weight(self, inner: Scope, name: str) -> Array:
        return read_tensor(inner.tensors[name], self.folder)

    def _run(self, node: NodeProto, operands: Mapping[str, Array]) -> dict[str, Array]:
        names = [name for name in node.output if name]
        carried = {name: _carried(value) for name, value in operands.items()}
        try:
            own = _OWN.get(node.op_type)
            if own is None:
                given = [carried.get(name) for name in node.input]
                computed = evaluate_node(node, given, opset_versions(self.model))
                found = [
                    value for name, value in zip(node.output, computed, strict=True) if name
                ]
            else:
                found = [own(node, [carried.get(name) for name in node.input])]
        except Exception as error:  # whatever numpy or the evaluator says
            label = node.name or node.output[0]
            raise ModelError(
                f"{label[:120]!r} cannot be folded: {node.op_type}: {_first_line(error)}",
                hint=f"leave it as it is: --exclude {names[0]}",
            ) from error
        return {
            name: _restored(value, operands.values())
            for name, value in zip(names, found, strict=True)
        }


def _flattened(node: NodeProto, operands: Sequence[Array | None]) -> Array:
    """Return a Flatten, of an empty tensor too, which the reference evaluator fails on."""
    from math import prod

    data = operands[0]
    assert data is not None  # noqa: S101 - the operator asks for it
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    axis += data.ndim if axis < 0 else 0
    return data.reshape(prod(data.shape[:axis]), prod(data.shape[axis:]))


def _sliced(node: NodeProto, operands: Sequence[Array | None]) -> Array:
    """Return a Slice, its bounds clamped as the operator's text says.

    The reference evaluator (onnx 1.23.2) takes them as Python does, for which a start before
    the first element, going backwards, is none: the first element is then lost.
    """
    data, starts, ends, axes, steps = _slice_words(node, operands)
    where: list[slice] = [slice(None)] * data.ndim
    for at, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = at if axes is None else int(axes[at])
        step, size = 1 if steps is None else int(steps[at]), data.shape[axis]
        first, last = (bound + size if bound < 0 else bound for bound in (start, end))
        back = step < 0
        first = min(max(first, 0), size - back)
        last = min(max(last, -1 if back else 0), size - back)
        where[axis] = slice(first, None if last < 0 else last, step)
    found: Array = data[tuple(where)]
    return found


def _slice_words(
    node: NodeProto, operands: Sequence[Array | None]
) -> tuple[Array, Array, Array, Array | None, Array | None]:
    """Return what a Slice reads; before opset 10 its words are attributes."""
    import numpy as np

    said = {a.name: np.array(a.ints, np.int64) for a in node.attribute}
    data, starts, ends, axes, steps = (*operands, None, None, None, None)[:5]
    starts, ends = (
        said[n] if w is None else w for n, w in (("starts", starts), ("ends", ends))
    )
    assert data is not None  # noqa: S101 - the operator asks for it
    return data, starts, ends, said.get("axes", axes), steps


_OWN: Mapping[str, Callable[[NodeProto, Sequence[Array | None]], Array]] = {
    "Flatten": _flattened,
    "Slice": _sliced,
}
"""What the reference evaluator gets wrong, or not at all."""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _operands(node: NodeProto, inner: Scope) -> list[tuple[int, str]]:
    """Return what a node reads, once each, by the scope that defines it and the name."""
    return [
        (id(inner.defining(name)), name) for name in dict.fromkeys(filter(None, node.input))
    ]


def _order(scope: Scope, wanted: Iterable[str]) -> list[tuple[NodeProto, Scope]]:
    """Return the nodes that names need, makers first, each with the scope that it is in."""
    found: dict[int, tuple[NodeProto, Scope]] = {}
    stack = [(name, scope, False) for name in reversed(list(wanted))]
    while stack:
        name, inside, is_ready = stack.pop()
        inner = inside.defining(name)
        node = inner.makers.get(name)
        if node is None or id(node) in found:
            continue
        if is_ready:
            found[id(node)] = node, inner
        else:
            stack.append((name, inner, True))
            stack.extend((read, inner, False) for read in reversed(node.input) if read)
    return list(found.values())


_REGISTERED = 2
"""What numpy says of a type that another library has brought."""

_CARRIERS = {1: "uint8", 2: "uint16"}
"""By bytes: what moves elements of a type that numpy itself does not know."""


def _carried(value: Array) -> Array:
    """Return an array whose elements numpy can move: bits stay."""
    if value.dtype.isbuiltin == _REGISTERED:
        return value.view(_CARRIERS[value.dtype.itemsize])
    return value


def _restored(value: Array, operands: Iterable[Array]) -> Array:
    """Return a moved array in the type that it was carried for."""
    import numpy as np

    value = np.asarray(value)
    for operand in operands:
        if _carried(operand).dtype == value.dtype != operand.dtype:
            return value.view(operand.dtype)
    return value


_MOST_INSIDE = 64 << 20
"""Bytes of new weights up to which they are part of a model that has no other files."""


def goes_outside(model: ModelProto, added: int) -> bool:
    """Whether so many bytes of new weights go into a file beside the model."""
    return added > _MOST_INSIDE or any(
        tensor.data_location == tensor.EXTERNAL for tensor in model.graph.initializer
    )


def folded_model(
    model: ModelProto, program: Program, evaluator: Evaluator, hold: Hold
) -> tuple[ModelProto, Program]:
    """Return a copy with the values of what a program calls weights, and the program for it.

    Args:
        model: The model that the program was read from, before it was folded.
        program: Its ops, less those that were folded.
        evaluator: Computes the values from the model's weights.
        hold: Where values go; those of subgraphs stay inside the model.

    Raises:
        ModelError: a value cannot be computed, or is not of the type and shape that it has.
    """
    copy = deepcopy(model)
    weights: dict[str, dict[str, Var]] = {}
    for var in program.vars.values():
        if var.origin is Origin.WEIGHT:
            weights.setdefault(var.block, {})[var.name] = var
    folder = _Folder(evaluator, weights, hold)
    body = folder.fold(copy.graph, model.graph, program.body, None)
    return copy, replace(program, body=body)


@dataclass(frozen=True, slots=True)
class _Folder:
    evaluator: Evaluator
    weights: Mapping[str, Mapping[str, Var]]
    """By block and name."""
    hold: Hold

    def fold(
        self, graph: GraphProto, source: GraphProto, block: Block, outer: Scope | None
    ) -> Block:
        """Fold a graph in place; return its block with the nodes' new indices.

        ``source`` is the same graph before anything was folded, the one to compute from.
        """
        kept = sorted({op.source for op in block.ops if op.source >= 0})
        scope, new = Scope.of(source, outer), {old: at for at, old in enumerate(kept)}
        ops = []
        for op in block.ops:
            if op.source < 0:  # of no node: it slices or joins pieces
                ops.append(op)
                continue
            bodies = zip(
                subgraphs(graph.node[op.source]),
                subgraphs(source.node[op.source]),
                op.bodies,
                strict=True,
            )
            folded = tuple(
                self.fold(one, other, body, scope) for (_, one), (_, other), body in bodies
            )
            ops.append(op._replace(source=new[op.source], bodies=folded))
        gone = {
            name
            for at, node in enumerate(source.node)
            if at not in new
            for name in node.output
        }
        self._replace(graph, scope, block.path, gone)
        nodes = [graph.node[at] for at in kept]
        if len(nodes) < len(graph.node):
            replace_nodes(graph, nodes)
        return replace(block, ops=tuple(ops))

    def _replace(
        self, graph: GraphProto, scope: Scope, path: str, gone: Collection[str]
    ) -> None:
        """Give a graph the new weights, and take away what nothing reads any more."""
        weights = self.weights.get(path, {})
        keep(graph.initializer, lambda tensor: tensor.name in weights)
        keep(graph.value_info, lambda value: value.name not in gone)
        wanted = [name for name in weights if name in gone and name in scope.makers]
        for name, value in self.evaluator.values(scope, wanted):
            tensor = graph.initializer.add()
            _declare(tensor, weights[name], value)
            (self.hold if not path else inside)(tensor, value)


def _declare(tensor: TensorProto, var: Var, value: NDArray[Any]) -> None:
    """Say what a tensor is that has no data yet.

    Raises:
        ModelError: the value is of another type or shape than the plan was made for.
    """
    from onnx import helper

    kind = element_type(var.dtype)
    if helper.tensor_dtype_to_np_dtype(kind) != value.dtype or var.shape != value.shape:
        raise ModelError(
            f"{var.name[:120]!r} cannot be folded: it is planned as {var.dtype}"
            f"{list(var.shape or ())}, and comes to {value.dtype}{list(value.shape)}",
            hint=f"leave it as it is: --exclude {var.name}",
        )
    tensor.name, tensor.data_type = var.name, kind
    tensor.dims.extend(value.shape)
