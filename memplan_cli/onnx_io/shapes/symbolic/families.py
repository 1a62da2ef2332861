"""Families of operators, by what they do with the elements of small values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memplan_cli.core.operators import SHAPE_QUERIES, Family, names_of
from memplan_cli.onnx_io.shapes.symbolic.elements import (
    Element,
    add,
    both,
    ceiling,
    differ,
    either,
    equal,
    floor,
    larger,
    less,
    magnitude,
    multiply,
    negative,
    opposite,
    power,
    smaller,
    subtract,
)

Unary = Callable[[Element], Element]
Binary = Callable[[Element, Element], Element]

UNARY: Mapping[str, Unary] = {
    "Abs": magnitude,
    "Ceil": ceiling,
    "Floor": floor,
    "Neg": negative,
    "Not": opposite,
}
"""Operators on single elements."""

BINARY: Mapping[str, Binary] = {
    # Arithmetic.
    "Add": add,
    "Sub": subtract,
    "Mul": multiply,
    "Pow": power,
    # The smaller and the larger; any number of inputs.
    "Min": smaller,
    "Max": larger,
    # Comparison.
    "Equal": equal,
    "Less": less,
    "Greater": lambda a, b: less(b, a),
    "LessOrEqual": lambda a, b: opposite(less(b, a)),
    "GreaterOrEqual": lambda a, b: opposite(less(a, b)),
    # Logic.
    "And": both,
    "Or": either,
    "Xor": differ,
}
"""Operators on pairs of elements, whatever their type; Div and Mod depend on it."""

REDUCED: Mapping[str, Binary] = {
    "ReduceProd": multiply,
    "ReduceSum": add,
    "ReduceMax": larger,
    "ReduceMin": smaller,
}
"""Operators that combine the elements of an axis."""

MOVES = frozenset(names_of(lambda each: each.moves and each.family is not Family.SEQUENCE))
"""Operators whose results consist of elements of their inputs."""

BY_DATA = frozenset(names_of(lambda each: each.size_from_data))
"""Operators whose results are no larger than their inputs, whatever the values."""

SHAPE_ARITHMETIC = frozenset(
    {
        *MOVES, *BINARY, *REDUCED, *UNARY, *SHAPE_QUERIES,
        "Cast", "Constant", "ConstantOfShape", "Div", "Mod", "Range", "Sqrt",
    }
)  # fmt: skip
"""Operators that shapes are computed with."""
