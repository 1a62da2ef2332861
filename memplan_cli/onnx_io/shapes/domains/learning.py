"""Operators of ai.onnx.ml: trees, linear models, encoders, as ONNX Runtime computes them.

A vector is taken for one row; text comes out as text, scores as single precision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.shapes.domains.made import STRING, Made, Node, Rule, like, typed
from memplan_cli.onnx_io.shapes.symbolic.values import DOUBLE, FLOAT, INT64, product

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Dim

_MATRIX = 2


def _rows(node: Node) -> Dim:
    """Return how many rows an input has: a vector is one."""
    shape = node.ranked(0, 1, _MATRIX)
    return None if shape is None else shape[0] if len(shape) == _MATRIX else 1


def _extracted(node: Node) -> Sequence[Made]:
    """ArrayFeatureExtractor: the columns that are asked for."""
    shape, wanted = node.shape(0), node.shape(1)
    if not shape or wanted is None:
        return []
    rows = shape[:-1] or (1,)
    return [Made(node.element(0), (*rows, product(wanted)))]


def _encoded(node: Node) -> Sequence[Made]:
    """LabelEncoder: what each element stands for."""
    tensor = node.attribute("values_tensor")
    element = tensor.t.data_type if tensor is not None else 0
    for name, kind in _LABELS.items():
        element = element or (kind if node.attribute(name) is not None else 0)
    if not element and node.attribute("classes_strings") is not None:  # opset 1
        element = INT64 if node.element(0) == STRING else STRING
    return [Made(element, node.shape(0))]


_LABELS = {"values_strings": STRING, "values_int64s": INT64, "values_floats": FLOAT}


def _categories(node: Node) -> Sequence[Made]:
    """CategoryMapper: text for numbers, or numbers for text."""
    to = {STRING: INT64, INT64: STRING}
    return [Made(to.get(node.element(0), 0), node.shape(0))]


def _one_hot(node: Node) -> Sequence[Made]:
    """OneHotEncoder: an axis more, one place for each category."""
    shape, count = node.shape(0), node.length("cats_int64s", "cats_strings")
    return [Made(FLOAT, None if shape is None or not count else (*shape, count))]


def _features(node: Node) -> Sequence[Made]:
    """FeatureVectorizer: the columns of all inputs."""
    sizes = node.numbers("inputdimensions")
    return [Made(FLOAT, (_rows(node), sum(sizes)) if sizes else None)]


def _vectorized(node: Node) -> Sequence[Made]:
    """DictVectorizer: one column for each key."""
    count = node.length("string_vocabulary", "int64_vocabulary")
    kind = node.values.types.get(node.proto.input[0])
    element = 0 if kind is None else kind.map_type.value_type.tensor_type.elem_type
    return [Made(element, (1, count) if count else None)]


def _labels(node: Node, *names: str) -> int:
    """Return the type of a classifier's labels."""
    texts = node.attribute(names[0])
    return STRING if texts is not None and texts.strings else INT64


def _tree_classes(node: Node) -> Sequence[Made]:
    """TreeEnsembleClassifier: a label for each row, and a score for each label."""
    count = node.length("classlabels_strings") or node.length("classlabels_int64s")
    rows = _rows(node)
    return [
        Made(_labels(node, "classlabels_strings"), (rows,)),
        Made(FLOAT, (rows, count) if count else None),
    ]


def _linear_classes(node: Node) -> Sequence[Made]:
    """LinearClassifier: a score for each intercept; one alone has its counterpart."""
    count = node.length("intercepts")
    labels = node.length("classlabels_strings") or node.length("classlabels_ints")
    two = 2
    scores = two if count == 1 and labels == two else count
    rows = _rows(node)
    return [
        Made(_labels(node, "classlabels_strings"), (rows,)),
        Made(FLOAT, (rows, scores) if scores else None),
    ]


def _vector_classes(node: Node) -> Sequence[Made]:
    """SVMClassifier: a score for each class; of support vectors, for each pair of them."""
    labels = node.length("classlabels_strings") or node.length("classlabels_ints")
    is_machine = bool(node.length("vectors_per_class"))
    pairs = labels * (labels - 1) // 2
    two = 2
    if not labels:
        count = None
    elif not is_machine or node.length("prob_a"):
        count = labels
    else:
        count = two if labels == two else pairs
    rows = _rows(node)
    shape = None if count is None else (rows, count)
    return [Made(_labels(node, "classlabels_strings"), (rows,)), Made(FLOAT, shape)]


def _targets(name: str) -> Rule:
    """Return the rule of a regressor with so many targets."""

    def rule(node: Node) -> Sequence[Made]:
        element = DOUBLE if node.proto.op_type == "TreeEnsemble" else FLOAT
        element = element if node.element(0) == DOUBLE else FLOAT
        if node.proto.op_type == "TreeEnsemble" and node.element(0) not in (FLOAT, DOUBLE):
            element = node.element(0)
        return [Made(element, (_rows(node), node.number(name, 1)))]

    return rule


def _one_target(node: Node) -> Sequence[Made]:
    return [Made(FLOAT, (_rows(node), 1))]


RULES: Mapping[str, Rule] = {
    # Each element by itself.
    "Binarizer": like(0),
    "CategoryMapper": _categories,
    "Imputer": like(0),
    "LabelEncoder": _encoded,
    "Normalizer": typed(FLOAT),
    "Scaler": typed(FLOAT),
    # Columns.
    "ArrayFeatureExtractor": _extracted,
    "DictVectorizer": _vectorized,
    "FeatureVectorizer": _features,
    "OneHotEncoder": _one_hot,
    # Models.
    "LinearClassifier": _linear_classes,
    "LinearRegressor": _targets("targets"),
    "SVMClassifier": _vector_classes,
    "SVMRegressor": _one_target,
    "TreeEnsemble": _targets("n_targets"),
    "TreeEnsembleClassifier": _tree_classes,
    "TreeEnsembleRegressor": _targets("n_targets"),
}
"""Of ai.onnx.ml; ZipMap and CastMap have no result, or no input, with dims."""
