"""A graph's nodes with who makes and who reads each value, and which nodes do the same."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from memplan_cli.core.program import RANDOM
from memplan_cli.onnx_io.load import captures, subgraphs
from memplan_cli.onnx_io.read import plain_attributes
from memplan_cli.onnx_io.types import bytes_of, dtype_name, tensor_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from onnx import ModelProto, NodeProto, TensorProto

SMALL = 16
"""Elements of a constant that may be another one in each step: an index, the bounds of a slice."""

CAPTURED = -1
"""The input by which a node reads what its subgraphs capture."""

ValueType = tuple[str, tuple[int | str, ...]]
"""A tensor's dtype and its dims; a name stands for the same number everywhere."""

_ROUNDS = 3
"""Nodes that do the same are told apart by what lies up to so many nodes around them."""


@dataclass(frozen=True)
class UnrolledGraph:
    """The nodes at the top of a model, as they were given.

    Attributes:
        nodes: in an order in which they can run.
        makers: of each value a node makes: the node, and the output.
        readers: of each value: the nodes that read it, and by which input.
        results: values that the model gives.
        constants: weights by name, as no caller may replace them.
        types: of the values of which the runtime knows rank and dims.
        dims: numbers of symbolic dims.
    """

    nodes: tuple[NodeProto, ...]
    makers: Mapping[str, tuple[int, int]]
    readers: Mapping[str, Sequence[tuple[int, int]]]
    results: frozenset[str]
    constants: Mapping[str, TensorProto]
    types: Mapping[str, ValueType]
    dims: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: ModelProto, types: Mapping[str, Any], dims: Mapping[str, int]
    ) -> UnrolledGraph:
        """Return the view of a model, of whose values a runtime says ``types``."""
        graph, nodes = model.graph, tuple(model.graph.node)
        given = {value.name for value in graph.input}
        constants = {t.name: t for t in graph.initializer if t.name not in given}
        readers: dict[str, list[tuple[int, int]]] = {}
        for number, node in enumerate(nodes):
            for place, name in enumerate(node.input):
                if name:
                    readers.setdefault(name, []).append((number, place))
            for name in captures(node):
                readers.setdefault(name, []).append((number, CAPTURED))
        return cls(
            nodes,
            {
                o: (i, k)
                for i, node in enumerate(nodes)
                for k, o in enumerate(node.output)
                if o
            },
            readers,
            frozenset(value.name for value in graph.output),
            constants,
            _types(model, types, constants),
            dims,
        )

    @cached_property
    def kinds(self) -> tuple[object, ...]:
        """What each node does, with which constants, on what types; None where nobody may say."""
        return tuple(map(self._kind, self.nodes))

    @cached_property
    def classes(self) -> tuple[Sequence[int], ...]:
        """Of each round, a number for each node: those with equal ones do the same.

        In the first they have one kind, in the others their neighbours do the same by the round
        before. Colour refinement (Weisfeiler and Leman 1968), a few rounds of it.
        """
        numbers: dict[object, int] = {}
        found = [[numbers.setdefault(kind, len(numbers)) for kind in self.kinds]]
        for _ in range(_ROUNDS):
            around = (self._around(number, found[-1]) for number in range(len(self.nodes)))
            found.append([numbers.setdefault(key, len(numbers)) for key in around])
        return tuple(found)

    def depths(self, marked: Iterable[int]) -> list[int]:
        """Return, by node, the most marked ones on a way to it, itself included."""
        counted, found = set(marked), [0] * len(self.nodes)
        for number, needed in enumerate(self._needs):
            deepest = max((found[each] for each in needed), default=0)
            found[number] = deepest + (number in counted)
        return found

    def is_small(self, name: str) -> bool:
        """Whether a value is a constant that may differ from step to step."""
        tensor = self.constants.get(name)
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            return False
        return math.prod(int(dim) for dim in tensor.dims) <= SMALL

    def bytes_of(self, name: str) -> int | None:
        """Return a value's bytes; None where they are not known."""
        return bytes_of(*self.types[name], self.dims) if name in self.types else None

    def axis_of(self, number: int, part: str) -> int | None:
        """Return the axis along which a node splits or joins parts that a loop has one by one.

        None where parts of several elements have several symbolic dims, or none is known along it.
        """
        _, dims = self.types.get(part, ("", ()))
        said = plain_attributes(self.nodes[number]).get("axis", 0)
        if not dims or not isinstance(said, int):
            return None
        axis = said % len(dims)
        symbolic = sum(isinstance(dim, str) for dim in dims)
        is_reshaped = symbolic <= 1 and isinstance(dims[axis], int)
        return axis if is_reshaped or dims[axis] == 1 else None

    @cached_property
    def even_splits(self) -> frozenset[int]:
        """Nodes that split into parts of one type, which a loop could read one by one."""
        return frozenset(
            number
            for number, node in enumerate(self.nodes)
            if node.op_type == "Split"
            and len({self.types.get(name) for name in node.output}) == 1
            and self.axis_of(number, node.output[0]) is not None
        )

    @cached_property
    def _needs(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that make what each node reads."""
        needs: list[set[int]] = [set() for _ in self.nodes]
        for name, found in self.readers.items():
            if name in self.makers:
                for number, _ in found:
                    needs[number].add(self.makers[name][0])
        return tuple(map(tuple, needs))

    def _kind(self, node: NodeProto) -> object:
        drawn = node.op_type in RANDOM or "Dropout" in node.op_type
        made = [self.types.get(name) for name in node.output if name]
        if drawn or None in made or not made or any(True for _ in subgraphs(node)):
            return None
        attributes = tuple(sorted(a.SerializeToString() for a in node.attribute))
        outputs = tuple(self.types.get(name) for name in node.output)
        return (
            node.domain,
            node.op_type,
            attributes,
            tuple(map(self._input, node.input)),
            outputs,
        )

    def _input(self, name: str) -> object:
        if self.is_small(name):
            tensor = self.constants[name]
            return tensor.data_type, tuple(tensor.dims)
        return name if name in self.constants else name and "a value"

    def _around(self, number: int, found: Sequence[int]) -> object:
        node = self.nodes[number]
        makers = tuple(
            (found[self.makers[name][0]], self.makers[name][1])
            if name in self.makers
            else None
            for name in node.input
        )
        readers = tuple(
            tuple(
                sorted((found[reader], place) for reader, place in self.readers.get(name, ()))
            )
            for name in node.output
        )
        return found[number], makers, readers


def _types(
    model: ModelProto, said: Mapping[str, Any], constants: Mapping[str, TensorProto]
) -> dict[str, ValueType]:
    """Return the types of values, weights and inputs, where all dims are known."""
    found: dict[str, ValueType] = {
        name: (dtype_name(tensor.data_type), tuple(tensor.dims))
        for name, tensor in constants.items()
    }
    for value in model.graph.input:
        if value.type.HasField("tensor_type") and tensor_type(value)[1].HasField("shape"):
            kind = tensor_type(value)[1]
            dims = tuple(dim.dim_param or dim.dim_value for dim in kind.shape.dim)
            found[value.name] = dtype_name(kind.elem_type), dims
    for name, (dtype, shape) in said.items():
        if None not in shape:
            found[name] = dtype, tuple(shape)
    return found
