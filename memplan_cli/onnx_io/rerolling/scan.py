"""Steps written as one Scan; what is read of them outside are parts of what it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memplan_cli.onnx_io.rerolling.links import (
    Carried,
    Constants,
    Parts,
    Same,
    Within,
)
from memplan_cli.onnx_io.types import element_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from onnx import NodeProto, TensorProto, ValueInfoProto

    from memplan_cli.onnx_io.rerolling.exports import Exports
    from memplan_cli.onnx_io.rerolling.graph import UnrolledGraph, ValueType
    from memplan_cli.onnx_io.rerolling.links import Link, Place
    from memplan_cli.onnx_io.rerolling.steps import Steps

OPSET = 11
"""The first of which all operators are written here: Scan over axes, Slice by inputs."""

_AXES_ARE_READ = 13
"""The opset from which Squeeze and Unsqueeze read their axes."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What new nodes are written by.

    Attributes:
        fresh: returns a name like another that nothing has.
        opset: of the standard operators.
    """

    fresh: Callable[[str], str]
    opset: int


@dataclass(frozen=True, slots=True)
class Rolled:
    """What stands for the nodes of steps.

    Attributes:
        nodes: new ones, in order.
        replaced: new nodes for some that are not of the steps, by number; None for one that is
            gone.
        constants: that the new nodes read.
        types: of the new values outside of the Scan.
        copied: values that are copies of parts of what the Scan gives.
    """

    nodes: tuple[NodeProto, ...]
    replaced: dict[int, NodeProto | None]
    constants: tuple[TensorProto, ...]
    types: dict[str, ValueType]
    copied: tuple[str, ...]


class _Outer(NamedTuple):
    """A value outside of the Scan, and what a step reads or makes of it.

    Attributes:
        name: of all steps.
        inner: of one.
        type: of one.
        axis: along which a state has nothing, and others the steps.
        backwards: whether the first step reads the last part.
    """

    name: str
    inner: str
    type: ValueType
    axis: int = 0
    backwards: bool = False


def rolled(graph: UnrolledGraph, found: Exports, writing: Writing) -> Rolled:
    """Return steps as a Scan."""
    return _Writer(graph, found, found.linked.steps, writing).written()


@dataclass(slots=True)
class _Writer:
    graph: UnrolledGraph
    found: Exports
    steps: Steps
    writing: Writing
    nodes: list[NodeProto] = field(default_factory=list)
    inner: list[NodeProto] = field(default_factory=list)
    made: dict[Place, str] = field(default_factory=dict)
    """What a step calls its own values."""
    read: dict[Link, str] = field(default_factory=dict)
    """What a step calls those of the step before, and its parts of others."""
    replaced: dict[int, NodeProto | None] = field(default_factory=dict)
    constants: list[TensorProto] = field(default_factory=list)
    types: dict[str, ValueType] = field(default_factory=dict)
    copied: list[str] = field(default_factory=list)

    def written(self) -> Rolled:
        from onnx import helper

        carried, scanned = self._carried(), self._scanned()
        self._write_step()
        finals = [self._final(place) for place in self.found.linked.carried()]
        at = len(self.nodes)
        stacks = self._stacks()
        given = self._given((*finals, *stacks))
        axes = {"scan_output_axes": [each.axis for each in stacks]} if stacks else {}
        inputs = [self._value(each.inner, each.type) for each in (*carried, *scanned)]
        first = self.graph.nodes[self.steps.node(0, self.steps.first)]
        scan = helper.make_node(
            "Scan",
            [each.name for each in (*carried, *scanned)],
            [each.name for each in (*finals, *stacks)],
            self.writing.fresh(f"{first.name or first.op_type}/steps"),
            body=helper.make_graph(self.inner, self.writing.fresh("step"), inputs, given),
            num_scan_inputs=len(scanned),
            scan_input_axes=[each.axis for each in scanned],
            scan_input_directions=[int(each.backwards) for each in scanned],
            **axes,
        )
        self.nodes.insert(at, scan)
        return Rolled(
            tuple(self.nodes),
            self.replaced,
            tuple(self.constants),
            self.types,
            tuple(self.copied),
        )

    def _carried(self) -> list[_Outer]:
        """Return what the first step reads of the one before."""
        found = []
        for place, initial in self.found.linked.carried().items():
            inner = self.writing.fresh(f"{self._name(place)}/before")
            self.read[Carried(*place, initial)] = inner
            found.append(_Outer(initial, inner, self._type(place)))
        return found

    def _scanned(self) -> list[_Outer]:
        """Return what the steps read part by part; something to count them by if nothing."""
        found: dict[tuple[str, ...], _Outer] = {}
        for link in self.found.linked.links.values():
            if isinstance(link, Constants | Parts):
                if link.names not in found:
                    found[link.names] = self._whole(link)
                self.read[link] = found[link.names].inner
        if not found:
            whole = self._constant(np.zeros((len(self.steps), 1), np.bool_), "steps")
            return [_Outer(whole, self.writing.fresh("step"), ("bool", (1,)))]
        return list(found.values())

    def _whole(self, link: Constants | Parts) -> _Outer:
        """Return what steps read part by part."""
        return self._split(link) if isinstance(link, Parts) else self._all(link)

    def _all(self, link: Constants) -> _Outer:
        """Return constants as one."""
        from onnx.numpy_helper import to_array

        values = np.stack([to_array(self.graph.constants[name]) for name in link.names])
        whole, inner = f"{link.names[0]}/all", self.writing.fresh(link.names[0])
        kind = self.graph.types[link.names[0]]
        return _Outer(self._constant(values, whole), inner, kind)

    def _split(self, link: Parts) -> _Outer:
        """Return what is split, its parts along an axis of their own, and no others."""
        graph, axis = self.graph, link.axis
        split, (dtype, dims) = graph.nodes[link.node], graph.types[link.names[0]]
        whole, length = split.input[0], int(dims[axis])
        places = [graph.makers[name][1] for name in link.names]
        if len(places) < len(split.output):
            ends = min(places) * length, (max(places) + 1) * length, axis
            bounds = [self._constant(np.array([end]), f"{whole}/bound") for end in ends]
            part = *dims[:axis], len(places) * length, *dims[axis + 1 :]
            name = self.writing.fresh(f"{whole}/steps")
            whole = self._node("Slice", [whole, *bounds], name, (dtype, part))
        kind = dtype, (*dims[:axis], len(places), *dims[axis:])
        parts = self.writing.fresh(f"{whole}/parts")
        if length == 1:
            whole = self._axes_node("Unsqueeze", whole, axis + 1, parts, kind)
        else:
            whole = self._reshape(whole, parts, kind)
        inner = self.writing.fresh(link.names[0])
        return _Outer(whole, inner, (dtype, dims), axis, link.backwards)

    def _write_step(self) -> None:
        """Write the nodes of a step, called as those of the first are."""
        nodes, steps, fresh = self.graph.nodes, self.steps, self.writing.fresh
        order = sorted(range(len(steps.rows)), key=lambda row: steps.node(row, steps.middle))
        for row in order:
            for output, name in enumerate(nodes[steps.node(row, steps.first)].output):
                self.made[row, output] = fresh(f"{name}/each") if name else ""
        for row in order:
            node = type(nodes[0])()
            node.CopyFrom(nodes[steps.node(row, steps.first)])
            node.name = fresh(f"{node.name or node.op_type}/each")
            for place in range(len(node.input)):
                node.input[place] = self._input(self.found.linked.links[row, place])
            for output in range(len(node.output)):
                node.output[output] = self.made[row, output]
            self.inner.append(node)

    def _input(self, link: Link) -> str:
        if isinstance(link, Same):
            return link.name
        if isinstance(link, Within):
            return self.made[link.row, link.output]
        return self.read[link]

    def _final(self, place: Place) -> _Outer:
        """Return what a carried value is behind the last step."""
        last = self.steps.end - 1
        name = self._name(place, last)
        export = self.found.read.get(place)
        if export is None or last not in export.steps:
            name = self.writing.fresh(f"{name}/last")
        self.types[name] = self._type(place)
        return _Outer(name, self.made[place], self._type(place))

    def _stacks(self) -> list[_Outer]:
        """Return what is kept of all steps, and write what reads it."""
        found, carried = [], self.found.linked.carried()
        for place, export in self.found.read.items():
            final = self.steps.end - 1 if place in carried else None
            kept = [step for step in export.steps if step != final]
            if not kept:
                continue
            stack, (dtype, dims) = (
                self.writing.fresh(f"{self._name(place)}/all"),
                self._type(place),
            )
            axis = 0
            if export.concat is not None:
                axis = self._join(place, export.concat, stack)
            else:
                for step in kept:
                    self._take(place, stack, step)
            self.types[stack] = dtype, (*dims[:axis], len(self.steps), *dims[axis:])
            found.append(_Outer(stack, self.made[place], self._type(place), axis))
        return found

    def _take(self, place: Place, stack: str, step: int) -> None:
        """Write the value of a step as a part of those of all."""
        number = step - self.steps.first
        at = self._constant(np.array(number), f"{stack}/{number}")
        name = self._name(place, step)
        self.copied.append(self._node("Gather", [stack, at], name, self._type(place), axis=0))

    def _join(self, place: Place, number: int, stack: str) -> int:
        """Have a Concat that reads a value of all steps read it whole; return its axis."""
        node = type(self.graph.nodes[0])()
        node.CopyFrom(self.replaced.get(number) or self.graph.nodes[number])
        (dtype, dims), count = self._type(place), len(self.steps)
        axis = self.graph.axis_of(number, self._name(place)) or 0
        length = int(dims[axis])
        kind = dtype, (*dims[:axis], count * length, *dims[axis + 1 :])
        alone = len(node.input) == count
        joined = node.output[0] if alone else self.writing.fresh(f"{stack}/joined")
        if length == 1:
            self._axes_node("Squeeze", stack, axis + 1, joined, kind)
        else:
            self._reshape(stack, joined, kind)
        if not alone:
            names = list(node.input)
            start = names.index(self._name(place))
            names[start : start + count] = [joined]
            del node.input[:]
            node.input.extend(names)
        self.replaced[number] = None if alone else node
        return axis

    def _given(self, outputs: Sequence[_Outer]) -> list[ValueInfoProto]:
        """Return what a step gives; what it gives twice has two names."""
        from onnx import helper

        found: dict[str, ValueInfoProto] = {}
        for each in outputs:
            name = each.inner
            if name in found:
                name = self.writing.fresh(name)
                node = helper.make_node("Identity", [each.inner], [name], f"{name}/Identity")
                self.inner.append(node)
            found[name] = self._value(name, each.type)
        return list(found.values())

    def _name(self, place: Place, step: int | None = None) -> str:
        """Return what a value of a step is called outside: the first's if none is said."""
        number = self.steps.node(place[0], self.steps.first if step is None else step)
        return f"{self.graph.nodes[number].output[place[1]]}"

    def _type(self, place: Place) -> ValueType:
        return self.graph.types[self._name(place)]

    def _value(self, name: str, kind: ValueType) -> ValueInfoProto:
        from onnx import helper

        return helper.make_tensor_value_info(name, element_type(kind[0]), list(kind[1]))

    def _constant(self, value: NDArray[Any], like: str) -> str:
        from onnx.numpy_helper import from_array

        name = self.writing.fresh(like)
        self.constants.append(from_array(value, name))
        self.types[name] = f"{value.dtype}", value.shape
        return name

    def _reshape(self, value: str, output: str, kind: ValueType) -> str:
        """Write a Reshape; one dim of its result may be a name."""
        dims = [dim if isinstance(dim, int) else -1 for dim in kind[1]]
        shape = self._constant(np.array(dims, np.int64), f"{output}/shape")
        return self._node("Reshape", [value, shape], output, kind)

    def _axes_node(self, kind: str, value: str, axis: int, output: str, of: ValueType) -> str:
        """Write a Squeeze or an Unsqueeze."""
        if self.writing.opset < _AXES_ARE_READ:
            return self._node(kind, [value], output, of, axes=[axis])
        axes = self._constant(np.array([axis]), f"{output}/axes")
        return self._node(kind, [value, axes], output, of)

    def _node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        kind: ValueType,
        **said: Any,  # noqa: ANN401
    ) -> str:
        from onnx import helper

        name = self.writing.fresh(f"{output}/{operator}")
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name, **said))
        self.types[output] = kind
        return output
