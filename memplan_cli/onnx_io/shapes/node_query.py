"""Queries to ONNX's inference about single nodes: a model of nodes that need not meet.

Every value has a name of its own there: an input of the type that the program holds it to be
of, a weight with its values where they may say a shape, or the result of a node that was added
before, where a shape is computed.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Origin
from memplan_cli.onnx_io.types import element_type

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.core.program import Block, Op, Var, VarId

_OLDEST_IR = 8
"""Below IR 4, weights must be inputs and inference then ignores their data."""

_WHOLE = frozenset({"int64", "int32"})

_MOST = 64
"""Elements up to which numbers may say a shape."""


class Content(NamedTuple):
    """The values of a small weight, and what keeps them."""

    value: Hashable
    source: TensorProto | NodeProto


def may_say_shape(var: Var) -> bool:
    """Whether a var's values may be dims: a few whole numbers, or factors of a Resize."""
    if var.dtype not in _WHOLE and (var.dtype, var.origin) != ("float32", Origin.WEIGHT):
        return False
    return prod(dim for dim in var.shape or () if isinstance(dim, int)) <= _MOST


def contents_of(
    blocks: Iterable[tuple[GraphProto, Block]], weights: Iterable[Var]
) -> Mapping[VarId, Content]:
    """Return the values of the weights that may say a shape; none that are kept elsewhere."""
    small = {(var.block, var.name): var.id for var in weights if may_say_shape(var)}
    found: dict[VarId, Content] = {}
    for graph, block in blocks if small else ():
        for tensor in graph.initializer:
            weight = small.pop((block.path, tensor.name), None)
            if weight is not None and tensor.data_location != tensor.EXTERNAL:
                found[weight] = Content(_values(tensor), tensor)
    # What is left is made by Constant nodes.
    for graph, block in blocks if small else ():
        for op in block.ops:
            if op.type == "Constant" and op.outputs and op.outputs[0]:
                node = graph.node[op.source]
                weight = small.get((block.path, node.output[0]))
                if weight is not None:
                    value = tuple(said.SerializeToString() for said in node.attribute)
                    found[weight] = Content(value, node)
    return found


def _values(tensor: TensorProto) -> Hashable:
    return (
        tensor.data_type,
        *(tuple(tensor.dims), tensor.raw_data, tuple(tensor.int64_data)),
        *(tuple(tensor.int32_data), tuple(tensor.float_data)),
    )


class NodeQuery:
    """A model given to inference to query single nodes, made node by node."""

    def __init__(
        self, model: ModelProto, known: Mapping[VarId, Var], contents: Mapping[VarId, Content]
    ) -> None:
        self._known, self._contents = known, contents
        self._names: dict[VarId, str] = {}
        self._made = 0
        self._model = type(model)()
        self._model.ir_version = max(model.ir_version, _OLDEST_IR)
        self._model.opset_import.extend(model.opset_import)
        self._model.graph.name = "query"

    def chain(self, node: NodeProto, op: Op) -> None:
        """Add a node whose results the nodes after it read, values and all."""
        self._names.update(zip(op.outputs, self.add(node, op), strict=True))

    def add(self, node: NodeProto, op: Op) -> list[str]:
        """Add a node to query; return the names that its results have in the answer."""
        names = [self._name(var) if var else "" for var in op.inputs]
        copy = self._model.graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = names
        copy.output[:] = [self._fresh() if var else "" for var in op.outputs]
        return list(copy.output)

    def data(self) -> bytes:
        """Return the model as bytes."""
        data: bytes = self._model.SerializeToString()
        return data

    def _fresh(self) -> str:
        self._made += 1
        return f"v{self._made}"

    def _name(self, var: VarId) -> str:
        """Return what a var is called; it is declared where nothing added so far makes it."""
        name = self._names.get(var)
        if name is not None:
            return name
        name = self._names[var] = self._fresh()
        content = self._contents.get(var)
        if content is None:
            self._declare(name, self._known[var])
        elif hasattr(content.source, "op_type"):
            node = self._model.graph.node.add()
            node.CopyFrom(content.source)
            node.output[:] = [name]
        else:
            tensor = self._model.graph.initializer.add()
            tensor.CopyFrom(content.source)
            tensor.name = name
        return name

    def _declare(self, name: str, var: Var) -> None:
        value = self._model.graph.input.add()
        value.name = name
        element = element_type(var.dtype)
        if not element:
            return
        tensor = value.type.tensor_type
        tensor.elem_type = element
        if var.shape is None:
            return
        tensor.shape.SetInParent()
        for dim in var.shape:
            said = tensor.shape.dim.add()
            if isinstance(dim, int):
                said.dim_value = dim
            elif dim is not None:
                said.dim_param = dim
