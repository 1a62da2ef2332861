"""One case or more for every operator that has a rule, by ``Operator`` or ``Operator-form``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from features.training.cases_elementwise import ELEMENTWISE
from features.training.cases_layers import LAYERS
from features.training.cases_recurrent import RECURRENT
from features.training.cases_shape import SHAPE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from features.training.gradient_checks import Case
    from features.training.gradient_values import Draw

CASES: Mapping[str, Callable[[Draw], Case]] = {**ELEMENTWISE, **LAYERS, **RECURRENT, **SHAPE}
