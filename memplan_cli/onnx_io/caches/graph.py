"""A graph's producers, readers and small constants, by name, for those who rewrite caches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import GraphProto, NodeProto, TensorProto

_SMALL = 64
"""Elements above which a constant is no shape, axis or permutation."""

PASSING = ("Identity", "Transpose", "Cast")
"""Operators through which a value is followed: they keep each element, or round it."""


@dataclass(frozen=True, slots=True)
class Index:
    """Where the values of a graph come from."""

    graph: GraphProto
    nodes: Sequence[NodeProto]
    producer: Mapping[str, int]
    ranks: Mapping[str, int]
    """Of the inputs that are fed, where they are declared."""
    constants: Mapping[str, tuple[int | float, ...]]

    @classmethod
    def of(cls, graph: GraphProto) -> Index:
        """Look at a graph once."""
        nodes = list(graph.node)
        weights = {tensor.name for tensor in graph.initializer}
        return cls(
            graph,
            nodes,
            {name: at for at, node in enumerate(nodes) for name in node.output if name},
            {
                value.name: len(value.type.tensor_type.shape.dim)
                for value in graph.input
                if value.name not in weights
                and value.type.HasField("tensor_type")
                and value.type.tensor_type.HasField("shape")
            },
            dict(_constants(graph)),
        )

    def made_by(self, name: str) -> NodeProto | None:
        """Return the node that makes a value, or None for what is given."""
        at = self.producer.get(name)
        return None if at is None else self.nodes[at]

    def traced(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Follow a value back through `PASSING`: where it comes from, and the nodes, first first."""
        path: list[int] = []
        while (at := self.producer.get(name)) is not None:
            node = self.nodes[at]
            if node.op_type not in PASSING or node.domain not in STANDARD_DOMAINS:
                break
            path.append(at)
            name = node.input[0]
        return name, tuple(reversed(path))

    def permutation(self, path: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return the axes of a value behind nodes of `PASSING`, as axes of the one before."""
        axes = tuple(range(rank))
        for at in path:
            node = self.nodes[at]
            if node.op_type == "Transpose":
                order = attribute(node, "perm") or tuple(reversed(range(rank)))
                axes = tuple(axes[place] for place in order)
        return axes

    def rounds(self, path: Sequence[int]) -> bool:
        """Whether there is a Cast among nodes."""
        return any(self.nodes[at].op_type == "Cast" for at in path)


def attribute(node: NodeProto, name: str) -> tuple[int, ...]:
    """Return an attribute of whole numbers; one number is a tuple of it, none is empty."""
    for each in node.attribute:
        if each.name == name:
            return tuple(each.ints) if each.ints else (each.i,)
    return ()


def _constants(graph: GraphProto) -> Iterator[tuple[str, tuple[int | float, ...]]]:
    from onnx import numpy_helper

    made = (
        (node.output[0], _value(node)) for node in graph.node if node.op_type == "Constant"
    )
    given = ((tensor.name, tensor) for tensor in graph.initializer)
    for name, tensor in chain(given, made):
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            continue
        count = 1
        for dim in tensor.dims:
            count *= dim
        if count <= _SMALL and tensor.data_type in _NUMBERS:
            yield name, tuple(numpy_helper.to_array(tensor).reshape(-1).tolist())


_NUMBERS = (1, 6, 7, 10, 11)
"""float32, int32, int64, float16 and float64, as ONNX numbers them."""


def _value(node: NodeProto) -> TensorProto | None:
    from onnx import helper

    for each in node.attribute:
        if each.name == "value":
            return each.t
        if each.name in ("value_int", "value_ints"):
            numbers = list(each.ints) or [each.i]
            return helper.make_tensor("", 7, [len(numbers)], numbers)
    return None
