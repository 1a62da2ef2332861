"""Program + Plan -> an annotated model file: new order, notes for viewers, same names.

The model is read again from its file and only its nodes are put in another order, so that
whatever memplan does not understand is carried over as it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from operator import is_not
from typing import TYPE_CHECKING

from memplan_cli.analysis.liveness import steps
from memplan_cli.errors import InvalidLayoutError, SettingsError
from memplan_cli.ir import Origin
from memplan_cli.onnx_io.load import graphs, subgraphs
from memplan_cli.onnx_io.notes import PREFIX
from memplan_cli.onnx_io.same_graph import graph_differences
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.wire import Entries, Field
from memplan_cli.selection import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.analysis.liveness import Step
    from memplan_cli.ir import Block, Op, Program, VarId
    from memplan_cli.plan import Placement, Plan

_PHASE = f"{PREFIX}phase"
"""Written by whoever made a training step, read by us: it stays."""


_JSON = json.JSONEncoder(ensure_ascii=False)


def written_model(
    model: ModelProto, program: Program, plan: Plan, notes: Mapping[str, str] | None = None
) -> bytes:
    """Return the bytes of the annotated model; the same plan gives the same bytes.

    Args:
        model: The model that was planned.
        program: Its ops in the planned order.
        plan: What the annotations say.
        notes: Further model metadata.

    Raises:
        InvalidLayoutError: the rewritten graph would compute something else (our bug).
    """
    rewritten = rewrite(model, program, _to_expose(program, plan))
    found = graph_differences(model, rewritten)
    if found:
        raise InvalidLayoutError(f"the rewritten graph is another one: {found[0]}")
    _annotate(rewritten, program, plan)
    for key, value in sorted((notes or {}).items()):
        rewritten.metadata_props.add(key=key, value=value)
    data: bytes = rewritten.SerializeToString(deterministic=True)
    return data


def _to_expose(program: Program, plan: Plan) -> tuple[str, ...]:
    """Return the excluded values of the top block that a runtime shall be able to fetch."""
    chosen = plan.settings
    if not chosen["expose"]:
        return ()
    excluded = select(program, (*chosen["mem_param"]["exclude_blob"], *chosen["exclude"]))
    found = (program.vars[var] for var in excluded)
    return tuple(var.name for var in found if not var.block and var.origin is Origin.OP)


def rewrite(model: ModelProto, program: Program, exposed: Sequence[str] = ()) -> ModelProto:
    """Return a copy of a model with its nodes in the program's order.

    Args:
        model: The model that the program was read from.
        program: The same ops, in another order, copies with new outputs among them.
        exposed: Names of top-level vars that become graph outputs too.
    """
    written = type(model)()
    written.CopyFrom(model)
    _drop_notes(written)
    # Only where ops were copied are there other names: nothing else renames a value.
    copied = _has_copies(written.graph, program.body)
    _reorder(written.graph, program.body, partial(_node, program) if copied else _as_it_is)
    _expose(written, program, exposed)
    return written


def _annotate(written: ModelProto, program: Program, plan: Plan) -> None:
    """Write the plan into a rewritten model as metadata.

    Model metadata survives nearly every tool; that of nodes and values is for viewers.
    """
    memory = plan.report.memory
    notes = {"digest": plan.digest, "level": plan.report.level}
    for name in ("naive", "live_peak", "planned", "total"):
        if getattr(memory, name) is not None:
            notes[name] = getattr(memory, name)
    entry = written.metadata_props.add()
    entry.key = f"{PREFIX}plan"
    entry.value = ",".join(f"{key}={value}" for key, value in notes.items())
    _annotate_graph(written.graph, program.body, _Notes.of(program, plan))


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


def _drop_notes(model: ModelProto) -> None:
    """Remove what an earlier run of memplan wrote."""
    if PREFIX.encode() not in model.SerializeToString():  # quicker than looking everywhere
        return
    _drop(model)
    for graph in graphs(model.graph):
        for node in graph.node:
            _drop(node)
        for value in (*graph.value_info, *graph.input, *graph.output):
            _drop(value)


def _drop(item: ModelProto | NodeProto | ValueInfoProto) -> None:
    if any(entry.key.startswith(PREFIX) for entry in item.metadata_props):
        ours = [e for e in item.metadata_props if e.key.startswith(PREFIX) and e.key != _PHASE]
        kept = [e for e in item.metadata_props if e not in ours]
        del item.metadata_props[:]
        item.metadata_props.extend(kept)


def _has_copies(graph: GraphProto, block: Block) -> bool:
    """Whether some block has more ops than the file has nodes for."""
    if len(block.ops) != len(graph.node):
        return True
    return any(
        _has_copies(inner, body)
        for op in block.ops
        if op.bodies
        for (_, inner), body in zip(subgraphs(graph.node[op.source]), op.bodies, strict=True)
    )


NodeOf = Callable[["Op", "NodeProto"], "NodeProto"]
"""The node to write for an op, from the one that was read."""


def _reorder(graph: GraphProto, block: Block, node_of: NodeOf) -> None:
    old = list(graph.node)
    for op in block.ops:
        if op.bodies:
            for (_, inner), body in zip(subgraphs(old[op.source]), op.bodies, strict=True):
                _reorder(inner, body, node_of)
    fresh = [node_of(op, old[op.source]) for op in block.ops]
    if len(fresh) != len(old) or any(map(is_not, fresh, old)):
        del graph.node[:]
        graph.node.extend(fresh)


def _as_it_is(op: Op, node: NodeProto) -> NodeProto:
    del op
    return node


def _node(program: Program, op: Op, node: NodeProto) -> NodeProto:
    """Return the node an op stands for: itself, or a copy with the op's own values."""
    inputs, outputs = _names(op.inputs, program), _names(op.outputs, program)
    if (op.name, inputs, outputs) == (node.name, node.input[:], node.output[:]):
        return node
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name = op.name
    copy.input[:] = inputs
    copy.output[:] = outputs
    return copy


def _names(vars_: Sequence[VarId], program: Program) -> list[str]:
    return [program.vars[var].name if var else "" for var in vars_]


def _expose(model: ModelProto, program: Program, exposed: Sequence[str]) -> None:
    from onnx import helper

    present = {value.name for value in model.graph.output}
    top = {var.name: var for var in program.vars.values() if not var.block}
    for name in exposed:
        if name in present:
            continue
        kind = element_type(top[name].dtype)
        if not kind:
            raise SettingsError(
                f"{name!r} is of type {top[name].dtype}: it cannot become an output",
                hint="leave --expose out, or exclude fewer tensors",
            )
        # Its rank only: a shape may hold for this plan's bindings and not for a run.
        rank = None if top[name].shape is None else [None] * len(top[name].shape or ())
        model.graph.output.append(helper.make_tensor_value_info(name, kind, rank))


def _annotate_graph(graph: GraphProto, block: Block, notes: _Notes) -> None:
    step_entry, release_entry = _node_entries()
    for node, step in zip(graph.node, notes.steps.get(block.path, ()), strict=True):
        entries = step_entry(step.start)
        if step.end in notes.dying:
            names = ", ".join(map(_JSON.encode, notes.dying[step.end]))
            entries += release_entry(f"[{names}]")
        node.MergeFromString(entries)
        if not step.op.bodies:
            continue
        for (_, inner), body in zip(subgraphs(node), step.op.bodies, strict=True):
            _annotate_graph(inner, body, notes)
    _annotate_values(graph, block.path, notes)


def _annotate_values(graph: GraphProto, path: str, notes: _Notes) -> None:
    from onnx import GraphProto, ValueInfoProto

    here = dict(notes.tensors.get(path, {}))
    place = _Places(_place_entries())
    for value in (*graph.value_info, *graph.input, *graph.output):
        tensor = here.pop(value.name, None)
        if tensor is not None:
            value.MergeFromString(place(tensor))
    types: dict[tuple[str, tuple[int | str, ...]], bytes] = {}
    value_info = Field(GraphProto.VALUE_INFO_FIELD_NUMBER)
    named = Field(ValueInfoProto.NAME_FIELD_NUMBER)
    added = []
    for name, tensor in here.items():
        kind = (tensor.dtype, tensor.shape)
        if kind not in types:
            types[kind] = _typed(tensor, notes).SerializeToString()
        added.append(value_info(named(name.encode()) + types[kind] + place(tensor)))
    graph.MergeFromString(b"".join(added))


def _typed(tensor: Placement, notes: _Notes) -> ValueInfoProto:
    """Return a value without a name, of a tensor's type."""
    from onnx import ValueInfoProto

    value = ValueInfoProto()
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
    from onnx import NodeProto

    field = NodeProto.METADATA_PROPS_FIELD_NUMBER
    return Entries(field, f"{PREFIX}step"), Entries(field, f"{PREFIX}release")


@cache
def _place_entries() -> tuple[Entries, ...]:
    from onnx import ValueInfoProto

    field = ValueInfoProto.METADATA_PROPS_FIELD_NUMBER
    keys = ("arena", "offset", "bytes", "first", "last", "alias_of")
    return tuple(Entries(field, f"{PREFIX}{key}") for key in keys)


class _Places:
    """The entries that say where a tensor lies and when; places recur, times hardly."""

    def __init__(self, entries: tuple[Entries, ...]) -> None:
        self._entries = entries
        self._places: dict[tuple[int, int, int], bytes] = {}

    def __call__(self, tensor: Placement) -> bytes:
        arena, offset, size, first, last, alias = self._entries
        where = (tensor.arena, tensor.offset, tensor.bytes)
        entries = self._places.get(where)
        if entries is None:
            entries = arena(tensor.arena) + offset(tensor.offset) + size(tensor.bytes)
            self._places[where] = entries
        entries += first(tensor.first) + last(tensor.last)
        return entries if tensor.alias_of is None else entries + alias(tensor.alias_of)
