"""Every gradient rule against central differences, on random shapes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from memplan_cli.onnx_io.gradients import RULES
from memplan_cli.onnx_io.gradients.expand import EXPANSIONS
from unit.gradients import gradient_cases
from unit.gradients.gradient_checks import check, check_in_runtime

_QUICK = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", gradient_cases.CASES)
@_QUICK
@given(data=st.data())
def test_gradient_agrees_with_central_differences(name: str, data: st.DataObject) -> None:
    check(gradient_cases.CASES[name](data.draw))


@pytest.mark.parametrize("name", [name for name in gradient_cases.CASES if name != "Dropout"])
@settings(_QUICK, max_examples=1)
@given(data=st.data())
def test_gradient_runs_in_onnx_runtime(name: str, data: st.DataObject) -> None:
    # Dropout is left out: each runtime draws other masks.
    check_in_runtime(gradient_cases.CASES[name](data.draw))


@pytest.mark.slow
@pytest.mark.parametrize("name", gradient_cases.CASES)
@settings(_QUICK, max_examples=60)
@given(data=st.data())
def test_gradient_agrees_on_many_more_shapes(name: str, data: st.DataObject) -> None:
    check(gradient_cases.CASES[name](data.draw))


def test_every_rule_and_expansion_has_a_case() -> None:
    covered = {name.split("-")[0] for name in gradient_cases.CASES}
    assert {*RULES, *EXPANSIONS} - covered == set()
