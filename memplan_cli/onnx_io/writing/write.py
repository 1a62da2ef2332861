"""Program + Plan -> an annotated model file: new order, notes for viewers, same names.

The model is read again from its file and only its nodes are put in another order, so that
whatever memplan does not understand is carried over as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from operator import is_not
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.selection import select
from memplan_cli.errors import InvalidLayoutError, SettingsError
from memplan_cli.onnx_io.graph_editor import replace_nodes
from memplan_cli.onnx_io.metadata import HARDWARE, ORT_CONFIG, PREFIX, RUNTIME, is_own
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.writing.annotate import annotated
from memplan_cli.onnx_io.writing.verify import graph_differences

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.program import Block, Op, Program, VarId
    from memplan_cli.core.results.plan import Plan

_STAYS = frozenset({f"{PREFIX}phase", RUNTIME, HARDWARE})
"""What an earlier plan does not say: the phase, from whoever made a training step, and what
ties a graph to the runtime that has optimised it, in whatever order its nodes are."""


def written_model(
    model: ModelProto, program: Program, plan: Plan, notes: Mapping[str, str] | None = None
) -> list[bytes]:
    """Return the bytes of the annotated model, in parts; the same plan gives the same bytes.

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
    metadata = {f"{PREFIX}plan": _plan_note(plan), **dict(sorted((notes or {}).items()))}
    return annotated(rewritten, program, plan, metadata)


def _to_expose(program: Program, plan: Plan) -> tuple[str, ...]:
    """Return the excluded values of the top block that a runtime shall be able to fetch."""
    chosen = plan.settings
    if not chosen["expose"]:
        return ()
    excluded = select(program, (*chosen["mem_param"]["exclude_blob"], *chosen["exclude"]))
    found = (program.vars[var] for var in excluded)
    return tuple(var.name for var in found if not var.block and var.origin is Origin.OP)


def rewrite(model: ModelProto, program: Program, exposed: Sequence[str] = ()) -> ModelProto:
    """Return a model with its nodes in the program's order: itself where it has them so.

    Args:
        model: The model that the program was read from.
        program: The same ops, in another order, copies with new outputs among them.
        exposed: Names of top-level vars that become graph outputs too.
    """
    data = model.SerializeToString()  # quicker than looking everywhere
    noted = PREFIX.encode() in data or ORT_CONFIG.encode() in data
    if not noted and not exposed and _is_in_order(model.graph, program.body):
        return model
    written = deepcopy(model)
    if noted:
        _drop_notes(written)
    # Only where ops were copied are there other names: nothing else renames a value.
    copied = _has_copies(written.graph, program.body)
    _reorder(written.graph, program.body, partial(_node, program) if copied else _as_it_is)
    if exposed:
        _expose(written, program, exposed)
    return written


def _plan_note(plan: Plan) -> str:
    """Say which plan a model has, for its metadata: that survives nearly every tool."""
    memory = plan.report.memory
    notes = {"digest": plan.digest, "level": plan.report.level}
    for name in ("naive", "live_peak", "planned", "total"):
        if getattr(memory, name) is not None:
            notes[name] = getattr(memory, name)
    return ",".join(f"{key}={value}" for key, value in notes.items())


def _drop_notes(model: ModelProto) -> None:
    """Remove what an earlier run of memplan wrote."""
    _drop(model)
    for graph in graphs(model.graph):
        for node in graph.node:
            _drop(node)
        for value in (*graph.value_info, *graph.input, *graph.output):
            _drop(value)


def _drop(item: ModelProto | NodeProto | ValueInfoProto) -> None:
    if any(is_own(entry) for entry in item.metadata_props):
        kept = [
            entry for entry in item.metadata_props if entry.key in _STAYS or not is_own(entry)
        ]
        del item.metadata_props[:]
        item.metadata_props.extend(kept)


def _is_in_order(graph: GraphProto, block: Block) -> bool:
    """Whether the ops of a block, subgraphs included, are the file's nodes as they stand."""
    if len(block.ops) != len(graph.node):
        return False
    return all(
        op.source == index
        and (
            not op.bodies
            or all(
                _is_in_order(inner, body)
                for (_, inner), body in zip(
                    subgraphs(graph.node[index]), op.bodies, strict=True
                )
            )
        )
        for index, op in enumerate(block.ops)
    )


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
        replace_nodes(graph, fresh)


def _as_it_is(op: Op, node: NodeProto) -> NodeProto:
    del op
    return node


def _node(program: Program, op: Op, node: NodeProto) -> NodeProto:
    """Return the node an op stands for: itself, or a copy with the op's own values."""
    inputs, outputs = _names(op.inputs, program), _names(op.outputs, program)
    if (op.name, inputs, outputs) == (node.name, node.input[:], node.output[:]):
        return node
    copy = deepcopy(node)
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
