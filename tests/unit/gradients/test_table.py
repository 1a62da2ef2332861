"""The documentation lists what the tables have."""

from __future__ import annotations

from pathlib import Path

from memplan_cli.onnx_io.gradients import RULES
from memplan_cli.onnx_io.gradients.table import rules_table

DOCS = Path(__file__).resolve().parents[3] / "docs" / "training.md"


def test_documentation_has_the_table_of_rules() -> None:
    assert rules_table() in DOCS.read_text(encoding="utf-8")


def test_every_rule_states_its_mathematics() -> None:
    assert [kind for kind, rule in RULES.items() if "=" not in (rule.__doc__ or "")] == []
