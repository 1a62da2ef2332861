"""Every gradient rule against central differences, on random shapes."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from features.training import gradient_cases
from features.training.gradient_checks import (
    REFUSALS,
    Case,
    check,
    check_evaluator,
    check_in_runtime,
    opened,
)
from features.training.reference_ops import OPERATORS
from memplan_cli.errors import ModelError
from memplan_cli.features.training.expansion.expand import EXPANSIONS
from memplan_cli.features.training.rules import RULES
from memplan_cli.features.training.tape import UnknownShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEED_SIZES = frozenset(
    {
        "Attention",
        "Attention-by-head",
        "AveragePool",
        "AveragePool-ceil",
        "CenterCropPad",
        "Conv",
        "Conv-point",
        "ConvTranspose",
        "DepthToSpace",
        "GRU",
        "GatherND",
        "LSTM",
        "RNN",
        "RotaryEmbedding",
        "Resize",
        "Tile",
    }
)
"""Rules that reject unknown sizes of kernels, heads, channels or unrolled axes."""

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


DEFINED = frozenset(operator.__name__ for operator in OPERATORS)
"""Operators that these tests define for the reference evaluator."""


@pytest.mark.parametrize(
    "name", [name for name in gradient_cases.CASES if name.split("-")[0] in DEFINED]
)
@settings(_QUICK, max_examples=8)
@given(data=st.data())
def test_evaluator_agrees_with_onnx_runtime_before_any_gradient(
    name: str, data: st.DataObject
) -> None:
    try:
        check_evaluator(gradient_cases.CASES[name](data.draw))
    except REFUSALS:
        reject()


@pytest.mark.parametrize("name", gradient_cases.CASES)
@settings(_QUICK, max_examples=2)
@given(data=st.data())
def test_gradient_with_unknown_sizes_is_right_or_rejected(
    name: str, data: st.DataObject
) -> None:
    case = opened(gradient_cases.CASES[name](data.draw))
    if name in NEED_SIZES:
        with contextlib.suppress(ModelError):
            check(case)
    else:
        check(case)


@pytest.mark.parametrize("name", ["Conv", "Conv-point", "ConvTranspose"])
@settings(_QUICK, max_examples=12)
@given(data=st.data())
def test_convolutions_without_strides_have_gradients_for_images_of_unknown_size(
    name: str, data: st.DataObject
) -> None:
    case = opened(gradient_cases.CASES[name](data.draw), ["x"])
    strides = re.search(r"strides=\[(.*?)\]", case.body)
    if strides and set(strides[1].split(", ")) != {"1"}:
        with pytest.raises(UnknownShapeError):
            check(case)
    else:
        check(case)


@pytest.mark.parametrize(
    "mode",
    [
        'mode="linear"',
        'mode="nearest", nearest_mode="floor"',
        'mode="nearest", nearest_mode="ceil"',
    ],
)
@pytest.mark.parametrize(
    "places",
    [
        "half_pixel",
        "align_corners",
        "asymmetric",
        "pytorch_half_pixel",
    ],
)
@pytest.mark.parametrize(
    ("reads", "asked"),
    [
        ("x, , n", np.array([1, 1, 0.5, 1.5], np.float32)),
        ("x, , , n", np.array([1, 2, 1, 4])),
    ],
    ids=["scales", "sizes"],
)
def test_resize_uses_the_rounded_size_of_its_output(
    mode: str, places: str, reads: str, asked: NDArray[Any]
) -> None:
    # 3 * 0.5 = 1.5, of which one is left; 3 * 1.5 = 4.5, of which four.
    x = np.random.default_rng(23).standard_normal((1, 2, 3, 3))
    how = f'{mode}, coordinate_transformation_mode="{places}"'
    case = Case(f"y = Resize<{how}>({reads})", {"x": x}, constants={"n": asked})
    check_evaluator(case)
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", gradient_cases.CASES)
@settings(_QUICK, max_examples=60)
@given(data=st.data())
def test_gradient_agrees_on_many_more_shapes(name: str, data: st.DataObject) -> None:
    check(gradient_cases.CASES[name](data.draw))


def test_every_rule_and_expansion_has_a_case() -> None:
    covered = {name.split("-")[0] for name in gradient_cases.CASES}
    assert {*RULES, *EXPANSIONS} - covered == set()
