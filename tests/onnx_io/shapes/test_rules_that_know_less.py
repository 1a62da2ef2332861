"""Rules of dims on real nodes: all dims where all is known, and nothing false where less is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx.parser
import pytest
from onnx import helper

from features.chunk_cases import Case
from features.chunk_draws import CASES, ONLY_IN_RUNTIME, Draw
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.contradictions import contradictions
from memplan_cli.onnx_io.shapes.interpret import RULES, _shape_from_rule
from memplan_cli.onnx_io.shapes.lattice import shape_in, tensor_type
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.shapes.symbolic.target_rules import divide_dims
from memplan_cli.onnx_io.shapes.symbolic.values import Values, value_of_tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import ModelProto, TypeProto

    from memplan_cli.core.program import Shape

KINDS = sorted(kind for kind in CASES if kind in RULES)
MORE = (
    Case("Slice", (np.zeros((5, 6)), np.array([1]), np.array([4])), constants=(1, 2)),
    Case("Slice", (np.zeros((5, 6)), np.array([1, 2]), np.array([4, -1]), np.array([1, 0]),
                   np.array([2, 1])), constants=(1, 2, 3, 4)),
    Case("Reshape", (np.zeros((4, 6)), np.array([0, 2, -1])), constants=(1,)),
    Case("Reshape", (np.zeros((4, 6)), np.array([-1, 12])), constants=(1,)),
    Case("Reshape", (np.zeros((0, 6)), np.array([3, 0])), {"allowzero": 1}, constants=(1,)),
    Case("DepthToSpace", (np.zeros((1, 8, 2, 3)),), {"blocksize": 2}),
    Case("SpaceToDepth", (np.zeros((1, 2, 4, 6)),), {"blocksize": 2}),
    Case("Resize", (np.zeros((1, 2, 4, 6), np.float32), None, None, np.array([1, 2, 8, 3])),
         {"mode": "nearest"}, constants=(3,)),
    Case("Resize", (np.zeros((1, 2, 4, 6), np.float32), None, np.array([1, 1, 2, 0.5], np.float32),
                    None), {"mode": "nearest"}, constants=(2,)),
    Case("Expand", (np.zeros((1, 6)), np.array([4, 1])), constants=(1,)),
    Case("Tile", (np.zeros((2, 6)), np.array([3, 2])), constants=(1,)),
    Case("Pad", (np.zeros((2, 6)), np.array([1, 0, 2, 3])), constants=(1,)),
    Case("ConstantOfShape", (np.array([0, 3]),), constants=(0,)),
    Case("Range", (np.array(1), np.array(9), np.array(3)), constants=(0, 1, 2)),
)  # fmt: skip
DRAWN = [CASES[kind](Draw(seed)) for kind in KINDS for seed in range(2)]
ALL = [case for case in (*MORE, *DRAWN) if case.type in RULES]
EACH = pytest.mark.parametrize("case", ALL, ids=lambda case: case.type)


def made(case: Case) -> Shape:
    """Return the dims of what a node really makes."""
    results = case.run_in_runtime() if case.type in ONLY_IN_RUNTIME else case.run()
    return tuple(results[0].shape)


def types_of(case: Case) -> dict[str, TypeProto]:
    return {
        f"x{at}": tensor_type(helper.np_dtype_to_tensor_dtype(each.dtype), tuple(each.shape))
        for at, each in enumerate(case.inputs)
        if each is not None
    }


def said(model: ModelProto, types: dict[str, TypeProto], opset: int) -> Shape | None:
    (node,) = model.graph.node
    return _shape_from_rule(
        Values.of_graph(model.graph, types, {"": opset}), node, RULES[node.op_type]
    )


def weaker(
    model: ModelProto, whole: dict[str, TypeProto]
) -> Iterator[tuple[ModelProto, dict[str, TypeProto]]]:
    """Yield a model of one node with less known of it, one thing at a time."""
    for name, kind in whole.items():
        shape, element = shape_in(kind) or (), kind.tensor_type.elem_type
        yield model, {**whole, name: tensor_type(element, None)}
        yield model, {n: k for n, k in whole.items() if n != name}
        for axis in range(len(shape)):
            less = (*shape[:axis], None, *shape[axis + 1 :])
            yield model, {**whole, name: tensor_type(element, less)}
    for place in range(len(model.graph.initializer)):
        fed = type(model).FromString(model.SerializeToString())
        del fed.graph.initializer[place]
        yield fed, whole


@EACH
def test_a_rule_says_all_dims_of_what_is_known(case: Case) -> None:
    assert said(case.model, types_of(case), case.opset) == made(case)


@EACH
def test_a_rule_that_knows_less_says_nothing_false(case: Case) -> None:
    truth = made(case)
    for model, types in weaker(case.model, types_of(case)):
        shape = said(model, types, case.opset)
        if shape is not None:
            assert len(shape) == len(truth)
            assert [
                (one, other)
                for one, other in zip(shape, truth, strict=True)
                if one is not None and not isinstance(one, str) and one != other
            ] == []


def test_a_node_that_makes_a_dim_below_none_says_nothing() -> None:
    case = Case("ConstantOfShape", (np.array([3, -2, 4]),), constants=(0,))
    assert said(case.model, types_of(case), case.opset) is None


@pytest.mark.parametrize(
    ("whole", "parts", "expected"),
    [
        (("a", "b"), ("a",), "b"),
        (("a*b", 6), ("a",), "6*b"),
        (("a*b", 6), ("a", 4), None),
        (("a", 6), (4,), None),
        (("a", 6), (3,), "2*a"),
        (("a", 6), ("b",), None),
        (("a", 6), (0,), None),
        (("a", None), ("a",), None),
        ((12,), (4,), 3),
        (tuple(f"a{k} + b{k}" for k in range(13)), (1,), None),
    ],
)
def test_a_product_of_dims_is_divided_where_a_product_is_left(
    whole: Shape, parts: Shape, expected: object
) -> None:
    assert divide_dims(whole, parts) == expected


@pytest.mark.parametrize("size", [0, 1, 4096, 4097])
def test_a_constant_is_a_value_up_to_so_many_elements(size: int) -> None:
    tensor = helper.make_tensor("w", 7, [size], [1] * size)
    assert (value_of_tensor(tensor) is not None) == (size <= 4096)


def test_a_dim_of_none_contradicts_a_number() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[0, 4] x) => (y) <float[3, 4] a> { a = Exp (x) y = nobody.Foo (a) }"""
    model = onnx.parser.parse_model(text)
    assert [str(each) for each in contradictions(model, read_program(model).program)] != []


def test_a_shape_of_many_dims_is_told_by_its_first() -> None:
    made, declared = ",".join(["2"] * 13), ",".join(["3"] * 13)
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{made}] x) => (y) <float[{declared}] a> {{ a = Exp (x) y = nobody.Foo (a) }}"""
    model = onnx.parser.parse_model(text)
    (told,) = contradictions(model, read_program(model, Bindings()).program)
    assert f"[{','.join(['2'] * 12)}, ..]" in str(told)
