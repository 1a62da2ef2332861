"""Gradient rules: one function per operator, one table ``RULES`` per family of operators.

A rule is a function of a `Call` (a forward node, the gradients of its outputs, the tape). It writes
gradient nodes to the tape and returns the gradient of each input, ``""`` for none. Its docstring is its
formula; in code, ``dx`` is the gradient of input X. Rules work on ONNX protos: they need attributes,
which `Program` does not have.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memplan_cli.features.training.rules import (
    activation,
    conv,
    elementwise,
    indexing,
    loss,
    matmul,
    normalization,
    pooling,
    reduction,
    resize,
    shape,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.training.tape import Rule

FAMILIES: Mapping[str, Mapping[str, Rule]] = {
    "elementwise": elementwise.RULES,
    "activation": activation.RULES,
    "reduction": reduction.RULES,
    "matrix products": matmul.RULES,
    "convolution": conv.RULES,
    "pooling": pooling.RULES,
    "resizing": resize.RULES,
    "normalization": normalization.RULES,
    "loss": loss.RULES,
    "shape": shape.RULES,
    "indexing": indexing.RULES,
}

RULES: Mapping[str, Rule] = {
    kind: rule for family in FAMILIES.values() for kind, rule in family.items()
}

DIFFERENTIABLE_OUTPUTS: Mapping[str, int] = {
    "SoftmaxCrossEntropyLoss": 2,
    "Split": sys.maxsize,
}
"""How many outputs a rule supports, the first ones; all other rules support one."""
