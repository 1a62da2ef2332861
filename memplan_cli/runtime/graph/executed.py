"""The graph that the runtime really runs: its own dump, with its own shapes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.core.results.observations import CPU, UNOPTIMISED, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of
from memplan_cli.onnx_io.interface import free_dims
from memplan_cli.onnx_io.load import load_as_written, load_model
from memplan_cli.onnx_io.runs.prepared_models import give_every_output
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked
from memplan_cli.runtime.graph.distinct_names import with_distinct_names
from memplan_cli.runtime.graph.node_index import by_index
from memplan_cli.runtime.run.observe import observe
from memplan_cli.runtime.run.record import shapes_of_types
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_run
from memplan_cli.runtime.workers.spec import SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.core.program import Program, Shape, VarId
    from memplan_cli.runtime.run.record import RuntimeShapes
    from memplan_cli.runtime.workers.spec import RunConditions


def executed_graph(
    model: Path,
    settings: RuntimeSettings,
    dims: Mapping[str, int],
    provider: str = CPU,
) -> ExecutedGraph:
    """Return the graph that a session with these settings runs, shapes included.

    With optimisation off its ops stand by the index that the runtime gave them, and every
    execution order can be predicted. Under optimisation nobody says that index, and the
    dump stands in the order of ``ExecutionOrder.DEFAULT``; under PRIORITY_BASED that is
    not the order of the run, unless the dump itself is loaded.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not load.
    """
    return _executed(model, settings, dims, provider, None)


def executed_run(
    model: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ExecutedGraph:
    """Return the same; where a run decides branches, turns or sizes, with those of one run.

    Predictions from it then hold for the inputs of that run. The run is that of the dump,
    so that every event is known to belong to one of its nodes.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not run.
    """
    return _executed(model, settings, conditions.dims, conditions.provider, conditions)


def dump_run(
    model: Path, settings: RuntimeSettings, conditions: RunConditions
) -> ExecutedGraph:
    """Return what `executed_run` does where a run is known to decide something.

    Raises:
        RuntimeUnavailableError: weights are missing, or the model does not run.
    """
    require_weights(model)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump = Path(name) / "whole.onnx"
        found = _whole(model, dump, settings, conditions.dims, conditions.provider)
        if not needs_run(found):
            return found
        observed = observe(dump, found.program, conditions, about=model)
        return replace(found, observed=observed)


def _executed(
    model: Path,
    settings: RuntimeSettings,
    dims: Mapping[str, int],
    provider: str,
    conditions: RunConditions | None,
) -> ExecutedGraph:
    require_weights(model)
    with tempfile.TemporaryDirectory(prefix="memplan-dump-") as name:
        dump = Path(name) / "dump.onnx"
        shapes = _light_graph(model, dump, settings, provider)
        found = read_graph(dump, shapes, settings, dims, model) if shapes else None
        if conditions is not None and (found is None or needs_run(found)):
            return dump_run(model, settings, conditions)
        if found is None:
            return _whole(model, Path(name) / "whole.onnx", settings, dims, provider)
    return replace(found, provider=provider)


def _whole(
    model: Path,
    dump: Path,
    settings: RuntimeSettings,
    dims: Mapping[str, int],
    provider: str,
) -> ExecutedGraph:
    """Return the graph that a session writes with its weights."""
    write_dump(model, dump, settings, provider)
    shapes = runtime_shapes(dump, provider, about=model)
    return replace(read_graph(dump, shapes, settings, dims, model), provider=provider)


def read_graph(
    dump: Path,
    shapes: RuntimeShapes,
    settings: RuntimeSettings,
    dims: Mapping[str, int],
    model: Path,
) -> ExecutedGraph:
    """Read a graph that the runtime wrote, with the shapes that it knows itself.

    Args:
        dump: the file; names of values are distinct in it afterwards.
        shapes: of the values at its top.
        settings: of the session that wrote it.
        dims: values for symbolic dims.
        model: the file that the session had loaded.
    """
    graph = load_model(dump)
    graph = with_distinct_names(graph) or graph
    known = bound_shapes(shapes, dims, free_dims(graph))
    program = read_checked(graph, Bindings(dims=dims, known=known)).program
    ordered = settings.session.get("graph_optimization_level") != "ORT_DISABLE_ALL"
    if not ordered:
        program = by_index(program, graph.graph, load_as_written(model))
    return ExecutedGraph(program, dims, ordered, seen_shapes(program, shapes))


def _light_graph(
    model: Path, out: Path, settings: RuntimeSettings, provider: str
) -> RuntimeShapes:
    """Write the graph without its weights; return what the runtime infers, or nothing."""
    job = {**_written_to(out, model, settings, provider), "light": True}
    found = run_job("dump", job, about=model).require(f"{model} does not load")
    return shapes_of_types(found["types"])


def _written_to(
    out: Path, model: Path, settings: RuntimeSettings, provider: str
) -> dict[str, object]:
    """Return a job whose session writes the graph that it makes under these settings."""
    level = settings.session.get("graph_optimization_level", "ORT_ENABLE_ALL")
    wanted = RuntimeSettings(
        session={"graph_optimization_level": level}, session_config=settings.session_config
    )
    return {"session": to_json(SessionSpec(model, provider, wanted)), "out": str(out)}


def write_dump(model: Path, out: Path, settings: RuntimeSettings, provider: str = CPU) -> None:
    """Write the graph after the runtime's optimisation, weights beside it.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    job = _written_to(out, model, settings, provider)
    run_job("dump", job, about=model).require(f"{model} does not load")
    distinct = with_distinct_names(load_model(out))
    if distinct is not None:
        out.write_bytes(distinct.SerializeToString())


def runtime_shapes(
    model: Path, provider: str = CPU, about: Path | None = None
) -> RuntimeShapes:
    """Return the shapes that the runtime infers for every value at the top of a model.

    It loads a twin that gives every value as an output; the twin lies beside the model,
    so that it finds the weights, and goes when it was read.

    Raises:
        RuntimeUnavailableError: the model does not load.
    """
    twin = model.with_name(f"{model.stem}.every-output.onnx")
    try:
        whole = load_model(model)
        give_every_output(whole.graph)
        twin.write_bytes(whole.SerializeToString())
        job = {"session": to_json(SessionSpec(twin, provider, UNOPTIMISED))}
        result = run_job("dump", job, about=about or model).require(f"{model} does not load")
    finally:
        twin.unlink(missing_ok=True)
    return shapes_of_types(result["types"])


def complete(shapes: RuntimeShapes) -> RuntimeShapes:
    """Return the shapes that are sure to be known, every dim of them.

    No dims can mean a scalar or that not even the rank is known: the runtime says the same
    of both, and a tensor taken for a scalar would be counted with four bytes.
    """
    return {
        name: (t, shape) for name, (t, shape) in shapes.items() if shape and None not in shape
    }


def bound_shapes(
    shapes: RuntimeShapes, dims: Mapping[str, int], names: Collection[str]
) -> RuntimeShapes:
    """Return the shapes that are sure to be known, in numbers and names of the inputs' dims.

    The runtime repeats the names that an exporter made up for a result's dims, makes up names
    itself, and takes ``seq-len`` for a difference of two: nobody could bind those.
    """
    every = {
        name: (dtype, tuple(bind_dim(dim, dims) for dim in shape))
        for name, (dtype, shape) in complete(shapes).items()
    }
    return {name: (t, shape) for name, (t, shape) in every.items() if _in_names(shape, names)}


def _in_names(shape: Shape, names: Collection[str]) -> bool:
    return all(symbols_of(dim) <= set(names) for dim in shape)


def seen_shapes(program: Program, shapes: RuntimeShapes) -> dict[VarId, Shape | None]:
    """Return the shapes by which the runtime's planner goes, where it knows other ones.

    What has no dims is a scalar only where ONNX inference knows that it is one.
    """
    found: dict[VarId, Shape | None] = {}
    for var in program.vars.values():
        if var.block or var.origin is not Origin.OP or var.name not in shapes:
            continue
        _, shape = shapes[var.name]
        if shape != var.shape:
            found[var.id] = shape or None
    return found
