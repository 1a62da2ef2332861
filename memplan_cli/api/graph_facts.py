"""What a plan's model says of its nodes and tensors, for reports that colour and group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, walk
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import MemplanError
from memplan_cli.reporting.pages.graph_facts import (
    CACHE,
    GRADIENTS,
    INPUTS,
    STATE,
    UPDATE,
    WEIGHTS,
    GraphFacts,
    is_cache,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.results.plan import Plan

_PARTS = {"backward": GRADIENTS, "update": UPDATE}


def facts_for(path: FilePath, plan: Plan) -> GraphFacts | None:
    """Return what the model of a plan says; None where it is not there or is another one.

    Args:
        path: The model that was planned, or the plan's file, which names its model.
        plan: What is to be shown.
    """
    from memplan_cli.analysis.phase import find_phases
    from memplan_cli.api.files.reading import read_as_inferred
    from memplan_cli.onnx_io.load import file_digest, load_model
    from memplan_cli.onnx_io.metadata import recorded_phases
    from memplan_cli.onnx_io.shapes.bindings import Bindings

    path = Path(path)
    source = path.parent / plan.report.model.path if path.suffix == ".json" else path
    try:
        if not source.is_file() or file_digest(source) != plan.report.model.sha256:
            return None
        model = load_model(source)
        bindings = Bindings({name: dim.value for name, dim in plan.report.bindings.items()})
        program = read_as_inferred(model, bindings).program
        phases = find_phases(program, loss=plan.report.loss, recorded=recorded_phases(model))
    except (MemplanError, OSError):
        # What the page shows without it is less, and right.
        return None
    parts = {str(var): _PARTS[part] for var, part in phases.of.items() if part in _PARTS}
    return GraphFacts(dict(_types(program)), parts, _given(program, phases))


def _types(program: Program) -> Iterator[tuple[str, str]]:
    """Yield the type of each node by every label that an order may have for it."""
    for block, op in walk(program.body):
        path = f"{block.path}/" if block.path else ""
        yield f"{path}#{op.source}", op.type
        yield f"{path}{op.label}", op.type


def _given(program: Program, phases: Phases) -> dict[str, int]:
    """Return bytes of weights and inputs by category; nothing where a size has no number."""
    found: dict[str, int] = {}
    updates = frozenset(
        var for op in program.body.ops if phases.part(op) == "update" for var in op.inputs
    )
    for var in program.vars.values():
        if var.origin in (Origin.WEIGHT, Origin.INPUT):
            size = size_of(var.shape, var.dtype)
            if size is None or size.symbols:
                return {}
            kind = _kind(var, phases, updates)
            found[kind] = found.get(kind, 0) + size.coefficient
    return found


def _kind(var: Var, phases: Phases, updates: Collection[VarId]) -> str:
    if var.origin is Origin.WEIGHT or var.id in phases.parameters:
        return WEIGHTS
    if is_cache(var.name):
        return CACHE
    return STATE if var.id in updates else INPUTS
