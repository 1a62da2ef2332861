"""ONNX Runtime's memory predicted: its planner and its arena, simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, walk
from memplan_cli.core.results.observations import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.probe import load_table
from memplan_cli.runtime.simulation.bfc import Arena, ArenaRules
from memplan_cli.runtime.simulation.control_flow import CONTROL_FLOW
from memplan_cli.runtime.simulation.frame import Model, Runner
from memplan_cli.runtime.simulation.ledger import Ledger, UnknownBytesError
from memplan_cli.runtime.simulation.order import ORDERS, file_order
from memplan_cli.runtime.simulation.requests import run_of
from memplan_cli.runtime.simulation.reuse import Reuse, Rules
from memplan_cli.runtime.simulation.tensor_bytes import tensor_bytes
from memplan_cli.runtime.simulation.workspace import as_requested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Block, Op, Program, Shape, VarId
    from memplan_cli.runtime.measuring.observed import Observed
    from memplan_cli.runtime.simulation.requests import Run


@dataclass(frozen=True, slots=True)
class Executed:
    """A graph as the runtime runs it.

    Attributes:
        program: after the runtime's own changes; at optimisation off, the file itself.
        dims: values for symbolic dims.
        ordered: the ops stand in the order in which they are run (a dump does).
        seen: the shapes that the runtime itself knows before the run, of vars of which it
            knows less than the program says: its planner shares nothing by other ones.
        observed: what data decided in one run; predictions then hold for its feeds.
        provider: ONNX Runtime's name of where it runs.
    """

    program: Program
    dims: Mapping[str, int] = field(default_factory=dict)
    ordered: bool = False
    seen: Mapping[VarId, Shape | None] = field(default_factory=dict)
    observed: Observed | None = None
    provider: str = CPU


def predict(
    executed: Executed,
    settings: RuntimeSettings | None = None,
    workspace: Mapping[str, int] | None = None,
) -> Peaks:
    """Return the peaks of tensors in the first and in later runs, and what is held.

    Exact on CPU where every size is known before the run, or was observed in one. ``held``
    counts no weights; given the workspace of kernels (`measure.workspace_of`), it is off by
    one region of the arena at most, without it, by what their workspace made it grow. Every
    figure is None where a size or a number of turns depends on data that nobody observed.
    """
    settings = settings or RuntimeSettings()
    model = model_of(executed, settings)
    scratch = as_requested(executed.program, executed.dims, workspace or {})
    arena = Arena(ArenaRules.from_settings(settings.arena))
    runner = Runner(model, Ledger(arena, scratch), CONTROL_FLOW)
    try:
        runner.run()
        first = runner.ledger.peak
        runner.ledger = Ledger(arena, scratch)
        runner.run()
    except UnknownBytesError:
        return Peaks(None, None)
    return Peaks(first, runner.ledger.peak, held=arena.held)


def run_under(
    executed: Executed, settings: RuntimeSettings, workspace: Mapping[str, int]
) -> Run:
    """Return what runs ask for under some settings; ``workspace`` is measured, by node.

    Raises:
        UnknownBytesError: a size depends on data.
    """
    return run_of(
        model_of(executed, settings), as_requested(executed.program, executed.dims, workspace)
    )


def model_of(executed: Executed, settings: RuntimeSettings) -> Model:
    """Return what the simulation of a run needs, under some settings."""
    session = settings.session
    order = ORDERS[str(session.get("execution_order", "DEFAULT"))]
    reuse = Reuse.ON if session.get("enable_mem_reuse", True) else Reuse.OFF
    rules = Rules(
        load_table(executed.provider), file_order if executed.ordered else order, reuse
    )
    return Model(
        as_seen(executed),
        tensor_bytes(executed.program, executed.dims),
        rules,
        bool(session.get("enable_mem_pattern", True)),
        executed.observed,
        _packed(executed, settings),
    )


def _packed(executed: Executed, settings: RuntimeSettings) -> frozenset[VarId]:
    off = settings.session_config.get("session.disable_prepacking") == "1"
    return frozenset() if off or not executed.observed else executed.observed.packed


def as_seen(executed: Executed) -> Program:
    """Return the program with the nodes that the runtime has, and the shapes it plans by."""
    program = executed.program
    if any(_is_weight(program, op) for _, op in walk(program.body)):
        program = replace(program, body=_without_weights(program, program.body))
    seen = {
        var: program.vars[var]._replace(shape=shape) for var, shape in executed.seen.items()
    }
    return replace(program, vars={**program.vars, **seen}) if seen else program


def _is_weight(program: Program, op: Op) -> bool:
    """Whether an op is a Constant: the runtime makes an initializer of it when it loads a file."""
    return op.type == "Constant" and all(
        program.vars[var].origin is Origin.WEIGHT for var in op.outputs
    )


def _without_weights(program: Program, block: Block) -> Block:
    ops = (op for op in block.ops if not _is_weight(program, op))
    return replace(
        block,
        ops=tuple(
            op._replace(bodies=tuple(_without_weights(program, body) for body in op.bodies))
            if op.bodies
            else op
            for op in ops
        ),
    )


def needs_run(executed: Executed) -> bool:
    """Whether a figure depends on what a run decides: branches, turns, sizes.

    Any subgraph counts: whether it has a memory pattern depends on which weights its kernels
    pack, and only a run says that.
    """
    known = tensor_bytes(executed.program, executed.dims)
    ops = [op for _, op in walk(executed.program.body)]
    return any(op.bodies or any(var and var not in known for var in op.outputs) for op in ops)
