"""A dump without optimization is in the order of execution: the runtime's own profile says so."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from function_graphs import DOMAIN, HEAD, drawn_functions
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.reading import read_program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.program import Block, Op, Program

FUNCTIONS = (
    "three (a, b) => (c, d) { t = Exp(a)  u = m.two(b)  v = m.two(t)  c = Add(u, v)  d = m.one(u) }",
    """two (a) => (c) { q = Sigmoid(a)  k = Constant<value_float = 2.0>()  r = m.one(q)
       s = Mul(r, k)  unread = Cos(s)  c = m.one(s) }""",
    "one (a) => (c) { c = Neg(a) }",
    "both (a) => (c, d) { p = Sin(a)  c = m.one(p)  d = HardSwish(a) }",
    "cast <to> (a) => (c) { t = Cast<to: int = @to>(a)  c = m.one(t) }",
    """choose (a, go) => (c) { t = Exp(a)
       b = If (go) < then_branch = t () => (p) { q = m.one(t)  r = Sin(q)  p = m.two(r) },
                     else_branch = e () => (s) { s = m.one(t) }>
       c = Abs(b) }""",
    "away (a) => (c) { p = Sin(a)  q = Cast<to = 11>(p)  r = Cast<to = 1>(q)  c = m.one(r) }",
    """unread (a) => (c) { d, e = m.three(a, a)  f = Tanh(d)  g = m.two(f)  c = Abs(a) }""",
    """loss <how> (a, l) => (c) { t = Exp(a)  d = Cast<to = 11>(t)
       v = SoftmaxCrossEntropyLoss<ignore_index = -1, reduction: string = @how>(d, l)  c = Cast<to = 1>(v) }""",
)

X = "float[4,6] x"
UNDONE = "Casts that undo those around float16"

GRAPHS = {
    "three deep, several times": f"""g ({X}) => (float[4,6] y, float[4,6] z)
        {{ a, b = m.three(x, x)  e = Tanh(b)  f, g = m.three(e, a)  i = m.one(f)
           y = m.two(i)  z = Abs(g) }}""",
    "one result unread": f"""g ({X}) => (float[4,6] y, float[4,6] z)
        {{ a, b = m.both(x)  e, unread = m.both(a)  y, w = m.both(e)  z = Add(b, w) }}""",
    "in a branch": f"""g ({X}, bool go) => (float[4,6] y)
        {{ a = m.two(x)
           b = If (go) <
             then_branch = t () => (float[4,6] p)
               {{ q, w = m.three(a, x)  r = Neg(q)  p = m.two(r) }},
             else_branch = e () => (float[4,6] s) {{ s = m.one(a) }}>
           y = m.two(b) }}""",
    "in a loop": f"""g ({X}) => (float[4,6] y) <int64 trips = {{1}}, bool go = {{1}}>
        {{ a = m.two(x)
           b = Loop (trips, go, a) <
             body = l (int64 i, bool c, float[4,6] now) => (bool k, float[4,6] then)
               {{ k = Identity(c)  q, w = m.three(now, a)  then = Add(q, w) }}>
           y = m.two(b) }}""",
    "a branch in a function": f"""g ({X}, bool go) => (float[4,6] y)
        {{ a = m.choose(x, go)  b = m.choose(a, go)  y = m.two(b) }}""",
    "a call that nobody reads": f"""g ({X}) => (float[4,6] y)
        {{ a = m.unread(x)  b = m.two(a)  y = m.unread(b) }}""",
    "Casts that the runtime takes away": f"""g ({X}) => (float[4,6] y)
        {{ a = m.away(x)  b = m.away(a)  y = m.two(b) }}""",
    UNDONE: """g (float16[4,6] x) => (float16[4,6] y)
        { a = Sin(x)  c = Neg(a)  d = Cast<to = 10>(c)  e = Cos(a)
          f = Add(d, e)  y = Mish(f) }""",
    "with attributes": f"""g ({X}) => (double[4,6] y, float[4,6] z)
        {{ a = m.cast<to = 11>(x)  b = m.cast<to = 1>(x)  e = m.one(b)  y = m.one(a)
           z = Abs(e) }}""",
    "ONNX's functions in the model's": f"""g ({X}, int64[4] l) => (y, z)
        {{ y = m.loss<how = "mean">(x, l)  a = Sin(x)  z = m.loss<how = "none">(a, l) }}""",
}


def model(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + graph + "".join(DOMAIN + f for f in FUNCTIONS))


def losses(operands: int, reduction: str, outputs: int, dtype: int) -> onnx.ModelProto:
    """Three losses of different sizes, each among nodes of the file."""
    nodes, inputs, results = [], [], []
    for t in range(3):
        read = [f"r{t}", f"l{t}", "weights"][:operands]
        made = [f"loss{t}", f"logs{t}"][:outputs]
        nodes += [
            helper.make_node("Relu", [f"x{t}"], [f"r{t}"]),
            helper.make_node("SoftmaxCrossEntropyLoss", read, made, reduction=reduction),
            helper.make_node("Exp", [made[-1]], [f"e{t}"]),
        ]
        inputs += [
            helper.make_tensor_value_info(f"x{t}", dtype, [4 + t, 10]),
            helper.make_tensor_value_info(f"l{t}", TensorProto.INT64, [4 + t]),
        ]
        results += [
            helper.make_tensor_value_info(f"{name}{t}", dtype, None) for name in ("loss", "e")
        ]
    if operands > 2:
        inputs.append(helper.make_tensor_value_info("weights", dtype, [10]))
    graph = helper.make_graph(nodes, "g", inputs, results)
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=10)


def overloads() -> onnx.ModelProto:
    def overload(name: str, kind: str) -> onnx.FunctionProto:
        nodes = [helper.make_node(kind, ["a"], ["t"]), helper.make_node("Abs", ["t"], ["c"])]
        opset = [helper.make_opsetid("", 21)]
        return helper.make_function("m", "f", ["a"], ["c"], nodes, opset, overload=name)

    nodes = [
        helper.make_node("f", ["x"], ["a"], domain="m", overload="2"),
        helper.make_node("f", ["a"], ["b"], domain="m", overload="1"),
        helper.make_node("Tanh", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in "xy")
    return helper.make_model(
        helper.make_graph(nodes, "g", [x], [y]),
        functions=[overload("1", "Exp"), overload("2", "Sin")],
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("m", 1)],
        ir_version=10,
    )


def feeds_of(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {
        value.name: np.ones(
            [dim.dim_value for dim in value.type.tensor_type.shape.dim],
            helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in graph.input
    }


def dumped_and_run(folder: Path, proto: onnx.ModelProto) -> tuple[Program, list[str]]:
    """Return the dump that a session without optimization wrote, and the type of each kernel that ran."""
    import onnxruntime as ort

    path, dump = folder / "model.onnx", folder / "dump.onnx"
    onnx.save(proto, str(path))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.optimized_model_filepath = str(dump)
    # Without a file for weights, ONNX Runtime writes an unchanged graph in the order of the file.
    weights = "session.optimized_model_external_initializers_file_name"
    options.add_session_config_entry(weights, "dump.data")
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    session.run(None, feeds_of(proto.graph))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found = [e for e in events if e["name"].endswith("_kernel_time")]
    found.sort(key=lambda event: (event["ts"], -event["dur"]))
    program = read_program(load_model(dump)).program
    return program, [event["args"]["op_name"] for event in found]


def ran(block: Block) -> Iterator[Op]:
    """Yield ops as they run: of an If the first branch, of a Loop one turn."""
    for op in block.ops:
        yield op
        for body in op.bodies:
            if not body.path.endswith("else_branch"):
                yield from ran(body)


def assert_run_as_dumped(folder: Path, proto: onnx.ModelProto) -> None:
    program, kernels = dumped_and_run(folder, proto)
    assert [op.type for op in ran(program.body)] == kernels


@pytest.mark.parametrize("name", GRAPHS)
def test_the_models_own_functions(tmp_path: Path, name: str) -> None:
    import onnxruntime as ort

    if name == UNDONE and ort.__version__.startswith("1.28."):
        pytest.skip(f"ONNX Runtime {ort.__version__} takes too many of its Casts away")
    assert_run_as_dumped(tmp_path, model(GRAPHS[name]))


def test_a_call_is_of_its_overload(tmp_path: Path) -> None:
    assert_run_as_dumped(tmp_path, overloads())


@pytest.mark.parametrize(
    ("operands", "reduction", "outputs"),
    [*itertools.product([2, 3], ["mean", "none", "sum"], [1, 2])],
)
def test_functions_that_onnx_writes_for_each_call(
    tmp_path: Path, operands: int, reduction: str, outputs: int
) -> None:
    for dtype in (TensorProto.FLOAT, TensorProto.DOUBLE):
        proto = losses(operands, reduction, outputs, dtype)
        assert_run_as_dumped(tmp_path, proto)


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_random_functions_that_call_each_other(tmp_path: Path, dtype: str) -> None:
    """In float16 the runtime puts Casts around what it has no kernel for."""
    for seed in range(30):
        assert_run_as_dumped(tmp_path, drawn_functions(seed, dtype, (4, 6)))
