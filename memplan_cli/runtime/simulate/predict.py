"""Prediction of ONNX Runtime's memory for one graph: peaks of tensors, and bytes held by the arena.

The first run's peak and the steady peak (of later runs) count the bytes of live tensors. What the
arena holds is more: rounding, holes, and the workspace of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, walk
from memplan_cli.core.results.observations import CPU, UNOPTIMIZED, Peaks, RuntimeSettings
from memplan_cli.runtime.profile.in_place import load_table
from memplan_cli.runtime.profile.workspace import requests_from_totals
from memplan_cli.runtime.simulate.arena import ArenaSettings, simulate_arena
from memplan_cli.runtime.simulate.execution import SimulatedModel, trace_session
from memplan_cli.runtime.simulate.planner import ORDERS, PlannerSettings, file_order
from memplan_cli.runtime.simulate.trace import (
    UnknownBytesError,
    tensor_bytes,
    with_copied_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Block, Op, Program, Shape, VarId
    from memplan_cli.runtime.simulate.execution import SessionTraces
    from memplan_cli.runtime.simulate.observation import RunObservation
    from memplan_cli.runtime.simulate.trace import AllocationTrace

RUN_AS_WRITTEN = UNOPTIMIZED.updated(
    RuntimeSettings(session={"execution_order": "PRIORITY_BASED"})
)
"""Settings with which the runtime runs the nodes of a file in the order of the file."""

ARENA_REUSE_ONLY = RUN_AS_WRITTEN.updated(
    RuntimeSettings(session={"enable_mem_pattern": False, "enable_mem_reuse": False})
)
"""`RUN_AS_WRITTEN` without memory pattern and buffer reuse: nodes run in the order of the file, and each
buffer is freed after its last reader, so that only the arena reuses its bytes."""


@dataclass(frozen=True, slots=True)
class ExecutedGraph:
    """A graph as the runtime executes it.

    Attributes:
        program: after the runtime's own changes; with optimization off, the file itself.
        dims: values of symbolic dims.
        in_run_order: whether the ops are in execution order, as in a dump of an optimized graph.
        planner_shapes: the shapes by which ONNX Runtime plans, of variables for which it infers
            less than the program has; None is an unknown shape. Variables that the program lacks are skipped.
        observed: data-dependent sizes and iteration counts of one run; predictions then hold for the
            inputs of that run. None: they are unknown, or there are none.
        provider: ONNX Runtime's name of the execution provider.
    """

    program: Program
    dims: Mapping[str, int] = field(default_factory=dict)
    in_run_order: bool = False
    planner_shapes: Mapping[VarId, Shape | None] = field(default_factory=dict)
    observed: RunObservation | None = None
    provider: str = CPU


def predict_peaks(
    executed: ExecutedGraph,
    settings: RuntimeSettings | None = None,
    workspace: Mapping[str, int] | None = None,
) -> Peaks:
    """Return the peaks of tensors in the first run and in later runs, and the bytes that are held.

    Exact on CPU where every size is known before the run or was observed in one. ``held`` counts
    no weights. With the workspace of kernels (`RunRecord.workspace`) it is off by at most one
    region of the arena; without it, by what the workspace made the arena grow. Every figure is
    None where a size or a number of iterations depends on data that was not observed.
    """
    settings = settings or RuntimeSettings()
    try:
        traces = session_traces(executed, settings, workspace or {})
    except UnknownBytesError:
        return Peaks(None, None)
    arena = ArenaSettings.from_settings(settings.arena)
    held = simulate_arena((traces.first, traces.later), arena).held
    return Peaks(traces.first_peak, traces.later_peak, held=held)


def session_traces(
    executed: ExecutedGraph, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> SessionTraces:
    """Return the requests to the arena of a session's runs.

    ``workspace`` is the measured bytes that each node requests besides its outputs.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    requests = requests_from_totals(executed.program, executed.dims, workspace)
    return trace_session(simulated_model(executed, settings), requests)


def served_runs(executed: ExecutedGraph, traces: SessionTraces) -> AllocationTrace:
    """Return the requests that the arena is sized for: the runs of a caller that keeps the last outputs.

    On CUDA such a caller keeps copies on the host. So all runs are as the first one, and the arena also has
    copies of the inputs.
    """
    if executed.provider == CPU:
        return traces.runs_with_kept_outputs
    return with_copied_inputs(traces.first, _input_sizes(executed))


def _input_sizes(executed: ExecutedGraph) -> list[int]:
    """Return the bytes of each input of known size."""
    sizes = tensor_bytes(executed.program, executed.dims)
    return [sizes[var] for var in executed.program.body.inputs if var in sizes]


def simulated_model(executed: ExecutedGraph, settings: RuntimeSettings) -> SimulatedModel:
    """Return a graph with the planner's settings and known sizes, for a simulation of its runs."""
    session = settings.session
    order = ORDERS[str(session.get("execution_order", "DEFAULT"))]
    planner = PlannerSettings(  # a graph in run order is not ordered again
        table=load_table(executed.provider),
        order=file_order if executed.in_run_order else order,
        reuses_buffers=bool(session.get("enable_mem_reuse", True)),
    )
    observed = executed.observed
    return SimulatedModel(
        program=runtime_program(executed),
        bytes=tensor_bytes(executed.program, executed.dims),
        planner=planner,
        with_pattern=bool(session.get("enable_mem_pattern", True)),
        observed=observed,
        packed=observed.packed if observed and packs_weights(settings) else frozenset(),
    )


def packs_weights(settings: RuntimeSettings) -> bool:
    """Return whether the kernels of a session pack their weights."""
    return settings.session_config.get("session.disable_prepacking") != "1"


def runtime_program(executed: ExecutedGraph) -> Program:
    """Return the program with the nodes that the runtime has, and the shapes that it plans by.

    The runtime turns a Constant into an initializer when it loads a file.
    """
    program = executed.program
    if any(_is_constant(program, op) for _, op in walk(program.body)):
        program = replace(program, body=_without_constants(program, program.body))
    changed_vars = {
        var: program.vars[var]._replace(shape=shape)
        for var, shape in executed.planner_shapes.items()
        if var in program.vars
    }
    if not changed_vars:
        return program
    return replace(program, vars={**program.vars, **changed_vars})


def _is_constant(program: Program, op: Op) -> bool:
    """Return whether an op is a Constant that ONNX Runtime turns into an initializer."""
    return op.type == "Constant" and all(
        program.vars[var].origin is Origin.WEIGHT for var in op.outputs
    )


def _without_constants(program: Program, block: Block) -> Block:
    """Return a block without Constants, in its bodies too."""
    ops: list[Op] = []
    for op in block.ops:
        if _is_constant(program, op):
            continue
        bodies = tuple(_without_constants(program, body) for body in op.bodies)
        ops.append(op._replace(bodies=bodies) if bodies else op)
    return replace(block, ops=tuple(ops))


def needs_observation(executed: ExecutedGraph) -> bool:
    """Return whether a prediction needs the branches, iteration counts or sizes of a run.

    It does if any op has a body: whether a body has a memory pattern depends on which weights its
    kernels pack, and only a run shows that.
    """
    known_sizes = tensor_bytes(executed.program, executed.dims)
    return any(
        op.bodies or any(var and var not in known_sizes for var in op.outputs)
        for _, op in walk(executed.program.body)
    )
