"""How much memory will ONNX Runtime take? Its planner and its arena, simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.evidence import CPU, Peaks, RuntimeSettings
from memplan_cli.runtime.bfc import Arena, ArenaRules
from memplan_cli.runtime.frame import Ledger, Model, Runner, UnknownBytesError
from memplan_cli.runtime.order import ORDERS, file_order
from memplan_cli.runtime.probe import load_table
from memplan_cli.runtime.reuse import Reuse, Rules
from memplan_cli.sizes import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.ir import Program, VarId

_STRING = 32
"""Bytes of a ``std::string`` where the wheels are built."""


@dataclass(frozen=True, slots=True)
class Executed:
    """A graph as the runtime runs it.

    Attributes:
        program: after the runtime's own changes; at optimisation off, the file itself.
        dims: values for symbolic dims.
        trips: turns of each Loop, by label, where they are known.
        ordered: the ops stand in the order in which they are run (a dump does).
    """

    program: Program
    dims: Mapping[str, int] = field(default_factory=dict)
    trips: Mapping[str, int] = field(default_factory=dict)
    ordered: bool = False


def predict(
    executed: Executed, settings: RuntimeSettings | None = None, provider: str = CPU
) -> Peaks:
    """Return the peaks of tensors in the first and in later runs, and what is held.

    Exact on CPU where every size is known before the run; ``held`` counts no weights and
    no kernel workspace. Every figure is None where a size depends on data.
    """
    settings = settings or RuntimeSettings()
    model = model_of(executed, settings, provider)
    arena = Arena(ArenaRules.from_settings(settings.arena))
    runner = Runner(model, Ledger(arena))
    try:
        runner.run()
        first = runner.ledger.peak
        runner.ledger = Ledger(arena)
        runner.run()
    except UnknownBytesError:
        return Peaks(None, None)
    return Peaks(first, runner.ledger.peak, held=arena.held)


def model_of(executed: Executed, settings: RuntimeSettings, provider: str) -> Model:
    """Return what the simulation of a run needs, under some settings."""
    session = settings.session
    order = ORDERS[str(session.get("execution_order", "DEFAULT"))]
    reuse = Reuse.ON if session.get("enable_mem_reuse", True) else Reuse.OFF
    rules = Rules(load_table(provider), file_order if executed.ordered else order, reuse)
    return Model(
        executed.program,
        tensor_bytes(executed.program, executed.dims),
        rules,
        bool(session.get("enable_mem_pattern", True)),
        executed.trips,
    )


def tensor_bytes(program: Program, dims: Mapping[str, int]) -> dict[VarId, int]:
    """Return the bytes the runtime asks for, for each var whose size is known."""
    found = {}
    for var in program.vars.values():
        size = size_of(var.shape, "uint8" if var.dtype == "string" else var.dtype)
        if size is None:
            continue
        bound = size.bind(dims) if size.symbols else size
        if not bound.symbols:
            found[var.id] = bound.coefficient * (_STRING if var.dtype == "string" else 1)
    return found
