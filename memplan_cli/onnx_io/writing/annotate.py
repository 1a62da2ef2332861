"""A rewritten model + its plan -> the bytes of the file, with notes for viewers.

The notes of a large graph are larger than the graph, and as protobuf messages several times
their size: here those of the top block become bytes that are put between the fields of the
model, and nothing of them is ever a message. Subgraphs are small: theirs are merged into them.
"""

from __future__ import annotations

from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.liveness import timed
from memplan_cli.onnx_io.load import subgraphs
from memplan_cli.onnx_io.metadata import IN_PLAN, NOTES
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.writing.notes import Notes, Values
from memplan_cli.onnx_io.writing.wire import Field, head

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.core.results.plan import Plan

_PART = 1000
"""Nodes or values whose bytes are kept as one part."""


def annotated(
    model: ModelProto, program: Program, plan: Plan, metadata: Mapping[str, str]
) -> list[bytes]:
    """Return the bytes of a model with its plan in the metadata of nodes and values, in parts.

    Where the plan's file alone has the notes, the
    model says so instead.

    Args:
        model: Its nodes are in the program's order; it is not changed.
        program: In the planned order.
        plan: What is written down.
        metadata: What is written into the metadata of the model itself.
    """
    graph = model.graph
    if plan.settings.get("notes") == IN_PLAN:
        declared = list(_joined(_value_info(_bytes(value)) for value in graph.value_info))
        around = _Around.of(model, lambda _: b"", {**metadata, NOTES: IN_PLAN})
        return _whole(model, map(_bytes, graph.node), around, declared)
    notes = Notes.of(program, plan)
    values = Values(notes, "", graph)
    declared = list(
        _joined(
            _value_info(_bytes(value) + values.entries(value.name))
            for value in graph.value_info
        )
    )
    around = _Around.of(model, values.entries, metadata)
    added = _joined(map(_value_info, values.undeclared()))
    return _whole(model, _noted(graph, program.body, notes), around, chain(declared, added))


def _whole(
    model: ModelProto, nodes: Iterable[bytes], around: _Around, values: Iterable[bytes]
) -> list[bytes]:
    """Return the bytes of a model, in parts, from those of its nodes and declared values."""
    node_field = Field(type(model.graph).NODE_FIELD_NUMBER)
    ops = _joined(map(node_field, nodes))
    inside = [*ops, around.graph, *values, around.graph_end]
    size = sum(map(len, inside))
    start = around.start + head(type(model).GRAPH_FIELD_NUMBER, size)
    return [start, *inside, around.end]


def _bytes(message: NodeProto | ValueInfoProto) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _value_info(value: bytes) -> bytes:
    return _declared()(value)


@cache
def _declared() -> Field:
    return Field(messages().GraphProto.VALUE_INFO_FIELD_NUMBER)


class _Around(NamedTuple):
    """The bytes of a model around the nodes and values of its top graph."""

    start: bytes
    graph: bytes
    """Between nodes and values, in the order of the numbers of the fields."""
    graph_end: bytes
    end: bytes

    @classmethod
    def of(
        cls, model: ModelProto, entries: Callable[[str], bytes], metadata: Mapping[str, str]
    ) -> _Around:
        """Annotate inputs, outputs and the model in a copy, which is let go at once."""
        rest = _without_rows(model)
        graph = rest.graph
        for value in (*graph.input, *graph.output):
            value.MergeFromString(entries(value.name))
        graph_end = _taken_after(graph, type(graph).VALUE_INFO_FIELD_NUMBER)
        middle = graph.SerializeToString(deterministic=True)
        rest.ClearField("graph")
        for key, said in metadata.items():
            _say(rest, key, said)
        end = _taken_after(rest, type(model).GRAPH_FIELD_NUMBER)
        return cls(rest.SerializeToString(deterministic=True), middle, graph_end, end)


def _without_rows(model: ModelProto) -> ModelProto:
    """Return a copy of a model but for the nodes and values of its top graph."""
    from google.protobuf.unknown_fields import (  # type: ignore[import-untyped]
        UnknownFieldSet,
    )

    rest = type(model)()
    if any(len(UnknownFieldSet(message)) for message in (model, model.graph)):
        rest.CopyFrom(model)  # what this version of onnx has no name for goes along
        rest.graph.ClearField("node")
        rest.graph.ClearField("value_info")
        return rest
    _copy(model, rest, ("graph",))
    rest.graph.SetInParent()
    _copy(model.graph, rest.graph, ("node", "value_info"))
    return rest


def _copy(
    source: ModelProto | GraphProto, target: ModelProto | GraphProto, without: Collection[str]
) -> None:
    """Copy the fields of a message that are set, but for some."""
    for descriptor, value in source.ListFields():
        if descriptor.name in without:
            continue
        if isinstance(value, (int, str, bytes)):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).MergeFrom(value)


def _say(model: ModelProto, key: str, value: str) -> None:
    """Write an entry into a model's metadata, over the one of that key if there is one."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join many small pieces into parts: with their notes, 65,000 nodes are 17 megabytes."""
    left = iter(pieces)
    while part := b"".join(islice(left, _PART)):
        yield part


def _taken_after(message: ModelProto | GraphProto, field: int) -> bytes:
    """Take the fields with greater numbers out of a message, and return their bytes."""
    rest = type(message)()
    for descriptor, value in message.ListFields():
        if descriptor.number > field:
            getattr(rest, descriptor.name).MergeFrom(value)
            message.ClearField(descriptor.name)
    data: bytes = rest.SerializeToString(deterministic=True)
    return data


def _noted(graph: GraphProto, block: Block, notes: Notes) -> Iterator[bytes]:
    """Yield the bytes of each node of the top graph with its notes and those of its subgraphs."""
    clock = timed(notes.steps.get(block.path, ()))
    said = notes.in_words(block.path, len(graph.node))
    for node, (start, end, op) in zip(graph.node, clock, strict=True):
        whole = node
        if op.bodies:
            whole = type(node)()
            whole.CopyFrom(node)
            _annotate_bodies(whole, op, notes)
        entries = notes.entries(start, end, _memory(node, said))
        yield _bytes(whole) + entries


def _memory(node: NodeProto, said: Mapping[str, str]) -> str:
    """Return what a node's outputs take, in words; nothing where no plan has them."""
    return "; ".join(said[name] for name in node.output if name in said) if said else ""


def _annotate_bodies(node: NodeProto, op: Op, notes: Notes) -> None:
    for (_, graph), block in zip(subgraphs(node), op.bodies, strict=True):
        said = notes.in_words(block.path, len(graph.node))
        for inner, step in zip(graph.node, notes.steps.get(block.path, ()), strict=True):
            if step.op.bodies:
                _annotate_bodies(inner, step.op, notes)
            entries = notes.entries(step.start, step.end, _memory(inner, said))
            inner.MergeFromString(entries)
        values = Values(notes, block.path, graph)
        for value in (*graph.value_info, *graph.input, *graph.output):
            value.MergeFromString(values.entries(value.name))
        graph.MergeFromString(b"".join(map(_value_info, values.undeclared())))
