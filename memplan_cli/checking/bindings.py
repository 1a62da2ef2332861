"""The check of a report's bindings: the values of the dims for which its numbers are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.checking.planned_model import PlannedModel


def check_bindings(planned: PlannedModel) -> Iterator[str]:
    """Yield where the report's bindings of dims differ from the settings and the model.

    A dim with a value in the settings has this value. A dim with bounds need not have a value; if
    it has one, the model was run at it. Every other symbol in the inputs is free: its value is
    assumed, and at least 1.
    """
    bindings = planned.plan.report.bindings
    settings_dims = planned.plan.settings.get("dims")
    fixed = settings_dims if isinstance(settings_dims, dict) else {}
    free = _input_symbols(planned) - fixed.keys() - planned.bounds.keys()
    replaced = _replaced_symbols(planned)
    for name in sorted(fixed.keys() | free | bindings.keys()):
        dim = f"dim {name[:120]!r}"
        if name not in bindings:
            yield f"bindings are recorded without {dim}, which the plan's inputs have"
            continue
        value, source = bindings[name].value, bindings[name].source
        recorded = f"bindings are recorded with {value} for {dim}"
        if name in fixed:
            if value != fixed[name]:
                yield f"{recorded}, the settings have {str(fixed[name])[:40]}"
        elif name in planned.bounds:
            low, high = planned.bounds[name]
            if not low <= value <= high:
                yield f"{recorded}, its bounds are {low} to {high}"
        elif name not in free and name not in replaced:
            yield f"bindings are recorded with {dim}, which is not free in the model"
        elif source != "assumed":
            yield f"{recorded} as {source}, and the settings do not give it"
        elif value < 1:
            yield f"{recorded}, an assumed value is at least 1"


def _input_symbols(planned: PlannedModel) -> set[str]:
    """Return the symbols in the shapes of a model's inputs, elements of sequences included."""
    symbols: set[str] = set()
    for value in planned.timeline.main.inputs:
        _, shape = planned.types[0].get(value.name, ("unknown", None))
        for dim in shape or ():
            symbols |= symbols_of(dim)
    for proto in planned.model.graph.input:
        kind = proto.type
        while (field := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
            kind = getattr(kind, field).elem_type
            for dim in kind.tensor_type.shape.dim:
                if dim.dim_param:
                    symbols |= symbols_of(dim.dim_param)
    return symbols


def _replaced_symbols(planned: PlannedModel) -> set[str]:
    """Return the symbols of inputs whose shapes the settings replace, and names for their dims.

    The plan is made without these symbols, but a run may bind them.
    """
    shapes = planned.plan.settings.get("shapes")
    replaced_inputs = shapes if isinstance(shapes, dict) else {}
    symbols: set[str] = set()
    for value in planned.model.graph.input:
        if value.name in replaced_inputs:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                symbols |= {f"{value.name}_dim{axis}", *symbols_of(dim.dim_param)}
    return symbols
