"""The graph that a session ran, from what that session itself has shown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.distinct_names import with_distinct_names
from memplan_cli.runtime.graph.executed import read_graph
from memplan_cli.runtime.measuring.observed import Event, sorted_out
from memplan_cli.runtime.simulation.order import default_order
from memplan_cli.runtime.simulation.predict import Executed, needs_run
from memplan_cli.runtime.workers.type_names import dtype_of
from memplan_cli.shapes.given import block_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Op, Program
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.graph.executed import RuntimeShapes
    from memplan_cli.runtime.measuring.examine import Examined


def executed_of(
    found: Examined, settings: RuntimeSettings, dims: Mapping[str, int], model: Path
) -> Executed:
    """Return the graph that was run, what data decided in its first run included.

    Where that cannot be told by the nodes' names, it stays open, and so do predictions.

    Args:
        found: of a session whose graph was asked for.
        settings: under which it was created.
        dims: values for symbolic dims.
        model: the file that it loaded.
    """
    assert found.graph is not None  # noqa: S101 - whoever asks has asked for it before
    graph = load_model(found.graph)
    graph = with_distinct_names(graph) or graph
    shapes = found.shapes or _ran(graph, found.nodes)
    executed = read_graph(found.graph, shapes, settings, dims, model)
    if not needs_run(executed):
        return executed
    events = _events(graph, found.nodes)
    if events is None:
        return executed
    return replace(executed, observed=sorted_out(executed.program, events))


def _named(graph: ModelProto) -> dict[str, tuple[str, tuple[str, ...]]] | None:
    """Return what each node writes, by its name and block; None where a name says too little."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path, block in block_paths(graph.graph, ""):
        here = f"{path}/" if path else ""
        for node in block.node:
            if not node.name or node.name in found:
                return None
            found[node.name] = path, tuple(here + name for name in node.output if name)
    return found


def _events(graph: ModelProto, nodes: Sequence[Any]) -> Iterator[Event] | None:
    named = _named(graph)
    if named is None:
        return None
    return (Event(named[name][1], *seen) for name, *seen in nodes if name in named)


def _ran(graph: ModelProto, nodes: Sequence[Any]) -> RuntimeShapes:
    """Return the shapes that a run had at the top, by name of the value."""
    named = _named(graph) or {}
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name, _, wrote in nodes:
        path, outputs = named.get(name, ("", ()))
        if not path and len(outputs) == len(wrote):
            for value, (kind, shape) in zip(outputs, wrote, strict=True):
                found[value] = dtype_of(kind), tuple(shape)
    return found


def reordered(executed: Executed, nodes: Sequence[str], written: Program) -> Executed:
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
    body = replace(executed.program.body, ops=order)
    return replace(executed, program=replace(executed.program, body=body))


def _by_default(program: Program, names: Sequence[str]) -> tuple[Op, ...]:
    """Return a dump's ops in the order of ``ExecutionOrder.DEFAULT``, if a file has these nodes."""
    place = {name: index for index, name in enumerate(names)}
    last, body = len(place), program.body
    ops = sorted(body.ops, key=lambda op: place.get(op.name, last))
    return default_order(Block(body.inputs, body.outputs, tuple(ops)))
