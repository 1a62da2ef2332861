"""A graph's producers, input ranks and small constants, by name, for the search of caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.onnx_io.constants import constant_tensors, small_numbers
from memplan_cli.onnx_io.graph_editor import producers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, NodeProto

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
            producers(nodes),
            {
                value.name: len(value.type.tensor_type.shape.dim)
                for value in graph.input
                if value.name not in weights
                and value.type.HasField("tensor_type")
                and value.type.tensor_type.HasField("shape")
            },
            {
                name: numbers
                for name, tensor in constant_tensors(graph)
                if (numbers := small_numbers(tensor)) is not None
            },
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
