"""Values of constant expressions: ONNX's own reference evaluator, one node at a time.

Weights in other files are mapped, not read. A value is held until its last reader has run,
so that besides the operands of one node there is little in memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.weights.external_data import locations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
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
            value = _constant(node)
            if value is not None:
                tensors[node.output[0]] = value
            else:
                makers.update(dict.fromkeys(filter(None, node.output), node))
        return cls(tensors, makers, outer)

    def home(self, name: str) -> Scope:
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


def _constant(node: NodeProto) -> TensorProto | None:
    """Return the tensor that a Constant holds as one."""
    if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
        for attribute in node.attribute:
            if attribute.name == "value":
                return attribute.t
    return None


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
        left = Counter(key for node, home in order for key in _operands(node, home))
        asked, held = set(wanted), dict[tuple[int, str], Any]()
        for node, home in order:
            operands = {}
            for key in _operands(node, home):
                operands[key[1]] = (
                    held[key] if key in held else self._weight(home.home(key[1]), key[1])
                )
            results = self._run(node, operands)
            for key in _operands(node, home):
                left[key] -= 1
                if not left[key]:
                    held.pop(key, None)
            del operands
            for name in filter(None, node.output):
                value = results.pop(name)
                if left[id(home), name]:
                    held[id(home), name] = value
                if home is scope and name in asked:
                    yield name, value

    def _weight(self, home: Scope, name: str) -> Array:
        return read_tensor(home.tensors[name], self.folder)

    def _run(self, node: NodeProto, operands: Mapping[str, Array]) -> dict[str, Array]:
        from onnx import ValueInfoProto, helper
        from onnx.reference import ReferenceEvaluator

        inputs = [ValueInfoProto(name=name) for name in operands]
        names = [name for name in node.output if name]
        graph = helper.make_graph(
            [node], "one", inputs, [ValueInfoProto(name=name) for name in names]
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        carried = {name: _carried(value) for name, value in operands.items()}
        try:
            found = ReferenceEvaluator(model).run(None, carried)
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


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _operands(node: NodeProto, home: Scope) -> list[tuple[int, str]]:
    """Return what a node reads, once each, by the scope that defines it and the name."""
    return [(id(home.home(name)), name) for name in dict.fromkeys(filter(None, node.input))]


def _order(scope: Scope, wanted: Iterable[str]) -> list[tuple[NodeProto, Scope]]:
    """Return the nodes that names need, makers first, each with the scope that it is in."""
    found: dict[int, tuple[NodeProto, Scope]] = {}
    stack = [(name, scope, False) for name in reversed(list(wanted))]
    while stack:
        name, inside, is_ready = stack.pop()
        home = inside.home(name)
        node = home.makers.get(name)
        if node is None or id(node) in found:
            continue
        if is_ready:
            found[id(node)] = node, home
        else:
            stack.append((name, home, True))
            stack.extend((read, home, False) for read in reversed(node.input) if read)
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
