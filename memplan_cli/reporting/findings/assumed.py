"""What was assumed of dims that nobody bound, in one line, and how to say otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import binding_options, dim_option
from memplan_cli.core.symbolic.dims import binding_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.binding_options import InputShape
    from memplan_cli.core.results.report import Report

_MOST_DIMS = 6
"""Dims that a line names."""


def assumed_of(report: Report) -> dict[str, int]:
    """Return the numbers of a report that nobody said."""
    return {n: dim.value for n, dim in report.bindings.items() if dim.source == "assumed"}


def assumed_lines(dims: Mapping[str, int], inputs: Iterable[InputShape] = ()) -> Iterator[str]:
    """Yield one line with the dims and the options that bind them, if there are any dims.

    The options can be copied whole: their numbers are those that were assumed. Without the
    shapes of the inputs each dim is bound by itself.
    """
    if dims:
        each = " ".join(dim_option(name, value) for name, value in dims.items())
        options = binding_options(inputs, dims) or each
        yield f"assumed {named_dims(dims)}; say otherwise with {options}"


def named_dims(dims: Mapping[str, int]) -> str:
    """Return the first of the dims with their numbers, and how many more there are."""
    left = len(dims) - _MOST_DIMS
    more = f" and {left} more" if left > 0 else ""
    return binding_text(dict(list(dims.items())[:_MOST_DIMS])) + more
