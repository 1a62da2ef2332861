"""Tables of operators and lengths against lists written down on their own, and the standard."""

from __future__ import annotations

from itertools import pairwise

import pytest
from onnx import defs

from builders import parse
from memplan_cli.analysis.cost import FORMULAS, op_cost
from memplan_cli.analysis.demands import LADDER, STRIDES, demands
from memplan_cli.core.program import REPEATING, Op, Origin, Var, VarId
from memplan_cli.shapes.reading import read_program

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean")
COMPARING = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
LOGICAL = ("And", "Or", "Xor")
PER_ELEMENT = {
    1: """ArgMax ArgMin CumSum GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
        Add Neg Relu""",
    5: "Hardmax LogSoftmax Softmax",
    8: """GroupNormalization InstanceNormalization LayerNormalization LRN LpNormalization
        MeanVarianceNormalization RMSNormalization SoftmaxCrossEntropyLoss Resize Upsample""",
    2: "BatchNormalization",
    10: """Acos Acosh Asin Asinh Atan Atanh Celu Cos Cosh Elu Erf Exp Gelu HardSwish Log Mish
        Selu Sigmoid Sin Sinh Softplus Swish Tan Tanh""",
    4: "Div Pow Reciprocal Sqrt",
    0: """Cast Compress Concat ConstantOfShape DepthToSpace Expand Gather GatherElements
        GatherND OneHot Pad Range ScatterElements ScatterND Slice SpaceToDepth Split Tile
        Transpose Trilu Where Identity Reshape Flatten Squeeze Unsqueeze Constant Shape Size""",
}
"""FLOPs for each element, of operators whose result here has as many as their input."""
NUMBERS = [(kind, times) for times, kinds in PER_ELEMENT.items() for kind in kinds.split()]


def flops(kind: str, domain: str = "", inputs: int = 1) -> int:
    """Return the FLOPs of an op whose tensors all have the shape [3, 3]."""
    names = [VarId(f"t{at}") for at in range(inputs + 1)]
    table = {name: Var(name, "float32", (3, 3), Origin.OP) for name in names}
    return op_cost(
        Op("", kind, tuple(names[:-1]), tuple(names[-1:]), domain=domain), table
    ).flops


@pytest.mark.parametrize(("kind", "times"), NUMBERS, ids=[kind for kind, _ in NUMBERS])
def test_an_operator_takes_so_many_flops_for_each_element(kind: str, times: int) -> None:
    assert flops(kind) == times * 9


@pytest.mark.parametrize("kind", ["BiasGelu", "FastGelu", "QuickGelu"])
def test_the_runtimes_own_activations_cost_what_a_gelu_does(kind: str) -> None:
    assert flops(kind, "com.microsoft") == flops("Gelu") == 90


@pytest.mark.parametrize("kind", ["MatMul", "MatMulInteger"])
def test_every_product_costs_two_for_each_pair(kind: str) -> None:
    assert flops(kind, inputs=2) == flops("FusedMatMul", "com.microsoft", 2) == 2 * 27


@pytest.mark.parametrize("kind", ["NonMaxSuppression", "TopK", "Unique"])
def test_what_sorts_costs_the_logarithm_of_what_it_sorts(kind: str) -> None:
    assert flops(kind) == 28


def test_every_operator_with_a_formula_is_one_of_the_standard_or_the_runtimes() -> None:
    standard = {schema.name for schema in defs.get_all_schemas_with_history()}
    assert set(FORMULAS) - standard == {"BiasGelu", "FastGelu", "QuickGelu"} | {
        "FusedConv",
        "FusedMatMul",
    }


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, "float") for kind in (*ARITHMETIC, *COMPARING)]
    + [(kind, "bool") for kind in LOGICAL],
)
def test_operands_of_an_elementwise_operator_broadcast(kind: str, dtype: str) -> None:
    text = f"g ({dtype}[n] x, {dtype}[m] y) => (z) {{ z = {kind}(x, y) }}"
    found = {(each.kind, each.sides) for each in demands(read_program(parse(text)).program)}
    assert ("broadcast", (("n",), ("m",))) in found


def test_a_remainder_and_a_choice_broadcast_as_well() -> None:
    text = """g (bool[k] c, int64[n] x, int64[m] y) => (r, w) {
        r = Mod(x, y) w = Where(c, x, y) }"""
    found = {(each.kind, each.sides) for each in demands(read_program(parse(text)).program)}
    assert ("broadcast", (("n",), ("m",))) in found
    assert ("broadcast", (("k",), ("n",), ("m",))) in found


def test_lengths_rise_and_hold_what_models_are_made_for() -> None:
    assert all(low < high for low, high in pairwise(LADDER))
    assert all(1 << power in LADDER for power in range(15))
    assert all(side in LADDER for side in range(64, 641, 64))
    # Images of classifiers, and their patches with a class token; sounds of Whisper.
    assert {224, 197, 384, 577, 257, 1500, 3000, 16000, 48000} <= set(LADDER)
    assert all(224 % stride == 0 for stride in STRIDES)


def test_operators_with_a_body_may_repeat_it() -> None:
    graph = defs.OpSchema.AttrType.GRAPH
    bodies = {
        schema.name
        for schema in defs.get_all_schemas_with_history()
        if not schema.domain
        for name, attribute in schema.attributes.items()
        if attribute.type == graph and name == "body"
    }
    assert bodies == REPEATING


@pytest.mark.parametrize(
    ("kind", "inputs", "times"),
    [("Gemm", 2, 54), ("Gemm", 3, 63), ("Conv", 2, 54), ("ConvInteger", 2, 54)],
)
def test_every_layer_costs_what_its_weights_meet(kind: str, inputs: int, times: int) -> None:
    assert flops(kind, inputs=inputs) == times


PICKING = ("Compress", "Gather", "GatherElements", "GatherND", "Slice", "Split")


@pytest.mark.parametrize("kind", [*PICKING, "Neg"])
def test_what_picks_reads_no_more_than_it_gives(kind: str) -> None:
    names = VarId("x"), VarId("y")
    table = {
        name: Var(name, "float32", (length,), Origin.OP)
        for name, length in zip(names, (100, 5), strict=True)
    }
    moved = op_cost(Op("", kind, names[:1], names[1:]), table).moved
    assert moved == (40 if kind in PICKING else 420)
