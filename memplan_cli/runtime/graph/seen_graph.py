"""The graph that a session ran, from what that session itself has shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.given import block_paths
from memplan_cli.runtime.graph.distinct_names import with_distinct_names
from memplan_cli.runtime.graph.executed import read_graph
from memplan_cli.runtime.graph.offline import COUNTED
from memplan_cli.runtime.graph.places import events_by_place
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.simulate.observed import Event, sorted_out
from memplan_cli.runtime.simulate.planner import default_order
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Op, Program
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.run.record import Kernel, RunRecord, RuntimeShapes

_DEFAULT = "DEFAULT"
"""The execution order whose places are known."""


def executed_of(
    record: RunRecord, settings: RuntimeSettings, dims: Mapping[str, int], model: Path
) -> ExecutedGraph:
    """Return the graph that was run, what data decided in its first run included.

    Where that cannot be told by the nodes' names or places, it stays open, and so do
    predictions.

    Args:
        record: of a run that collected kernels and the graph.
        settings: under which it was created.
        dims: values for symbolic dims.
        model: the file that it loaded.
    """
    file, kernels = record.spec.graph, (record.kernels or ((),))[0]
    assert file is not None  # noqa: S101 - the caller has collected it
    graph = load_model(file)
    graph = with_distinct_names(graph) or graph
    shapes = record.shapes or _ran(graph, kernels)
    executed = read_graph(file, shapes, settings, dims, model)
    if not needs_run(executed):
        return executed
    named, ran = _named(graph), kernels
    events: Iterable[Event] | None = None
    if named is not None:
        events = _events(named, ran)
    elif settings.session.get("execution_order", _DEFAULT) == _DEFAULT:
        events = events_by_place(executed, ran)
    if events is None:
        return executed
    return replace(executed, observed=sorted_out(executed.program, events))


class _Place(NamedTuple):
    """The block of a node, and what it reads and writes there."""

    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _named(graph: ModelProto) -> dict[str, _Place] | None:
    """Return where each node stands, by its name; None where a name says too little."""
    found: dict[str, _Place] = {}
    for path, block in block_paths(graph.graph, ""):
        here = f"{path}/" if path else ""
        for node in block.node:
            if not node.name or node.name in found:
                return None
            names = (tuple(here + n for n in of if n) for of in (node.input, node.output))
            found[node.name] = _Place(path, *names)
    return found


def _events(named: Mapping[str, _Place], nodes: Sequence[Any]) -> Iterator[Event]:
    """Yield the events of a run by the nodes' names.

    ONNX Runtime changes the layout of a net's filters in another order in each session, so
    that a number in a name that it made up stands for another node in the graph that it wrote
    than in the one that ran. What such a node wrote is what nodes with names of their own read.
    """
    sizes: dict[str, Any] = {}
    for name, read, wrote, _ in nodes:
        if (place := named.get(name)) and not place.path and not COUNTED.search(name):
            for tensors, seen in ((place.inputs, read), (place.outputs, wrote)):
                if len(tensors) == len(seen):
                    sizes |= zip(tensors, seen, strict=True)
    for name, read, wrote, _ in nodes:
        if place := named.get(name):
            known = [sizes[tensor] for tensor in place.outputs if tensor in sizes]
            sure = COUNTED.search(name) and len(known) == len(place.outputs)
            yield Event(place.outputs, read, known if sure else wrote)


def _ran(graph: ModelProto, nodes: Sequence[Any]) -> RuntimeShapes:
    """Return the shapes that a run had at the top, by name of the value."""
    named = _named(graph) or {}
    at_top = {name: place for name, place in named.items() if not place.path}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for event in _events(at_top, nodes):
        if len(event.writes) == len(event.wrote):
            for value, (kind, shape) in zip(event.writes, event.wrote, strict=True):
                found[value] = dtype_of(kind), tuple(shape)
    return found


def in_recorded_order(executed: ExecutedGraph, record: RunRecord) -> ExecutedGraph | None:
    """Return a graph in the order in which its nodes ran; None if that cannot be told.

    The graph that an optimised session writes does not have the index that optimisation gave to
    each node, so an order by priority, which goes by it, has to be recorded.
    """
    body = executed.program.body
    ops = {op.name: op for op in body.ops}
    kernels: Sequence[Kernel] = (record.kernels or ((),))[0]
    ran = [name for name, *_ in sorted(kernels, key=lambda k: k[3]) if name in ops]
    if len(ran) != len(body.ops) or len(set(ran)) != len(ran):
        return None
    ordered = replace(body, ops=tuple(ops[name] for name in ran))
    return replace(executed, program=replace(executed.program, body=ordered))


def reordered(
    executed: ExecutedGraph, nodes: Sequence[str], written: Program
) -> ExecutedGraph:
    """Return a graph under optimisation as it stands where the file's nodes stand otherwise.

    What optimisation made anew has an index above all others, in an order that nobody says:
    that of the dump is taken for it. Where names do not tell its nodes apart, or even the
    order that was seen does not follow from such indices, it stays.

    Args:
        executed: the graph of the file as it was.
        nodes: names of that file's nodes, in its order.
        written: the same nodes in another order.
    """
    ops = executed.program.body.ops
    if not executed.ordered or len({op.name for op in ops if op.name}) < len(ops):
        return executed
    if _by_default(executed.program, nodes) != ops:
        return executed
    order = _by_default(executed.program, [op.name for op in written.body.ops])
    if len(order) != len(ops):
        return executed
    return replace(executed, program=executed.program.with_ops(order))


def _by_default(program: Program, names: Sequence[str]) -> tuple[Op, ...]:
    """Return a dump's ops in the order of ``ExecutionOrder.DEFAULT``, if a file has these nodes."""
    place = {name: index for index, name in enumerate(names)}
    last, body = len(place), program.body
    ops = sorted(body.ops, key=lambda op: place.get(op.name, last))
    return default_order(Block(body.inputs, body.outputs, tuple(ops)))
