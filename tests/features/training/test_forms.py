"""Every attribute, default, optional input and kind of broadcasting of operators with rules.

The expected gradients are central differences of ONNX Runtime's results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from features.training.forms_arithmetic import ARITHMETIC
from features.training.forms_expanded import EXPANDED
from features.training.forms_layers import LAYERS
from features.training.forms_moves import MOVES
from features.training.forms_refused import REFUSED
from features.training.gradient_checks import parsed
from features.training.runtime_truth import check_by_runtime
from memplan_cli.errors import ModelError
from memplan_cli.features.training.train_step import Recipe, make_train_step

if TYPE_CHECKING:
    from features.training.forms import Forms

FORMS: Forms = {**ARITHMETIC, **LAYERS, **MOVES, **EXPANDED}


UNTRUE_IN_1_28 = frozenset(
    {
        "AveragePool-ceil-1-18",
        "AveragePool-ceil-padded-1-18",
        "Slice-nothing-at-run-time",
        "Slice-nothing-down-at-run-time",
        "Slice-nothing-strided-at-run-time",
    }
)
"""Cases that ONNX Runtime 1.28.0 computes wrongly, and 1.31.1 does not.

It divides by the part of a window beyond the padding too, and a ReduceSum that is to reduce
no axis reduces what is empty to one number.
"""


@pytest.mark.parametrize("name", FORMS)
def test_gradient_agrees_with_what_the_runtime_computes(name: str) -> None:
    if name in UNTRUE_IN_1_28 and ort.__version__.startswith("1.28."):
        pytest.skip(f"ONNX Runtime {ort.__version__} computes it wrongly")
    check_by_runtime(FORMS[name])


@pytest.mark.parametrize("name", REFUSED)
def test_form_without_a_rule_is_refused_by_the_operators_name(name: str) -> None:
    case = REFUSED[name]
    model = parsed(
        case, ["loss"], f"{case.body} loss = ReduceSum<keepdims=0>(y)", case.constants
    )
    model.opset_import.add(domain="other", version=1)
    floats = tuple(n for n, v in case.inputs.items() if v.dtype.kind == "f")
    with pytest.raises(ModelError, match=name.split("-", maxsplit=1)[0]):
        make_train_step(model, Recipe("loss", None, floats))


_LARGE = {
    "ReduceMean": ("y = ReduceMean<keepdims=0>(z)", (70_000,)),
    "GlobalAveragePool": ("y = GlobalAveragePool(z)", (1, 1, 70_000)),
}


@pytest.mark.parametrize("kind", _LARGE)
@pytest.mark.parametrize("shape", ["constant", "given"])
def test_mean_of_more_than_float16_can_count_has_a_gradient(kind: str, shape: str) -> None:
    body, dims = _LARGE[kind]
    axes = f"int64[{len(dims)}] n"
    constant = f"<{axes} = {{{', '.join(map(str, dims))}}}>"
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]>'
        f" g (float16[70000] x{f', {axes}' if shape == 'given' else ''}) => (float16[] loss)"
        f" {constant if shape == 'constant' else ''}"
        f" {{ z = Reshape(x, n) {body} loss = ReduceSum<keepdims=0>(y) }}"
    )
    step = make_train_step(model, Recipe("loss", None, ("x",)))
    session = ort.InferenceSession(
        step.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = {"in.x": np.zeros(70_000, np.float16), "n": np.array(dims)}
    given = {value.name: feeds[value.name] for value in session.get_inputs()}
    assert session.run(None, given)[1] == pytest.approx(1 / 70_000, rel=0.02)
