"""Every attribute, default, optional input and kind of broadcasting of operators with rules.

ONNX Runtime runs the model as it was given; its central differences are the truth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from unit.gradients.forms_arithmetic import ARITHMETIC
from unit.gradients.forms_layers import LAYERS
from unit.gradients.runtime_truth import check_by_runtime

if TYPE_CHECKING:
    from unit.gradients.forms import Forms

FORMS: Forms = {**ARITHMETIC, **LAYERS}


@pytest.mark.parametrize("name", FORMS)
def test_gradient_agrees_with_what_the_runtime_computes(name: str) -> None:
    check_by_runtime(FORMS[name])
