"""The bytes of a planned model: a rewritten graph with the plan in the metadata of nodes and values.

The notes of a large graph are larger than the graph, and as protobuf messages several times their size.
So the notes of the main graph are encoded as bytes and placed between the fields of the model, and are
never messages. Subgraphs are small: their notes are merged into their messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from json.encoder import encode_basestring as json_string
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import duration, steps
from memplan_cli.core.results.placements import in_words
from memplan_cli.onnx_io.metadata import IN_PLAN, NOTES, PREFIX
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.wire_format import encoded_entry, field, head

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

_FIELDS_PER_PART = 1000
"""Fields of nodes and values that are joined into one bytes object."""

_NODE_METADATA, _VALUE_METADATA = 9, 4
"""The field numbers of ``metadata_props`` in NodeProto and ValueInfoProto."""

_MAX_DRAWN_NODES = 5000
"""Graph viewers do not draw larger graphs: their nodes get no memory text."""


def annotated(
    model: ModelProto, program: Program, plan: Plan, metadata: Mapping[str, str]
) -> list[bytes]:
    """Return the bytes of a model, in parts, with its plan in the metadata of nodes and values.

    If the plan's settings keep the notes in the plan file, the model's metadata says so, and nodes and
    values get none. The model, whose nodes are in the program's order, is not changed.
    """
    # ``rest`` has the graph's inputs and outputs, but neither nodes nor value_info.
    graph, rest = model.graph, _without_nodes_and_values(model)
    if plan.settings.get("notes") == IN_PLAN:
        return _assembled(
            rest,
            nodes=map(_serialized, graph.node),
            values=map(_serialized, graph.value_info),
            metadata={**metadata, NOTES: IN_PLAN},
        )
    notes = PlanNotes.of(program, plan)
    value_notes = ValueNotes(notes, path="")  # of the main graph
    for value in (*rest.graph.input, *rest.graph.output):
        value.MergeFromString(value_notes.take_placement(value.name))
    return _assembled(
        rest,
        nodes=_annotated_nodes(graph, program, notes),
        # Placements that were not taken above belong to other values. One without value_info gets it here.
        values=value_notes.annotated(graph.value_info),
        metadata=metadata,
    )


def _assembled(
    rest: ModelProto,
    nodes: Iterator[bytes],
    values: Iterator[bytes],
    metadata: Mapping[str, str],
) -> list[bytes]:
    """Return the bytes of a model, in parts, from serialized nodes and values and the rest of the model.

    As in a message that protobuf writes, fields are in the order of their numbers.

    Args:
        rest: The model without nodes and value_info of its main graph. Its fields are moved to the result.
        nodes: The serialized nodes of the main graph.
        values: The serialized value_info of the main graph.
        metadata: Entries to add; they replace entries of the model with the same keys.
    """
    model_type = type(rest)
    graph_parts = _graph_parts(rest.graph, nodes, values)
    tag_and_length = head(model_type.GRAPH_FIELD_NUMBER, sum(map(len, graph_parts)))
    rest.ClearField("graph")
    for key, text in metadata.items():
        _set_metadata(rest, key, text)
    after_graph = _pop_fields_after(rest, model_type.GRAPH_FIELD_NUMBER)
    before_graph = rest.SerializeToString(deterministic=True)
    return [before_graph + tag_and_length, *graph_parts, after_graph]


def _graph_parts(
    rest: GraphProto, nodes: Iterator[bytes], values: Iterator[bytes]
) -> list[bytes]:
    """Return the bytes of a graph, as parts in the order of its fields: a part has many nodes, or many values.

    ``nodes`` and ``values`` are serialized. ``rest`` is the graph without these; its fields that come
    after ``value_info`` in GraphProto are removed from it.
    """
    fields_after_values = _pop_fields_after(rest, type(rest).VALUE_INFO_FIELD_NUMBER)
    # Nodes are the first field of a graph, so the fields left in ``rest`` come between nodes and values.
    fields_between = rest.SerializeToString(deterministic=True)
    node_field = partial(field, type(rest).NODE_FIELD_NUMBER)
    node_parts = _joined(map(node_field, nodes))
    value_parts = _joined(map(_value_info_field, values))
    return [*node_parts, fields_between, *value_parts, fields_after_values]


def _serialized(message: NodeProto | ValueInfoProto) -> bytes:
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _value_info_field(value: bytes) -> bytes:
    """Return a serialized ValueInfoProto as a field of its graph."""
    return field(messages().GraphProto.VALUE_INFO_FIELD_NUMBER, value)


def _joined(fields: Iterable[bytes]) -> Iterator[bytes]:
    """Join many small bytes objects into fewer large ones: each object has a header of 33 bytes."""
    remaining = iter(fields)
    while part := b"".join(islice(remaining, _FIELDS_PER_PART)):
        yield part


def _without_nodes_and_values(model: ModelProto) -> ModelProto:
    """Return a copy of a model without the nodes and value_info of its main graph.

    Fields are copied one by one, so that nodes are never copied, unless some are unknown.
    """
    from google.protobuf.unknown_fields import (  # type: ignore[import-untyped]
        UnknownFieldSet,
    )

    copy = type(model)()
    if any(len(UnknownFieldSet(message)) for message in (model, model.graph)):
        copy.CopyFrom(model)  # keeps fields that this version of onnx does not know
        copy.graph.ClearField("node")
        copy.graph.ClearField("value_info")
        return copy
    _copy_fields(model, copy, but=("graph",))
    copy.graph.SetInParent()  # the graph is present even if no other field of it is set
    _copy_fields(model.graph, copy.graph, but=("node", "value_info"))
    return copy


def _copy_fields(
    source: ModelProto | GraphProto, target: ModelProto | GraphProto, but: Collection[str]
) -> None:
    """Copy the set fields of a message into ``target``, but for those named ``but``."""
    for descriptor, value in source.ListFields():
        if descriptor.name in but:
            continue
        if isinstance(value, (int, str, bytes)):
            setattr(target, descriptor.name, value)
        else:
            getattr(target, descriptor.name).MergeFrom(value)


def _set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set an entry of a model's metadata, in place."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


def _pop_fields_after(message: ModelProto | GraphProto, number: int) -> bytes:
    """Remove the fields with numbers above ``number`` from a message, in place; return their bytes.

    All removed fields must be repeated or messages: others cannot be merged.
    """
    popped = type(message)()
    for descriptor, value in message.ListFields():
        if descriptor.number > number:
            getattr(popped, descriptor.name).MergeFrom(value)
            message.ClearField(descriptor.name)
    data: bytes = popped.SerializeToString(deterministic=True)
    return data


def _annotated_nodes(graph: GraphProto, program: Program, notes: PlanNotes) -> Iterator[bytes]:
    """Yield each node of the main graph, serialized, with notes on it and on its subgraphs."""
    memory_texts = notes.memory_texts(program.body)
    # The nodes, each followed by those of its subgraphs, have the steps of the program in this order.
    remaining_steps = steps(program)
    for node in graph.node:
        step = next(remaining_steps)
        annotated_node = node
        if step.op.bodies:
            annotated_node = type(node)()
            annotated_node.CopyFrom(node)
            _annotate_bodies(annotated_node, step.op, remaining_steps, notes)
        entries = notes.node_entries(step.start, step.end, _memory_text(node, memory_texts))
        # Bytes of a repeated field, here the metadata, may follow a serialized message.
        yield _serialized(annotated_node) + entries


def _annotate_bodies(
    node: NodeProto, op: Op, remaining_steps: Iterator[Step], notes: PlanNotes
) -> None:
    """Add notes to nodes and values of a node's subgraphs, in place.

    The next of ``remaining_steps`` are those of the subgraphs, a node's own step before the steps inside it.
    """
    for (_, graph), block in zip(subgraphs(node), op.bodies, strict=True):
        memory_texts = notes.memory_texts(block)
        for inner in graph.node:
            step = next(remaining_steps)
            _annotate_bodies(inner, step.op, remaining_steps, notes)
            text = _memory_text(inner, memory_texts)
            # Notes are encoded metadata entries. Merging appends them to the entries of the message.
            inner.MergeFromString(notes.node_entries(step.start, step.end, text))
        value_notes = ValueNotes(notes, block.path)  # has the placement of each value
        for value in (*graph.input, *graph.output):
            value.MergeFromString(value_notes.take_placement(value.name))  # each is taken once
        # All other values with a placement get it in the graph's value_info, some in a new entry. The encoded entries are
        # merged into the graph, as their notes are encoded too.
        values = b"".join(map(_value_info_field, value_notes.annotated(graph.value_info)))
        del graph.value_info[:]
        graph.MergeFromString(values)


def _memory_text(node: NodeProto, memory_texts: Mapping[str, str]) -> str:
    """Return where a node's planned results lie, in words; empty if there are none.

    ``memory_texts`` has the text of each tensor of the block, by name.
    """
    return "; ".join(memory_texts[name] for name in node.output if name in memory_texts)


@dataclass(frozen=True, slots=True)
class PlanNotes:
    """A plan, indexed by the nodes and values that get its notes.

    Attributes:
        placements: the placements of each block in the order of the plan, by its path.
        released: for each tick, the names of the tensors that are released after it.
        units: the unit of each arena, by its id.
        has_bound_dims: whether dims were bound for the plan, so that its shapes hold for these numbers
            only, and not for every run of the model.
    """

    placements: Mapping[str, Sequence[Placement]]
    released: Sequence[Sequence[str]]
    units: Mapping[int, str]
    has_bound_dims: bool

    @classmethod
    def of(cls, program: Program, plan: Plan) -> PlanNotes:
        """Group the placements of the program's plan by block, and its releases by tick (their step)."""
        placements: dict[str, list[Placement]] = {}
        for placement in plan.tensors:
            placements.setdefault(placement.block, []).append(placement)
        bindings = ("dims", "shapes", "profile_shapes")
        has_bound_dims = any(plan.settings.get(name) for name in bindings)
        released: list[Sequence[str]] = [()] * duration(program)
        for release in plan.releases:
            released[release.step] = release.tensors
        return cls(placements, released, plan.units, has_bound_dims)

    def node_entries(self, start: int, end: int, memory_text: str) -> bytes:
        """Return the encoded metadata of a node: its first tick, the tensors released after it, and its memory.

        ``start`` and ``end`` are its first and last tick. An empty ``memory_text`` is left out.
        """
        entries = encoded_entry(_NODE_METADATA, f"{PREFIX}step", start)
        released = self.released[end]
        if released:
            names = f"[{', '.join(map(json_string, released))}]"
            entries += encoded_entry(_NODE_METADATA, f"{PREFIX}release", names)
        if memory_text:
            entries += encoded_entry(_NODE_METADATA, f"{PREFIX}memory", memory_text)
        return entries

    def memory_texts(self, block: Block) -> Mapping[str, str]:
        """Return where each tensor of a block lies, in words; empty for graphs too large to draw."""
        if len(block.ops) > _MAX_DRAWN_NODES:
            return {}
        rows = self.placements.get(block.path, ())
        return {row.name: in_words(row, self.units) for row in rows}


class ValueNotes:
    """The placements of one block's values, each written as metadata of one declaration of its value.

    First those of graph inputs and outputs are taken one by one. `annotated` then writes the others.
    """

    def __init__(self, notes: PlanNotes, path: str) -> None:
        """Collect the placements of the block at ``path``; ``""`` is the main graph."""
        self._plan_notes = notes
        self._is_nested = bool(path)
        self._unwritten = {row.name: row for row in notes.placements.get(path, ())}

    def take_placement(self, name: str) -> bytes:
        """Return the placement of a value, encoded as metadata; empty if there is none or it was taken before."""
        row = self._unwritten.pop(name, None)
        return b"" if row is None else _placement_entries(row)

    def annotated(self, declared: Iterable[ValueInfoProto]) -> Iterator[bytes]:
        """Yield the declared values, serialized with their placements, then the values that are not declared."""
        # Serialized fields of one message may be joined: protobuf reads them as that message.
        for value in declared:
            yield _serialized(value) + self.take_placement(value.name)

        @cache
        def encoded_type(dtype: str, shape: tuple[int | str, ...]) -> bytes:
            return _serialized(_unnamed_value(dtype, shape, self._plan_notes))

        name_number = messages().ValueInfoProto.NAME_FIELD_NUMBER
        # Placements that were not taken are of values without a declaration.
        for name, row in self._unwritten.items():
            # In a branch that is never run, memplan gives values the shape (0,), which would be a wrong one.
            if not (self._is_nested and row.shape == (0,)):
                encoded = encoded_type(row.dtype, row.shape)
                yield field(name_number, name.encode()) + encoded + _placement_entries(row)


def _unnamed_value(dtype: str, shape: Sequence[int | str], notes: PlanNotes) -> ValueInfoProto:
    """Return an unnamed ValueInfoProto with this dtype and shape, in which ``?`` is an unknown dim.

    If dims were bound for the plan, only the rank is declared: ONNX Runtime would constant-fold the
    plan's dims.
    """
    value: ValueInfoProto = messages().ValueInfoProto()
    tensor = value.type.tensor_type
    tensor.elem_type = element_type(dtype)
    tensor.shape.SetInParent()
    for dim in shape:
        if dim == "?" or notes.has_bound_dims:
            tensor.shape.dim.add()
        elif isinstance(dim, int):
            tensor.shape.dim.add(dim_value=dim)
        else:
            tensor.shape.dim.add(dim_param=dim)
    return value


def _placement_entries(row: Placement) -> bytes:
    """Return a placement as metadata entries of a value."""
    keys = ["arena", "offset", "bytes", "first", "last"]
    if row.alias_of is not None:
        keys.append("alias_of")
    return b"".join(
        [encoded_entry(_VALUE_METADATA, f"{PREFIX}{key}", getattr(row, key)) for key in keys]
    )
