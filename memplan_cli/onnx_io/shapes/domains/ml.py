"""Shape rules of ``ai.onnx.ml``, for operators whose outputs ONNX infers in part or not at all.

A vector is one row. n is the number of rows. Scores are float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.rule_node import (
    STRING,
    OutputType,
    Rule,
    RuleNode,
    like,
    typed,
)
from memplan_cli.onnx_io.shapes.symbolic.values import FLOAT, INT64, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim

_MATRIX = 2
"""Rank of a matrix."""

_BINARY = 2
"""Labels of a classifier that tells two classes apart."""


def _row_count(node: RuleNode) -> Dim:
    """Return n: the first dim of a matrix, 1 for a vector, None if the rank of the input is unknown."""
    shape = node.shape_of_rank(0, 1, _MATRIX)
    if shape is None:
        return None
    return shape[0] if len(shape) == _MATRIX else 1


def _array_feature_extractor(node: RuleNode) -> Sequence[OutputType]:
    """ArrayFeatureExtractor: x (.., c), indices (..) -> (.., number of indices); a vector x is one row."""
    shape, indices = node.input_shape(0), node.input_shape(1)
    if not shape or indices is None:
        return []
    rows = shape[:-1] or (1,)
    return [OutputType(node.elem_type(0), (*rows, product(indices)))]


def _label_type(node: RuleNode, name: str) -> int:
    """Return the element type of labels: STRING if the node has some in attribute ``name``, else INT64."""
    texts = node.attribute(name)
    return STRING if texts is not None and texts.strings else INT64


def _tree_ensemble_classifier(node: RuleNode) -> Sequence[OutputType]:
    """TreeEnsembleClassifier (ONNX infers it from opset 3 on): labels (n), scores (n, number of labels)."""
    count = node.attribute_length("classlabels_strings") or node.attribute_length(
        "classlabels_int64s"
    )
    rows = _row_count(node)
    return [
        OutputType(_label_type(node, "classlabels_strings"), (rows,)),
        OutputType(FLOAT, (rows, count) if count else None),
    ]


def _svm_classifier(node: RuleNode) -> Sequence[OutputType]:
    """SVMClassifier: labels (n), scores (n, k).

    k is the number of labels, or with support vectors and without probabilities the number of pairs of
    labels (2 for two labels).
    """
    labels = node.attribute_length("classlabels_strings") or node.attribute_length(
        "classlabels_ints"
    )
    has_support_vectors = bool(node.attribute_length("vectors_per_class"))
    pairs = labels * (labels - 1) // 2
    if not labels:
        count = None
    elif not has_support_vectors or node.attribute_length("prob_a"):
        count = labels
    else:
        count = _BINARY if labels == _BINARY else pairs
    rows = _row_count(node)
    shape = None if count is None else (rows, count)
    return [
        OutputType(_label_type(node, "classlabels_strings"), (rows,)),
        OutputType(FLOAT, shape),
    ]


def _regressor(node: RuleNode) -> Sequence[OutputType]:
    """LinearRegressor, SVMRegressor: (n, number of targets)."""
    return [OutputType(FLOAT, (_row_count(node), node.int_attribute("targets", 1)))]


RULES: Mapping[str, Rule] = {
    "ArrayFeatureExtractor": _array_feature_extractor,
    "Imputer": like(0),
    "LinearRegressor": _regressor,
    "Normalizer": typed(FLOAT),
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _regressor,
    "Scaler": typed(FLOAT),
    "TreeEnsembleClassifier": _tree_ensemble_classifier,
}
"""The rules of ``ai.onnx.ml``, by operator."""
