"""What was assumed of dims that nobody bound, in one line, and how to say otherwise."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import binding_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from memplan_cli.core.results.report import Report

_MOST_DIMS = 6
"""Dims that a line names."""


def assumed_of(report: Report) -> dict[str, int]:
    """Return the numbers of a report that nobody said."""
    return {n: dim.value for n, dim in report.bindings.items() if dim.source == "assumed"}


def assumed_lines(dims: Mapping[str, int]) -> Iterator[str]:
    """Yield one line that names the dims and the options, if there are any dims."""
    if dims:
        options = " ".join(f"--dim {quote(f'{name}=N')}" for name in list(dims)[:_MOST_DIMS])
        yield f"assumed {named_dims(dims)}; say otherwise with {options}"


def named_dims(dims: Mapping[str, int]) -> str:
    """Return the first of the dims with their numbers, and how many more there are."""
    left = len(dims) - _MOST_DIMS
    more = f" and {left} more" if left > 0 else ""
    return binding_text(dict(list(dims.items())[:_MOST_DIMS])) + more
