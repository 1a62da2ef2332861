"""The operators that can be trained through, as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.gradients import FAMILIES, WITHOUT_GRADIENT
from memplan_cli.onnx_io.gradients.expand import EXPANSIONS

if TYPE_CHECKING:
    from collections.abc import Callable


def rules_table() -> str:
    """Return a Markdown table of every operator with a rule, with its mathematics."""
    rows = ["| Operator | Family | Gradient |", "| --- | --- | --- |"]
    for family, rules in FAMILIES.items():
        rows.extend(_row(kind, family, rule) for kind, rule in sorted(rules.items()))
    rows.extend(_row(kind, "spelt out", rule) for kind, rule in sorted(EXPANSIONS.items()))
    stops = ", ".join(sorted(WITHOUT_GRADIENT))
    return "\n".join([*rows, "", f"No gradient flows through: {stops}."])


def _row(kind: str, family: str, rule: Callable[..., object]) -> str:
    paragraph = (rule.__doc__ or "").strip().partition("\n\n")[0]
    text = " ".join(paragraph.split()).replace("|", "\\|")
    return f"| {kind} | {family} | {text} |"
