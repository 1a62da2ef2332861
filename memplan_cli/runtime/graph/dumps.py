"""Dumps: the graph that ONNX Runtime really runs, written by a session and read back.

A light dump has no weights. It suffices where no run is needed and the runtime infers shapes
without weights; otherwise a whole dump is written, which can be run.
"""

from __future__ import annotations

import tempfile
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.results.observations import CPU, UNOPTIMIZED, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of
from memplan_cli.onnx_io.graph_editor import fresh_names
from memplan_cli.onnx_io.interface import free_dims
from memplan_cli.onnx_io.load import load_as_written, load_model
from memplan_cli.onnx_io.runs.prepared_models import give_every_output
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked
from memplan_cli.onnx_io.traversal import defined, graphs, subgraphs
from memplan_cli.runtime.graph.node_index import in_index_order
from memplan_cli.runtime.run.observe import observe
from memplan_cli.runtime.run.run_model import require_weights, shapes_of_types
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_observation
from memplan_cli.runtime.workers.spec import SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import GraphProto, ModelProto

    from memplan_cli.core.names import FreshNames
    from memplan_cli.core.program import Program, Shape, VarId
    from memplan_cli.runtime.run.run_model import RuntimeShapes
    from memplan_cli.runtime.workers.spec import RunConditions

_DUMP_JOBS = "memplan_cli.runtime.graph.dump_job"


def executed_graph(
    model: Path, settings: RuntimeSettings, dims: Mapping[str, int]
) -> ExecutedGraph:
    """Return the graph that a session on the CPU with these settings runs, with its shapes; nothing is run.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load.
    """
    require_weights(model)
    session = SessionSpec(model, CPU, settings)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as folder:
        # Without the weights, which take long to write, ONNX Runtime may infer no shapes: the result is None then.
        light = _light_graph(session, Path(folder) / "dump.onnx", dims)
        return light or dump_whole_graph(session, Path(folder) / "whole.onnx", dims)


def observed_graph(
    model: Path,
    settings: RuntimeSettings,
    conditions: RunConditions,
    executed: ExecutedGraph | None = None,
) -> ExecutedGraph:
    """Return the executed graph, with the observation of one run where data decides something.

    Predictions from the result hold for the inputs of that run. ``executed`` is the result of
    `executed_graph`, if it is known already.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not run.
    """
    require_weights(model)
    session = SessionSpec(model, conditions.provider, settings)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as folder:
        # A dump without weights is cheap, but not every model has one, and it cannot be run.
        light_dump = Path(folder) / "dump.onnx"
        graph = executed or _light_graph(session, light_dump, conditions.dims)
        if graph is not None and not needs_observation(graph):
            return graph
        whole_dump = Path(folder) / "whole.onnx"
        graph = dump_whole_graph(session, whole_dump, conditions.dims)
        if not needs_observation(graph):  # with the weights, the runtime may infer more sizes
            return graph
        # The dump is run instead of the model, so that each kernel belongs to a node of the graph.
        observation = observe(whole_dump, graph.program, conditions, original=model)
        return replace(graph, observed=observation)


def _light_graph(
    session: SessionSpec, dump: Path, dims: Mapping[str, int]
) -> ExecutedGraph | None:
    """Write the graph that a session runs, without its weights, and read it; None if no shapes can be inferred."""
    job = {"session": to_json(session), "out": str(dump)}
    outcome = run_job(f"{_DUMP_JOBS}:write_light_dump", job)
    result = outcome.require(_load_failure_message(session.model))
    shapes = shapes_of_types(result["types"])  # from the runtime; it may need weights for them
    return read_dump(dump, shapes, session, dims) if shapes else None


def dump_whole_graph(
    session: SessionSpec, dump: Path, dims: Mapping[str, int]
) -> ExecutedGraph:
    """Write a dump with weights, which can be run, and read it; dims not in ``dims`` stay symbols."""
    write_dump(session, dump)
    shapes = runtime_shapes(dump, session.provider)
    return read_dump(dump, shapes, session, dims)


def write_dump(session: SessionSpec, out: Path) -> None:
    """Write the graph that a session runs, after ONNX Runtime's optimization, and its weights beside it.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    job = {"session": to_json(session), "out": str(out)}
    outcome = run_job(f"{_DUMP_JOBS}:write_whole_dump", job)
    outcome.require(_load_failure_message(session.model))  # raises the error if the job failed
    written = load_model(out)
    # ONNX Runtime may define a name both in a graph and in its subgraph. It does not load such a file.
    distinct = with_distinct_names(written)
    if distinct is not written:
        out.write_bytes(distinct.SerializeToString())  # refers to the same file of weights


def _load_failure_message(model: Path) -> str:
    return f"{model} does not load"


def read_dump(
    dump: Path, shapes: RuntimeShapes, session: SessionSpec, dims: Mapping[str, int]
) -> ExecutedGraph:
    """Read a graph that ``session`` wrote; ``shapes`` are what the runtime infers for values of the main graph.

    The file lists the nodes in ONNX Runtime's default order. The ops of the result have:

    - in a session that runs by default order: that order, in which they run (``in_run_order``);
    - by priority, not optimized: the order of node indices, from which callers derive the order by priority;
    - by priority, optimized: the order of the file, as if they ran in it (``in_run_order``): no index is known.
    """
    written = load_model(dump)
    graph = with_distinct_names(written)
    known_shapes = bound_shapes(shapes, dims, free_dims(graph))
    program = read_checked(graph, Bindings(dims=dims, known=known_shapes)).program
    settings = session.settings
    has_index_order = settings.runs_by_priority and settings.is_unoptimized
    if has_index_order:
        # `graph` may have other names of values than the session's model, so `written` is passed.
        program = in_index_order(program, written.graph, load_as_written(session.model))
    return ExecutedGraph(
        program,
        dims,
        in_run_order=not has_index_order,
        planner_shapes=planner_shapes(program, shapes),
        provider=session.provider,
    )


def runtime_shapes(model: Path, provider: str) -> RuntimeShapes:
    """Return the shapes that the runtime infers for every value of the main graph.

    A session loads a temporary copy in which every value is an output. The copy is beside the model,
    so that its external weights are found. ``model`` is a dump in a temporary folder of its caller.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    copy = model.with_name(f"{model.stem}.every-output.onnx")
    try:
        loaded = load_model(model)
        give_every_output(loaded.graph)
        copy.write_bytes(loaded.SerializeToString())
        job = {"session": to_json(SessionSpec(copy, provider, UNOPTIMIZED))}
        outcome = run_job(f"{_DUMP_JOBS}:session_types", job)
    finally:
        copy.unlink(missing_ok=True)
    return shapes_of_types(outcome.require(_load_failure_message(model))["types"])


def bound_shapes(
    shapes: RuntimeShapes, dims: Mapping[str, int], input_dims: Collection[str]
) -> RuntimeShapes:
    """Return the shapes of rank 1 or more after binding, in numbers and named dims of the inputs.

    The runtime reports no dims both for a scalar and for an unknown rank. Such values are left out. Dims
    with names that no input has are None: ``[batch, 64, out_h]`` becomes ``[batch, 64, None]``.
    """
    bindable = set(input_dims)
    bound = {}
    for name, (dtype, shape) in shapes.items():
        bound_dims = [bind_dim(dim, dims) for dim in shape]
        if bound_dims:  # a tensor mistaken for a scalar would count as one element
            # No user can bind a name that no input has: an exporter or the runtime invented it for a result, or the
            # runtime has misread ``seq-len`` as a difference of two dims.
            known = (dim if symbols_of(dim) <= bindable else None for dim in bound_dims)
            bound[name] = (dtype, tuple(known))
    return bound


def planner_shapes(program: Program, shapes: RuntimeShapes) -> dict[VarId, Shape | None]:
    """Return the shapes of main graph values by which ONNX Runtime plans, where the program has others.

    None is an unknown shape. ONNX Runtime reports no dims both for a scalar and for an unknown rank;
    a value counts as a scalar only if it is one in the program.
    """
    other_shapes: dict[VarId, Shape | None] = {}
    for var in program.vars.values():
        if var.block or var.origin is not Origin.OP or var.name not in shapes:
            continue
        _, shape = shapes[var.name]
        if shape != var.shape:
            other_shapes[var.id] = shape or None
    return other_shapes


def with_distinct_names(model: ModelProto) -> ModelProto:
    """Return a model in which no subgraph defines a name of an outer graph: a copy if a name is changed.

    When ONNX Runtime inlines a function, it generates names for its values that are unique within one
    graph. If a function is called outside and inside an If, both graphs define the same names. ONNX
    Runtime writes such a graph although it is no valid model, and refuses to load it.
    """
    has_subgraphs = len(list(islice(graphs(model.graph), 2))) > 1
    if not has_subgraphs:  # most models: no copy is needed to tell
        return model
    copy = deepcopy(model)
    has_changed = _rename_in_subgraphs(
        copy.graph, frozenset(defined(copy.graph)), fresh_names(copy)
    )
    return copy if has_changed else model


def _rename_in_subgraphs(
    graph: GraphProto, outer_names: frozenset[str], names: FreshNames
) -> bool:
    """Rename values that subgraphs define again, in place. Return whether any was renamed.

    Args:
        graph: its subgraphs are changed, not the graph itself.
        outer_names: names that are visible in the subgraphs.
        names: makes names that no graph of the model has.
    """
    changed = False
    for node in graph.node:
        for _, subgraph in subgraphs(node):
            clashing = [
                name for name in dict.fromkeys(defined(subgraph)) if name in outer_names
            ]
            new_names = {name: names.fresh(name) for name in clashing}
            if new_names:
                # Graphs inside the subgraph may read the renamed values. If one of them defines such a name again,
                # its value has the new name too, for a moment: the call below finds the clash.
                for inner in graphs(subgraph):
                    _rename_values(inner, new_names)
            visible_names = outer_names | frozenset(defined(subgraph))
            inner_changed = _rename_in_subgraphs(subgraph, visible_names, names)
            changed = changed or bool(new_names) or inner_changed
    return changed


def _rename_values(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Replace names of values in one graph, in place; its subgraphs stay as they are."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for tensor in graph.sparse_initializer:
        tensor.values.name = names.get(tensor.values.name, tensor.values.name)
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
