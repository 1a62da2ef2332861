"""One case or more for every operator that has a rule, by ``Operator`` or ``Operator-form``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unit.gradients.cases_elementwise import ELEMENTWISE
from unit.gradients.cases_layers import LAYERS
from unit.gradients.cases_recurrent import RECURRENT
from unit.gradients.cases_shape import SHAPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unit.gradients.gradient_checks import Case
    from unit.gradients.gradient_values import Draw

CASES: Mapping[str, Callable[[Draw], Case]] = {**ELEMENTWISE, **LAYERS, **RECURRENT, **SHAPE}
