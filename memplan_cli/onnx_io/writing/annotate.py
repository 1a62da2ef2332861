"""Annotations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.analysis.liveness import ops_with_ticks, steps
from memplan_cli.core.results.placements import in_words
from memplan_cli.onnx_io.metadata import IN_PLAN, NOTES, PREFIX
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.wire_format import Entries, Field, head

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

_DRAWN = 5000
"""Nodes of a graph that viewers draw."""


@dataclass(frozen=True, slots=True)
class Notes:
    """A plan, sorted by where it is written down."""

    steps: Mapping[str, Sequence[Step]]
    plan: Plan
    inside: Mapping[str, Sequence[Placement]]
    """The tensors of each block; nothing where they are all at the top."""
    unplanned: AbstractSet[str]
    """What the graph is given and gives: nearly always all that it declares."""
    dying: Mapping[int, Sequence[str]]
    """The names of the tensors that are released after each node, by its last tick."""
    units: Mapping[int, str]
    """What the integers of each arena are multiples of."""
    shapes_hold: bool
    """Whether the shapes are the model's own, and not those of one set of bindings."""

    def entries(self, start: int, end: int, memory: str) -> bytes:
        """Return the notes of an op's node, by its first tick and its last one."""
        step_entry, release_entry, memory_entry = _node_entries()
        entries = step_entry.number(start)
        dying = self.dying.get(end, ())
        if dying:
            entries += release_entry(f"[{', '.join(map(quoted, dying))}]")
        return entries + memory_entry(memory) if memory else entries

    def in_words(self, path: str, nodes: int) -> Mapping[str, str]:
        """Return what is said of each tensor of a block at its node; nothing of large graphs.

        Viewers show what is written at a node, and draw no graph that is larger.
        """
        if nodes > _DRAWN:
            return {}
        return {row.name: in_words(row, self.units) for row in self.tensors(path)}

    def tensors(self, path: str) -> Sequence[Placement]:
        """Return the tensors of a block, in the order of the plan."""
        return self.inside.get(path, ()) if self.inside else self.plan.tensors

    @classmethod
    def of(cls, program: Program, plan: Plan) -> Notes:
        """Sort a plan by block and by the steps of its order."""
        clock = steps(program)
        by_block: dict[str, Sequence[Step]] = {program.body.path: clock}
        inside: dict[str, list[Placement]] = {}
        if any(op.bodies for op in program.body.ops):
            by_path: dict[str, list[Step]] = {}
            for step in clock:
                by_path.setdefault(step.block.path, []).append(step)
            by_block.update(by_path)
            for tensor in plan.tensors:
                inside.setdefault(tensor.block, []).append(tensor)
        bound = ("dims", "shapes", "profile_shapes")
        shapes_hold = not any(plan.settings.get(name) for name in bound)
        ends = {*program.body.inputs, *program.body.outputs}
        unplanned = {program.vars[var].name for var in ends}
        units = {arena.id: arena.unit for arena in plan.arenas}
        dying = {release.step: release.tensors for release in plan.releases}
        return cls(by_block, plan, inside, unplanned, dying, units, shapes_hold)


class Values:
    """The notes of a block's values: each is given once, what is left nobody declares."""

    def __init__(self, notes: Notes, path: str, graph: GraphProto) -> None:
        self._notes, self._is_inside = notes, bool(path)
        self._tensors = notes.tensors(path)
        self._left: dict[str, Placement] | None = None
        ends = {value.name for value in (*graph.input, *graph.output)}
        # A large graph declares nothing else, or nearly everything.
        if path or graph.value_info or not ends <= notes.unplanned:
            self._left = {tensor.name: tensor for tensor in self._tensors}
        self._place = _Places(_place_entries())

    def entries(self, name: str) -> bytes:
        """Return the notes of a value, if it has any that were not given yet."""
        row = self._left.pop(name, None) if self._left else None
        return b"" if row is None else self._place(row)

    def undeclared(self) -> Iterator[bytes]:
        """Yield a ValueInfoProto with notes for each value that was not asked for."""
        types: dict[tuple[str, tuple[int | str, ...]], bytes] = {}
        named = Field(messages().ValueInfoProto.NAME_FIELD_NUMBER)
        for row in self._tensors if self._left is None else self._left.values():
            name, _, dtype, shape, *_ = row
            if self._is_inside and 0 in shape:
                continue  # of a branch that is not taken: its type is the nodes' own
            kind = types.get((dtype, shape))
            if kind is None:
                typed = _typed(dtype, shape, self._notes)
                kind = types[dtype, shape] = typed.SerializeToString()
            yield named(name.encode()) + kind + self._place(row)


def _typed(dtype: str, shape: Sequence[int | str], notes: Notes) -> ValueInfoProto:
    """Return a value without a name, of a tensor's type."""
    value: ValueInfoProto = messages().ValueInfoProto()
    kind = value.type.tensor_type
    kind.elem_type = element_type(dtype)
    kind.shape.SetInParent()
    for dim in shape:
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
def _node_entries() -> tuple[Entries, Entries, Entries]:
    field = messages().NodeProto.METADATA_PROPS_FIELD_NUMBER
    step, release, memory = (
        Entries(field, f"{PREFIX}{key}") for key in ("step", "release", "memory")
    )
    return step, release, memory


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

    def __call__(self, row: Placement) -> bytes:
        _, _, _, _, size, arena, offset, _, first, last, alias_of, _ = row
        entries = (
            self._arena(arena)
            + self._offset.number(offset)
            + self._size(size)
            + self._first.number(first)
            + self._last.number(last)
        )
        return entries if alias_of is None else entries + self._alias(alias_of)


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
    clock = ops_with_ticks(notes.steps.get(block.path, ()))
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
