"""Values of constant expressions: ONNX's own reference evaluator, one node at a time.

Weights in other files are mapped, not read. A value is held until its last reader has run,
so that besides the operands of one node there is little in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.interface import opset_versions
from memplan_cli.onnx_io.reference import evaluate_node
from memplan_cli.onnx_io.weights.external_data import locations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

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


def read_tensor(tensor: TensorProto, folder: Path) -> Array:
    """Return a tensor's values; data in another file is mapped.

    Raises:
        ModelError: that file is not there or too short.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    if tensor.data_location != tensor.EXTERNAL:
        _refuse_without_data(tensor)
        return np.asarray(numpy_helper.to_array(tensor))
    (name,) = locations([tensor])
    entries = {entry.key: entry.value for entry in tensor.external_data}
    shape, dtype = tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if 0 in shape:
        return np.empty(shape, dtype)
    try:
        offset = int(entries.get("offset", "0"))
        return np.memmap(folder / name, dtype, "r", offset, shape)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the weights in {folder / name} cannot be read: constants cannot be folded",
            hint="bring the file, or leave --fold-constants out",
        ) from error


def _refuse_without_data(tensor: TensorProto) -> None:
    if 0 not in tensor.dims and not any(len(getattr(tensor, part)) for part in _DATA):
        raise ModelError(
            f"{tensor.name[:120]!r} has no data: constants cannot be folded",
            hint="give the model its weights, or leave --fold-constants out",
        )


_DATA = ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data")

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
