"""Facts about a plan's model that color and group tensors in reports: op types, phases, categories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.model_or_plan import is_plan_file
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
    from collections.abc import Collection

    from memplan_cli.analysis.phase import Phases
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.program import Program, Var, VarId
    from memplan_cli.core.results.plan import Plan

_CATEGORIES = {"backward": GRADIENTS, "update": UPDATE}


def facts_for(path: FilePath, plan: Plan) -> GraphFacts | None:
    """Return facts about the model of a plan; None if it is missing or unreadable, or its digest differs.

    ``path`` is the model file, or the plan file, which names the model.
    """
    from memplan_cli.analysis.phase import find_phases
    from memplan_cli.onnx_io.load import file_digest, load_model
    from memplan_cli.onnx_io.metadata import recorded_phases
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_checked

    path = Path(path)
    source = path.parent / plan.report.model.path if is_plan_file(path) else path
    try:
        if not source.is_file() or file_digest(source) != plan.report.model.sha256:
            return None
        model = load_model(source)
        bindings = Bindings({name: dim.value for name, dim in plan.report.bindings.items()})
        program = read_checked(model, bindings).program
        phases = find_phases(program, loss=plan.report.loss, recorded=recorded_phases(model))
    except (MemplanError, OSError):
        return None
    categories = {
        str(var): _CATEGORIES[phase]
        for var, phase in phases.phase_of.items()
        if phase in _CATEGORIES
    }
    return GraphFacts(_op_types(program), categories, _bytes_by_category(program, phases))


def _op_types(program: Program) -> dict[str, str]:
    """Return the operator type of each node, by both names that an order may have for it.

    These are its label and its index in the file, behind the path of its block: ``body/#7``.
    """
    op_types = {}
    for block, op in walk(program.body):
        prefix = f"{block.path}/" if block.path else ""
        op_types[f"{prefix}#{op.source}"] = op_types[f"{prefix}{op.label}"] = op.type
    return op_types


def _bytes_by_category(program: Program, phases: Phases) -> dict[str, int]:
    """Return the bytes of weights and inputs by category; empty if a size is no number.

    An input that the update consumes and that is no parameter counts as optimizer state.
    """
    totals: dict[str, int] = {}
    update_inputs = frozenset(
        var for op in program.body.ops if phases.phase(op) == "update" for var in op.inputs
    )
    for var in program.vars.values():
        if var.origin in (Origin.WEIGHT, Origin.INPUT):
            size = size_of(var.shape, var.dtype)
            if size is None or size.symbols:
                return {}
            category = _category(var, phases, update_inputs)
            totals[category] = totals.get(category, 0) + size.coefficient
    return totals


def _category(var: Var, phases: Phases, update_inputs: Collection[VarId]) -> str:
    """Return whether a weight or input is a parameter, a cache, optimizer state, or an input."""
    if var.origin is Origin.WEIGHT or var.id in phases.parameters:
        return WEIGHTS
    if is_cache(var.name):
        return CACHE
    return STATE if var.id in update_inputs else INPUTS
