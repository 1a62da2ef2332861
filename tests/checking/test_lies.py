"""Every lie of the table is refused for what it is, and what nobody changed is not."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from lies import of_models, of_numbers, of_plans
from lies.told import BASES, disagreement, nothing, refusal, tell

if TYPE_CHECKING:
    from pathlib import Path

LIES = {**of_plans.LIES, **of_models.LIES, **of_numbers.LIES}


def test_no_two_lies_have_one_name() -> None:
    tables = (of_plans.LIES, of_models.LIES, of_numbers.LIES)
    assert len(LIES) == sum(map(len, tables)) >= 40


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    base, lie, reason = LIES[name]
    assert re.search(reason, said := refusal(tell(base, lie, tmp_path))), said


@pytest.mark.parametrize("name", LIES)
def test_the_model_alone_contradicts_a_lie(name: str, tmp_path: Path) -> None:
    """The check against the model finds it where nobody has counted the plan file again."""
    base, lie, reason = LIES[name]
    assert re.search(reason, said := disagreement(tell(base, lie, tmp_path))), said


@pytest.mark.parametrize("base", BASES)
def test_what_nobody_changed_is_believed(base: str, tmp_path: Path) -> None:
    written = tell(base, nothing, tmp_path)
    assert disagreement(written) == refusal(written) == ""
