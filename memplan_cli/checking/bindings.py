"""The numbers of dims: those that the settings give, and those assumed of what is left free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.checking.subject import Subject
    from memplan_cli.core.symbolic.bounds import Bounds

_ASSUMED = "assumed"


def check_bindings(subject: Subject, bounds: Bounds) -> Iterator[str]:
    """Yield where the report's bindings are not those of the settings and of free dims.

    A dim that the settings give a number has that number, whoever said it. Each other one of
    the inputs' dims is free, and has a number of 1 or more that was assumed, or bounds; of
    one with bounds, a number says where the model was run, if it was.
    """
    bindings, given = subject.plan.report.bindings, _given(subject)
    free = _free(subject) - given.keys() - bounds.keys()
    replaced = _replaced(subject)
    said = {name: dim.value for name, dim in bindings.items()}
    for name in sorted(given.keys() | free | said.keys()):
        who = f"dim {name[:120]!r}"
        if name not in said:
            yield f"bindings is said to be without {who}, which the plan's inputs have"
        elif name in given:
            if said[name] != given[name]:
                yield (
                    f"bindings is said to have {said[name]} for {who}, the settings say "
                    f"{str(given[name])[:40]}"
                )
        elif name in bounds:
            low, high = bounds[name]
            if not low <= said[name] <= high:
                yield (
                    f"bindings is said to have {said[name]} for {who}, its bounds are {low} "
                    f"to {high}"
                )
        elif name not in free and name not in replaced:
            yield f"bindings is said to have {who}, which is not free in the model"
        elif bindings[name].source != _ASSUMED:
            yield (
                f"bindings is said to have {who} {bindings[name].source}, and the settings do "
                "not give it"
            )
        elif said[name] < 1:
            yield f"bindings is said to have {said[name]} for {who}, no number to assume"


def _given(subject: Subject) -> Mapping[str, object]:
    dims = subject.plan.settings.get("dims")
    return dims if isinstance(dims, dict) else {}


def _free(subject: Subject) -> set[str]:
    """Return the symbols in the shapes of what a run is fed."""
    found: set[str] = set()
    for value in subject.clock.top.inputs:
        _, shape = subject.types[0].get(value.name, ("unknown", None))
        for dim in shape or ():
            found |= symbols_of(dim)
    for given in subject.model.graph.input:
        kind = given.type  # what is only made of tensors has no shape, and names for dims
        while (which := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
            kind = getattr(kind, which).elem_type
            named = (dim.dim_param for dim in kind.tensor_type.shape.dim)
            found |= {symbol for text in named if text for symbol in symbols_of(text)}
    return found


def _replaced(subject: Subject) -> set[str]:
    """Return what inputs declare where the settings give other shapes: only runs have it."""
    shapes = subject.plan.settings.get("shapes")
    given = shapes if isinstance(shapes, dict) else {}
    found: set[str] = set()
    for value in subject.model.graph.input:
        if value.name in given:
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                found |= {f"{value.name}_dim{axis}", *symbols_of(dim.dim_param)}
    return found
