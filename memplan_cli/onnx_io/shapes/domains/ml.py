"""Shape rules of ``ai.onnx.ml``: trees, linear models and encoders, as ONNX Runtime computes them.

A vector is one row. n is the number of rows. Scores are float32.
"""

from __future__ import annotations

from functools import partial
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


def _label_encoder(node: RuleNode) -> Sequence[OutputType]:
    """LabelEncoder: shape of x, element type of the values in the node's attributes."""
    tensor = node.attribute("values_tensor")
    elem_type = tensor.t.data_type if tensor is not None else 0
    for name, value_type in _VALUE_ATTRIBUTES.items():
        elem_type = elem_type or (value_type if node.attribute(name) is not None else 0)
    if not elem_type and node.attribute("classes_strings") is not None:  # opset 1
        elem_type = INT64 if node.elem_type(0) == STRING else STRING
    return [OutputType(elem_type, node.input_shape(0))]


_VALUE_ATTRIBUTES = {"values_strings": STRING, "values_int64s": INT64, "values_floats": FLOAT}


def _category_mapper(node: RuleNode) -> Sequence[OutputType]:
    """CategoryMapper: shape of x; strings become int64 and int64 strings."""
    to = {STRING: INT64, INT64: STRING}
    return [OutputType(to.get(node.elem_type(0), 0), node.input_shape(0))]


def _one_hot_encoder(node: RuleNode) -> Sequence[OutputType]:
    """OneHotEncoder: (..) -> (.., number of categories)."""
    shape, count = node.input_shape(0), node.attribute_length("cats_int64s", "cats_strings")
    return [OutputType(FLOAT, None if shape is None or not count else (*shape, count))]


def _feature_vectorizer(node: RuleNode) -> Sequence[OutputType]:
    """FeatureVectorizer: (n, c1), (n, c2), .. -> (n, c1 + c2 + ..)."""
    sizes = node.ints_attribute("inputdimensions")
    return [OutputType(FLOAT, (_row_count(node), sum(sizes)) if sizes else None)]


def _dict_vectorizer(node: RuleNode) -> Sequence[OutputType]:
    """DictVectorizer: a map -> (1, size of the vocabulary), element type of the map's values."""
    count = node.attribute_length("string_vocabulary", "int64_vocabulary")
    input_type = node.values.types.get(node.proto.input[0])
    elem_type = (
        0 if input_type is None else input_type.map_type.value_type.tensor_type.elem_type
    )
    return [OutputType(elem_type, (1, count) if count else None)]


def _label_type(node: RuleNode, name: str) -> int:
    """Return the element type of labels: STRING if the node has some in attribute ``name``, else INT64."""
    texts = node.attribute(name)
    return STRING if texts is not None and texts.strings else INT64


def _tree_ensemble_classifier(node: RuleNode) -> Sequence[OutputType]:
    """TreeEnsembleClassifier: labels (n), scores (n, number of labels)."""
    count = node.attribute_length("classlabels_strings") or node.attribute_length(
        "classlabels_int64s"
    )
    rows = _row_count(node)
    return [
        OutputType(_label_type(node, "classlabels_strings"), (rows,)),
        OutputType(FLOAT, (rows, count) if count else None),
    ]


def _linear_classifier(node: RuleNode) -> Sequence[OutputType]:
    """LinearClassifier: labels (n), scores (n, number of intercepts).

    A single intercept for two labels gives two scores.
    """
    count = node.attribute_length("intercepts")
    labels = node.attribute_length("classlabels_strings") or node.attribute_length(
        "classlabels_ints"
    )
    scores = _BINARY if count == 1 and labels == _BINARY else count
    rows = _row_count(node)
    return [
        OutputType(_label_type(node, "classlabels_strings"), (rows,)),
        OutputType(FLOAT, (rows, scores) if scores else None),
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


def _regressor(node: RuleNode, *, name: str) -> Sequence[OutputType]:
    """A regressor: (n, attribute ``name``), which is the number of targets.

    TreeEnsemble keeps the element type of its input; others give float32.
    """
    elem_type = node.elem_type(0) if node.proto.op_type == "TreeEnsemble" else FLOAT
    return [OutputType(elem_type, (_row_count(node), node.int_attribute(name, 1)))]


def _svm_regressor(node: RuleNode) -> Sequence[OutputType]:
    """SVMRegressor: (n, 1)."""
    return [OutputType(FLOAT, (_row_count(node), 1))]


RULES: Mapping[str, Rule] = {
    # Each element by itself.
    "Binarizer": like(0),
    "CategoryMapper": _category_mapper,
    "Imputer": like(0),
    "LabelEncoder": _label_encoder,
    "Normalizer": typed(FLOAT),
    "Scaler": typed(FLOAT),
    # Columns.
    "ArrayFeatureExtractor": _array_feature_extractor,
    "DictVectorizer": _dict_vectorizer,
    "FeatureVectorizer": _feature_vectorizer,
    "OneHotEncoder": _one_hot_encoder,
    # Models.
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": partial(_regressor, name="targets"),
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "TreeEnsemble": partial(_regressor, name="n_targets"),
    "TreeEnsembleClassifier": _tree_ensemble_classifier,
    "TreeEnsembleRegressor": partial(_regressor, name="n_targets"),
}
"""The rules of ``ai.onnx.ml``, by operator.

ZipMap and CastMap have none: the output of the one and the input of the other has no dims.
"""
