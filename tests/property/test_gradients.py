"""Every gradient rule against central differences, on random shapes."""

from __future__ import annotations

from unit.gradients import gradient_cases
import pytest
from unit.gradients.gradient_checks import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memplan_cli.onnx_io.gradients import RULES
from memplan_cli.onnx_io.gradients.expand import EXPANSIONS


@pytest.mark.parametrize("name", gradient_cases.CASES)
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gradient_agrees_with_central_differences(name: str, data: st.DataObject) -> None:
    check(gradient_cases.CASES[name](data.draw))


def test_every_rule_and_expansion_has_a_case() -> None:
    covered = {name.split("-")[0] for name in gradient_cases.CASES}
    assert {*RULES, *EXPANSIONS} - covered == set()
