"""The planned model: the original's nodes in another order, with the plan in its metadata.

Only nodes are reordered, in the model as it was parsed. All that memplan does not understand is kept.
"""

from __future__ import annotations

from copy import deepcopy
from operator import is_not
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.selection import select
from memplan_cli.errors import InvalidLayoutError, SettingsError
from memplan_cli.loading.settings import RUNTIME
from memplan_cli.onnx_io.graph_editor import keep, replace_nodes, with_values
from memplan_cli.onnx_io.metadata import HARDWARE, ORT_CONFIG, PREFIX, is_own
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.writing.annotate import annotated
from memplan_cli.onnx_io.writing.verify import graph_differences

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.program import Block, Op, Program, VarId
    from memplan_cli.core.results.plan import Plan

_KEPT_KEYS = frozenset({f"{PREFIX}phase", RUNTIME, HARDWARE})
"""Metadata of memplan that outlives a new plan: the phases of a training step, and the runtime and
processor for which the graph was optimized."""


def written_model(
    model: ModelProto, program: Program, plan: Plan, notes: Mapping[str, str] | None = None
) -> list[bytes]:
    """Return the bytes of the planned model, in parts; the same plan gives the same bytes.

    ``program`` is in the planned order; ``notes`` are further metadata of the model.

    Raises:
        InvalidLayoutError: the rewritten graph would compute something else, a bug of memplan.
    """
    rewritten = rewrite(model, program, _values_to_expose(program, plan))
    differences = graph_differences(model, rewritten)
    if differences:
        raise InvalidLayoutError(f"the rewritten graph differs: {differences[0]}")
    metadata = {f"{PREFIX}plan": _plan_note(plan), **dict(sorted((notes or {}).items()))}
    return annotated(rewritten, program, plan, metadata)


def _values_to_expose(program: Program, plan: Plan) -> tuple[str, ...]:
    """Return the names of the results of the main graph that become graph outputs.

    These are the results that the user excluded from the plan, if the setting ``expose`` is on; else none.
    """
    settings = plan.settings
    if not settings["expose"]:
        return ()
    # From the settings file, and from the command line.
    patterns = (*settings["mem_param"]["exclude_blob"], *settings["exclude"])
    excluded = (program.vars[var] for var in select(program, patterns))
    return tuple(var.name for var in excluded if not var.block and var.origin is Origin.OP)


def rewrite(model: ModelProto, program: Program, exposed: Sequence[str] = ()) -> ModelProto:
    """Return a model with its nodes in the program's order, without metadata of an earlier plan.

    The model itself is returned if nothing changes, else a copy. Ops of the program may be copies, with
    outputs of new names. ``exposed`` values of the main graph become graph outputs too.
    """
    data = model.SerializeToString()  # faster than a search of all messages
    has_notes = PREFIX.encode() in data or ORT_CONFIG.encode() in data
    if not has_notes and not exposed and _is_in_order(model.graph, program.body):
        return model
    written = deepcopy(model)
    if has_notes:
        _drop_notes(written)
    # Only the main graph has copies of ops. Their outputs have names that the file does not have, so all nodes
    # that may read them, also in subgraphs, get their names from the program.
    has_copies = len(program.body.ops) != len(written.graph.node)
    _reorder(written.graph, program.body, name_source=program if has_copies else None)
    if exposed:
        _add_outputs(written, program, exposed)
    return written


def _plan_note(plan: Plan) -> str:
    """Return digest, level and totals of a plan as ``key=value,...``, for the model's metadata."""
    memory = plan.report.memory
    notes = {"digest": plan.digest, "level": plan.report.level}
    for name in ("naive", "live_peak", "planned", "total"):
        if getattr(memory, name) is not None:
            notes[name] = getattr(memory, name)
    return ",".join(f"{key}={value}" for key, value in notes.items())


def _drop_notes(model: ModelProto) -> None:
    """Remove the metadata of an earlier plan from a model, its nodes and its values, in place."""
    _drop_own_entries(model)
    for graph in graphs(model.graph):
        for node in graph.node:
            _drop_own_entries(node)
        for value in (*graph.value_info, *graph.input, *graph.output):
            _drop_own_entries(value)


def _drop_own_entries(item: ModelProto | NodeProto | ValueInfoProto) -> None:
    """Remove memplan's metadata entries, but for `_KEPT_KEYS`, in place."""
    keep(item.metadata_props, lambda entry: entry.key in _KEPT_KEYS or not is_own(entry))


def _is_in_order(graph: GraphProto, block: Block) -> bool:
    """Whether a block and its nested blocks have the nodes of a graph in the same order."""
    if len(block.ops) != len(graph.node):
        return False
    for index, op in enumerate(block.ops):
        if op.source != index:
            return False
        if op.bodies and not all(
            _is_in_order(subgraph, body) for subgraph, body in _nested(graph.node[index], op)
        ):
            return False
    return True


def _nested(node: NodeProto, op: Op) -> Iterator[tuple[GraphProto, Block]]:
    """Yield the subgraphs of a node with the blocks of its op."""
    for (_, subgraph), body in zip(subgraphs(node), op.bodies, strict=True):
        yield subgraph, body


def _reorder(graph: GraphProto, block: Block, name_source: Program | None) -> None:
    """Put the nodes of a graph and its subgraphs in the order of a block, in place.

    Several ops may be copies of one node, but not ops with subgraphs (`may_run_twice`): each subgraph is
    reordered once. Nodes get the names of vars in ``name_source``; None: they keep their names.
    """
    nodes = list(graph.node)
    for op in block.ops:
        if op.bodies:
            for subgraph, body in _nested(nodes[op.source], op):
                _reorder(subgraph, body, name_source)
    ordered = [nodes[op.source] for op in block.ops]
    if name_source is not None:
        for index, op in enumerate(block.ops):
            inputs, outputs = _names(op.inputs, name_source), _names(op.outputs, name_source)
            ordered[index] = with_values(ordered[index], op.name, inputs, outputs)
    # An unchanged list is left alone: setting it would copy every node.
    if len(ordered) != len(nodes) or any(map(is_not, ordered, nodes)):
        replace_nodes(graph, ordered)


def _names(values: Sequence[VarId], program: Program) -> list[str]:
    """Return the names of values in the file; ``""`` for omitted inputs and outputs."""
    return [program.vars[var].name if var else "" for var in values]


def _add_outputs(model: ModelProto, program: Program, names: Sequence[str]) -> None:
    """Add values of the main graph to its outputs, in place.

    They are declared with their rank only: a plan's shapes may not hold for another run.

    Raises:
        SettingsError: a value has a type that cannot be declared.
    """
    from onnx import helper

    outputs = {value.name for value in model.graph.output}
    vars_by_name = {var.name: var for var in program.vars.values() if not var.block}
    for name in names:
        if name in outputs:
            continue
        var = vars_by_name[name]
        dtype = element_type(var.dtype)
        if not dtype:
            raise SettingsError(
                f"{name!r} is of type {var.dtype}: it cannot become an output",
                hint="leave --expose out, or exclude fewer tensors",
            )
        dims = None if var.shape is None else [None] * len(var.shape)
        model.graph.output.append(helper.make_tensor_value_info(name, dtype, dims))
