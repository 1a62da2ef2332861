"""Options that do nothing without others, or that others rule out, are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

from builders import plan_of_text
from memplan_cli import Settings
from memplan_cli.errors import SettingsError

TEXT = "g (float[8,8] x) => (float[8,8] z) { a = Exp(x) b = Neg(a) z = MatMul(b, a) }"


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"budget": 0.5}, "--budget has no effect without", "--recompute auto"),
        ({"checkpoints": ("a",)}, "--checkpoint has no effect without", "--recompute checkpoints"),
        ({"recompute": "checkpoints"}, "needs the tensors to keep", "--checkpoint NAME"),
        (
            {"recompute": "auto", "budget": 0.5, "order": "keep"},
            "cannot be combined", "remove --order keep",
        ),
        ({"chunk": "auto", "best_effort": True}, "--best-effort has no effect without", "--budget"),
    ],
)  # fmt: skip
def test_an_option_that_others_rule_out_is_refused(
    settings: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(SettingsError, match=message) as found:
        plan_of_text(TEXT, Settings(**settings))
    assert hint in str(found.value.hint)


def test_chunking_needs_one_value_for_each_dimension() -> None:
    text = TEXT.replace("8,8", "n,8").replace("MatMul(b, a)", "Add(b, a)")
    with pytest.raises(
        SettingsError,
        match="needs one value for each dimension, and these have none or a range: n",
    ):
        plan_of_text(text, Settings(chunk="auto", budget=0.5))


@pytest.mark.parametrize("text", ["0", "0 MiB", "0B"])
def test_a_budget_of_nothing_is_refused_before_a_search(text: str) -> None:
    with pytest.raises(SettingsError, match="budget: expected a size above zero, not"):
        Settings(chunk="auto", budget=text)  # type: ignore[arg-type] # as a file has it


def test_a_graph_that_needs_no_pieces_stays_as_it_is() -> None:
    plain = plan_of_text(TEXT)
    cut = plan_of_text(TEXT, Settings(chunk="auto", budget=1 << 20))
    assert cut.report.chunked.regions == ()
    assert cut.report.chunked.met
    assert cut.order == plain.order
