"""Families of operators, by what they do with the elements of small values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memplan_cli.shapes.symbolic.elements import (
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

MOVES: Mapping[str, tuple[int, ...] | None] = {
    # Another shape.
    "Expand": (0,),
    "Flatten": (0,),
    "Identity": (0,),
    "Reshape": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    # A part.
    "Compress": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Slice": (0,),
    "Split": (0,),
    # Several.
    "Concat": None,
    "Pad": (0, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
"""Operators that move elements, and the inputs that are moved; None of all inputs."""

UNPREDICTABLE = frozenset(
    {
        "Bernoulli", "Dropout", "If", "Loop", "Multinomial", "RandomNormal",
        "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Scan", "SequenceMap",
    }
)  # fmt: skip
"""Operators whose results are drawn, or come from a subgraph."""

BY_DATA = frozenset({"Compress", "NonZero", "Unique"})
"""Operators whose results are no larger than their inputs, whatever the values."""

TRUTH = frozenset(
    {"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"}
)
"""Operators on elements that give truth values."""

SHAPE_ARITHMETIC = frozenset(
    {
        *MOVES, *BINARY, *REDUCED, *UNARY,
        "Cast", "Constant", "ConstantOfShape", "Div", "Mod", "Range", "Shape", "Size", "Sqrt",
        "Where",
    }
)  # fmt: skip
"""Operators that shapes are computed with."""
