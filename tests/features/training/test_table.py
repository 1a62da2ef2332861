"""The documentation lists all gradient rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, names_of
from memplan_cli.features.training.expansion.expand import EXPANSIONS
from memplan_cli.features.training.rules import FAMILIES, RULES

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parents[3] / "docs" / "training.md"


def rules_table() -> str:
    """Return a Markdown table of every operator with a rule, with its mathematics."""
    rows = ["| Operator | Family | Gradient |", "| --- | --- | --- |"]
    for family, rules in FAMILIES.items():
        rows.extend(row(kind, family, rule) for kind, rule in sorted(rules.items()))
    rows.extend(row(kind, "decomposed", rule) for kind, rule in sorted(EXPANSIONS.items()))
    stops = ", ".join(sorted(names_of(lambda each: each.has_zero_gradient)))
    return "\n".join([*rows, "", f"No gradient flows through: {stops}."])


def row(kind: str, family: str, rule: Callable[..., object]) -> str:
    paragraph = (rule.__doc__ or "").strip().partition("\n\n")[0]
    text = " ".join(paragraph.split()).replace("|", "\\|")
    return f"| {kind} | {family} | {text} |"


def test_documentation_has_the_table_of_rules(*, update_golden: bool) -> None:
    text = DOCS.read_text(encoding="utf-8")
    found = re.fullmatch(
        r"(.*<!-- rules: begin[^\n]*-->\n\n)(.*)(\n\n<!-- rules: end -->\n)", text, re.DOTALL
    )
    assert found is not None
    if update_golden:
        DOCS.write_text(found[1] + rules_table() + found[3], encoding="utf-8")
        return
    assert found[2] == rules_table()


def test_every_rule_states_its_mathematics() -> None:
    assert [kind for kind, rule in RULES.items() if "=" not in (rule.__doc__ or "")] == []


def test_every_elementwise_operator_on_floats_has_a_gradient() -> None:
    """Except where the results are no floats, where ONNX defines the operator by others, and rare ones."""
    without = names_of(lambda each: each.is_elementwise and not each.has_zero_gradient)
    others = {name for name in without if name not in RULES}
    no_floats = names_of(
        lambda each: each.family in (Family.COMPARISON, Family.LOGIC, Family.BITWISE)
    )
    decomposed = {"Mish", "Selu", "Shrink", "Softsign", "Swish", "ThresholdedRelu"}
    hyperbolic = {"Acosh", "Asinh", "Atanh", "Cosh", "Sinh"}
    rare = {"Acos", "Asin", "Atan", "Celu", "Mod", "Tan"}
    assert others == {
        *(*no_floats, *decomposed, *hyperbolic, *rare),
        *("BitwiseNot", "IsInf", "IsNaN", "Not"),
    }
