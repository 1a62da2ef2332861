"""Gradient rules: one function an operator, a table ``RULES`` in each family's module.

A rule is given a `Call` (a forward node, the gradients of its outputs, the tape) and returns
the gradient of each input, ``""`` where there is none. It works on ONNX protos: gradients
need attributes and tensors that the block IR leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.features.training.rules import (
    activation,
    batch,
    control,
    conv,
    elementwise,
    functions,
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
    "elementwise": {**elementwise.RULES, **functions.RULES},
    "activation": activation.RULES,
    "reduction": reduction.RULES,
    "matrix products": matmul.RULES,
    "convolution": conv.RULES,
    "pooling": pooling.RULES,
    "resizing": resize.RULES,
    "normalization": normalization.RULES,
    "batch normalization": batch.RULES,
    "loss": loss.RULES,
    "shape": shape.RULES,
    "indexing": indexing.RULES,
    "control flow": control.RULES,
}

RULES: Mapping[str, Rule] = {
    kind: rule for family in FAMILIES.values() for kind, rule in family.items()
}

UNFELT_INPUTS: Mapping[str, frozenset[int]] = {
    "CastLike": frozenset({1}),
    "OneHot": frozenset({0, 1}),
    "Range": frozenset({1}),
}
"""Inputs of operators with a rule that change nothing if they change a little: a type, a place, an end."""

RESULTS_WITH_RULES: Mapping[str, int] = {"If": 64, "SoftmaxCrossEntropyLoss": 2, "Split": 64}
"""How many results a rule goes back from, where that is more than the first; 64 stands for all."""
