"""Sentences and command options that several reports share: assumed dims, budgets, next steps."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import (
    RUN_OPTION,
    InputShape,
    binding_form,
    binding_options,
    dim_option,
)
from memplan_cli.core.quantities import format_size
from memplan_cli.core.results.rewrites import ChunkingSummary
from memplan_cli.core.symbolic.dims import bind_dim, binding_text, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.results.memory import BoundDim
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
    from memplan_cli.core.results.rewrites import RecomputeSummary

_MAX_DIMS = 6
"""Dims that a sentence lists."""


def assumed_dims(bindings: Mapping[str, BoundDim]) -> dict[str, int]:
    """Return the values of the dims that were assumed, because nothing bound them."""
    return {name: dim.value for name, dim in bindings.items() if dim.source == "assumed"}


def assumed_lines(dims: Mapping[str, int], inputs: Iterable[InputShape] = ()) -> Iterator[str]:
    """Yield a sentence with the assumed dims and the options that set them; none without dims.

    Without ``inputs`` there is one ``--dim`` for each dim; with their shapes, one ``--shape`` can set
    several dims.
    """
    if dims:
        options = binding_form(inputs) or " ".join(dim_option(name, "N") for name in dims)
        yield f"Sizes are guessed: {dims_summary(dims)}; set them with {options}"


def dims_summary(dims: Mapping[str, int]) -> str:
    """Return the first dims with their values, and the number of the others."""
    hidden = len(dims) - _MAX_DIMS
    more = f" and {hidden} more" if hidden > 0 else ""
    return binding_text(dict(list(dims.items())[:_MAX_DIMS])) + more


def over_budget(report: Report) -> str:
    """Return the sentence that the plan is over its budget, empty if it is not."""
    return budget_message(report.memory.resident, report.recompute, report.chunked)


def budget_message(
    smallest: int | None, recompute: RecomputeSummary, chunks: ChunkingSummary | None = None
) -> str:
    """Return the sentence that a budget of chunking, or else of recomputation, is not met.

    It gives the lower bound, if one is known, and the ``smallest`` plan found: its bytes of
    intermediates and outputs, None if a size is unknown. The sentence is empty if the budget is
    met or there is none.
    """
    chunks = chunks or ChunkingSummary()
    if not chunks.met and chunks.budget is not None:
        return _budget_sentence(chunks.budget, smallest, chunks.bound_text)
    if recompute.met or recompute.budget is None:
        return ""
    bound_text = ""
    if recompute.resident_bound is not None:
        bound_text = f"{format_size(recompute.resident_bound)} for any order, with outputs"
    return _budget_sentence(recompute.budget, smallest, bound_text)


def _budget_sentence(budget: int, smallest: int | None, bound_text: str) -> str:
    """Return the sentence that a budget is not met; ``bound_text`` describes the lower bound."""
    lower_bound = f" (lower bound: {bound_text})" if bound_text else ""
    found = "some sizes are unknown"
    if smallest is not None:
        found = f"the smallest plan found needs {format_size(smallest)}"
    return f"the budget of {format_size(budget)} cannot be met: {found}{lower_bound}"


def free_inputs(report: Report) -> tuple[InputShape, ...]:
    """Return the inputs with a free dim: one that is neither fixed nor bound by the user.

    Their shapes contain the bound values.
    """
    bound_values = {
        name: dim.value for name, dim in report.bindings.items() if dim.source != "assumed"
    }
    inputs = (
        InputShape(name, tuple(bind_dim(dim, bound_values) for dim in shape))
        for name, shape in report.model.inputs
    )
    return tuple(
        item for item in inputs if not all(isinstance(dim, int) for dim in item.shape)
    )


def dim_options(report: Report) -> str:
    """Return command-line options that bind every symbolic dim of the inputs, ``--dim batch=1 --dim seq=128``.

    Dims that the user bound or memplan assumed keep their values, others get suggested ones. Empty
    if the user bound all of them (`free_inputs`): then there is nothing to suggest.
    """
    if not free_inputs(report):
        return ""
    values = {name: dim.value for name, dim in report.bindings.items()}
    return binding_options(report.model.inputs, values)


def report_command(report: Report) -> str:
    """Return a ``memplan report`` command that binds every dim; empty if no dim is free."""
    options = dim_options(report)
    return f"memplan report {path_argument(report)} {options}" if options else ""


def model_arguments(report: Report) -> str:
    """Return the path of the model, and the options that bind its dims as in this report.

    If the user bound at least one dim by an option, all dims get an option, also assumed ones: a
    ``--shape`` has a number for each dim of an input. Otherwise there are no options, and values
    are assumed again.
    """
    values = {name: dim.value for name, dim in report.bindings.items()}
    has_user_options = any(dim.source == "given" for dim in report.bindings.values())
    options = binding_options(report.model.inputs, values) if has_user_options else ""
    return f"{path_argument(report)} {options}".strip()


def path_argument(report: Report) -> str:
    """Return the path of the report's model, quoted for a shell."""
    name = report.model.path
    # Without "./" a path with a leading dash would be an option.
    return quote(f"./{name}" if name.startswith("-") else name)


def unknown_sizes_hint(plan: Plan) -> str:
    """Return the options that make unknown sizes known or leave them out, the better first; empty if none helps."""
    hints = []
    options = " ".join(_options_for_unknown_sizes(plan))
    if options:
        hints.append(f"{options} makes them known")
    if plan.report.partial and plan.report.memory.planned is None:
        hints.append("--allow-partial counts the known sizes only")
    return "; ".join(hints)


def _options_for_unknown_sizes(plan: Plan) -> Iterator[str]:
    """Yield the options that can make unknown sizes known.

    - Values for dims of inputs, if a dim has no value yet or if values make a size with symbols known.
    - The option that allows a run, if runs were not allowed and sizes are unknown that depend on data.

    The report is *partial* if sizes are not even known in symbols, such as that of a text.
    """
    report = plan.report
    unbound_inputs = free_inputs(report)  # inputs with dims that the user has not bound
    input_symbols = {symbol for item in unbound_inputs for symbol in item.symbols}
    # Symbols stand in the units of sizes. A dim with an assumed value is a symbol too.
    size_symbols = {name for unit in plan.units.values() for name in symbols_of(unit)}
    may_run = plan.settings.get("run", True)
    values = {name: dim.value for name, dim in report.bindings.items()}  # bound or assumed
    has_dim_without_value = not input_symbols <= values.keys() or any(
        None in item.shape for item in unbound_inputs
    )
    if may_run:
        # If the report is partial, a run was allowed and left sizes that no dims determine, such as those of texts.
        can_values_help = not report.partial and not size_symbols.isdisjoint(input_symbols)
    else:
        # Values make the symbols of inputs known. A run makes the others known, and needs these values.
        can_values_help = bool(size_symbols)
    if unbound_inputs and (has_dim_without_value or can_values_help):
        yield binding_options(unbound_inputs, values)
    depends_on_data = bool(size_symbols - input_symbols)
    if not may_run and (report.partial or depends_on_data):
        yield RUN_OPTION
