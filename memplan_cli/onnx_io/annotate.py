"""A rewritten model + its plan -> the bytes of the file, with notes for viewers.

The notes of a large graph are larger than the graph, and as protobuf messages several times
their size: here those of the top block become bytes that are put between the fields of the
model, and nothing of them is ever a message. Bodies are small: theirs are merged into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import islice
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import steps
from memplan_cli.onnx_io.load import subgraphs
from memplan_cli.onnx_io.messages import messages
from memplan_cli.onnx_io.notes import PREFIX
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.wire import Entries, Field, head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.ir import Block, Program
    from memplan_cli.plan import Placement, Plan

_PART = 1000
"""Nodes or values whose bytes are kept as one part."""


def annotated(model: ModelProto, program: Program, plan: Plan) -> Sequence[bytes]:
    """Return the bytes of a model with its plan in the metadata of nodes and values, in parts.

    Args:
        model: Its nodes are in the program's order; it is used up.
        program: In the planned order.
        plan: What is written down.
    """
    field = type(model).GRAPH_FIELD_NUMBER
    graph = _annotated_graph(model.graph, program.body, _Notes.of(program, plan))
    model.ClearField("graph")
    after = _taken_after(model, field)
    before = model.SerializeToString(deterministic=True)
    return [before + head(field, sum(map(len, graph))), *graph, after]


def _annotated_graph(graph: GraphProto, block: Block, notes: _Notes) -> Sequence[bytes]:
    """Return the fields of the top graph in the order of their numbers; it is used up."""
    node_field = Field(type(graph).NODE_FIELD_NUMBER)
    nodes = _joined(
        node_field(node.SerializeToString(deterministic=True) + entries)
        for node, entries in _noted(graph, block, notes)
    )
    graph.ClearField("node")
    values = _joined(_noted_values(graph, block.path, notes))
    after = _taken_after(graph, type(graph).VALUE_INFO_FIELD_NUMBER)
    return [*nodes, graph.SerializeToString(deterministic=True), *values, after]


def _joined(pieces: Iterable[bytes]) -> Sequence[bytes]:
    """Join many small pieces into parts: with their notes, 65,000 nodes are 17 megabytes.

    One buffer for all would be copied as it grows, a list of the pieces takes half as much
    again.
    """
    left, parts = iter(pieces), []
    while part := b"".join(islice(left, _PART)):
        parts.append(part)
    return parts


def _taken_after(message: ModelProto | GraphProto, field: int) -> bytes:
    """Take the fields with greater numbers out of a message, and return their bytes."""
    rest = type(message)()
    for descriptor, value in message.ListFields():
        if descriptor.number > field:
            getattr(rest, descriptor.name).MergeFrom(value)
            message.ClearField(descriptor.name)
    data: bytes = rest.SerializeToString(deterministic=True)
    return data


@dataclass(frozen=True, slots=True)
class _Notes:
    """A plan, sorted by where it is written down."""

    steps: Mapping[str, Sequence[Step]]
    tensors: Mapping[str, Mapping[str, Placement]]
    dying: Mapping[int, Sequence[str]]
    shapes_hold: bool
    """Whether the shapes are the model's own, and not those of one set of bindings."""

    @classmethod
    def of(cls, program: Program, plan: Plan) -> _Notes:
        by_block: dict[str, list[Step]] = {}
        for step in steps(program):
            by_block.setdefault(step.block.path, []).append(step)
        tensors: dict[str, dict[str, Placement]] = {}
        for tensor in plan.tensors:
            tensors.setdefault(tensor.block, {})[tensor.name] = tensor
        bound = ("dims", "shapes", "profile_shapes")
        return cls(
            by_block,
            tensors,
            {release.step: release.tensors for release in plan.releases},
            not any(plan.settings.get(name) for name in bound),
        )


def _noted(
    graph: GraphProto, block: Block, notes: _Notes
) -> Iterator[tuple[NodeProto, bytes]]:
    """Yield each node, its bodies annotated, with its own notes."""
    step_entry, release_entry = _node_entries()
    for node, step in zip(graph.node, notes.steps.get(block.path, ()), strict=True):
        entries = step_entry.number(step.start)
        if step.end in notes.dying:
            names = ", ".join(map(quoted, notes.dying[step.end]))
            entries += release_entry(f"[{names}]")
        if step.op.bodies:
            for (_, inner), body in zip(subgraphs(node), step.op.bodies, strict=True):
                _annotate_body(inner, body, notes)
        yield node, entries


def _annotate_body(graph: GraphProto, block: Block, notes: _Notes) -> None:
    for node, entries in _noted(graph, block, notes):
        node.MergeFromString(entries)
    graph.MergeFromString(b"".join(_noted_values(graph, block.path, notes)))


def _noted_values(graph: GraphProto, path: str, notes: _Notes) -> Iterator[bytes]:
    """Annotate a graph's inputs and outputs, and take its other values out of it.

    Yields the fields of those values, annotated, and of those that it does not declare.
    """
    here = dict(notes.tensors.get(path, {}))
    place = _Places(_place_entries())
    value_info = Field(type(graph).VALUE_INFO_FIELD_NUMBER)
    for value in graph.value_info:
        tensor = here.pop(value.name, None)
        entries = b"" if tensor is None else place(tensor)
        yield value_info(value.SerializeToString(deterministic=True) + entries)
    graph.ClearField("value_info")
    for value in (*graph.input, *graph.output):
        tensor = here.pop(value.name, None)
        if tensor is not None:
            value.MergeFromString(place(tensor))
    types: dict[tuple[str, tuple[int | str, ...]], bytes] = {}
    named = Field(messages().ValueInfoProto.NAME_FIELD_NUMBER)
    for name, tensor in here.items():
        _, _, dtype, shape, *_ = tensor
        kind = types.get((dtype, shape))
        if kind is None:
            kind = types[dtype, shape] = _typed(tensor, notes).SerializeToString()
        yield value_info(named(name.encode()) + kind + place(tensor))


def _typed(tensor: Placement, notes: _Notes) -> ValueInfoProto:
    """Return a value without a name, of a tensor's type."""
    value: ValueInfoProto = messages().ValueInfoProto()
    kind = value.type.tensor_type
    kind.elem_type = element_type(tensor.dtype)
    kind.shape.SetInParent()
    for dim in tensor.shape:
        # A runtime believes what it reads: a batch that was bound for the plan only
        # would be folded into the graph.
        if dim == "?" or not notes.shapes_hold:
            kind.shape.dim.add()
        elif isinstance(dim, int):
            kind.shape.dim.add(dim_value=dim)
        else:
            kind.shape.dim.add(dim_param=dim)
    return value


@cache
def _node_entries() -> tuple[Entries, Entries]:
    field = messages().NodeProto.METADATA_PROPS_FIELD_NUMBER
    return Entries(field, f"{PREFIX}step"), Entries(field, f"{PREFIX}release")


@cache
def _place_entries() -> tuple[Entries, ...]:
    field = messages().ValueInfoProto.METADATA_PROPS_FIELD_NUMBER
    keys = ("arena", "offset", "bytes", "first", "last", "alias_of")
    return tuple(Entries(field, f"{PREFIX}{key}") for key in keys)


class _Places:
    """The entries that say where a tensor lies and when."""

    def __init__(self, entries: tuple[Entries, ...]) -> None:
        arena, self._offset, size, self._first, self._last, self._alias = entries
        self._arena, self._size = cache(arena.number), cache(size.number)  # there are few

    def __call__(self, tensor: Placement) -> bytes:
        _, _, _, _, size, arena, offset, _, first, last, alias_of, _ = tensor
        entries = (
            self._arena(arena)
            + self._offset.number(offset)
            + self._size(size)
            + self._first.number(first)
            + self._last.number(last)
        )
        return entries if alias_of is None else entries + self._alias(alias_of)
