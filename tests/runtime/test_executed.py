"""Which graph the runtime runs: the order of its nodes, and the shapes that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser

from memplan_cli.core.program import Program, VarId
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.graph.dumps import bound_shapes, planner_shapes
from memplan_cli.runtime.graph.node_index import in_index_order
from memplan_cli.runtime.profile.in_place import InPlaceTable
from memplan_cli.runtime.simulate.planner import PlannerSettings, file_order, plan_block
from memplan_cli.runtime.simulate.predict import (
    ExecutedGraph,
    needs_observation,
    runtime_program,
)

if TYPE_CHECKING:
    from memplan_cli.runtime.run.run_model import RuntimeShapes

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def model(nodes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEAD + f"g (float[4] x) => (float[4] y) {{ {nodes} }}")


def order(source: str, dump: str) -> str:
    loaded, wrote = model(source), model(dump)
    program = in_index_order(read_program(wrote).program, wrote.graph, loaded)
    return " ".join(op.outputs[0] for op in program.body.ops)


def test_nodes_of_the_file_stand_as_in_the_file() -> None:
    source = "b = Neg(x) a = Exp(x) y = Add(a, b)"
    assert order(source, "a = Exp(x) b = Neg(x) y = Add(a, b)") == "b a y"


def test_inlined_nodes_come_after_those_of_the_file_in_the_order_of_the_dump() -> None:
    source = "b = HardSwish(x) a = HardSwish(x) c = Exp(a) y = Add(b, c)"
    dump = """s = HardSigmoid(x) a = Mul(x, s) c = Exp(a)
              t = HardSigmoid(x) b = Mul(x, t) y = Add(b, c)"""
    assert order(source, dump) == "c y s a t b"


def test_casts_of_the_runtime_come_last_in_the_order_in_which_it_made_them() -> None:
    source = "a = Exp(x) b = Abs(a) c = HardSwish(b) y = Neg(c)"
    other = "InsertedPrecisionFreeCast_"
    dump = f"""{other}x = Cast<to = 1>(x) {other}a = Exp({other}x) a = Cast<to = 10>({other}a)
              b = Abs(a) {other}b = Cast<to = 1>(b) {other}s = HardSigmoid({other}b)
              {other}c = Mul({other}b, {other}s) c = Cast<to = 10>({other}c) y = Neg(c)"""
    casts = f"{other}x a {other}b c"
    assert order(source, dump) == f"{other}a b y {other}s {other}c {casts}"


def test_casts_of_a_file_that_the_runtime_wrote_are_nodes_of_the_file() -> None:
    other = "InsertedPrecisionFreeCast_"
    nodes = f"""{other}x = Cast<to = 1>(x) {other}a = Exp({other}x) a = Cast<to = 10>({other}a)
                y = Abs(a)"""
    assert order(nodes, nodes) == f"{other}x {other}a a y"


def test_bodies_are_put_in_order_too() -> None:
    body = """a = Exp(x) y = If (go) < then_branch = t () => (float[4] p) {{ {} }},
              else_branch = e () => (float[4] s) {{ s = Neg(a) }}>"""
    loaded, wrote = (
        onnx.parser.parse_model(
            HEAD + "g (float[4] x, bool go) => (float[4] y) {" + text + "}"
        )
        for text in (
            body.format("r = Neg(a) q = Exp(a) p = Add(q, r)"),
            body.format("q = Exp(a) r = Neg(a) p = Add(q, r)"),
        )
    )
    program = in_index_order(read_program(wrote).program, wrote.graph, loaded)
    (owner,) = (op for op in program.body.ops if op.bodies)
    inner = next(body for body in owner.bodies if len(body.ops) > 1)
    assert [op.type for op in inner.ops] == ["Neg", "Exp", "Add"]


def program_of(nodes: str) -> Program:
    return read_program(model(nodes)).program


def test_no_dims_are_a_scalar_only_where_inference_says_so() -> None:
    program = program_of("s = Size(x) f = Cast<to = 1>(s) y = Mul(x, f)")
    shapes = {"s": ("int64", ()), "f": ("float32", ()), "y": ("float32", ())}
    assert planner_shapes(program, shapes) == {VarId("y"): None}
    assert bound_shapes(shapes, {}, ()) == {}


def test_a_shape_with_a_hole_gives_no_size() -> None:
    shapes: RuntimeShapes = {
        "a": ("float32", (4, None)),
        "b": ("float32", (4, "n")),
        "c": ("int8", ("m", 2)),
    }
    found = bound_shapes(shapes, {}, ("n",))
    assert found == {**shapes, "c": ("int8", (None, 2))}, "no input has the dim m"
    assert [size_of(shape, dtype) is None for dtype, shape in found.values()] == [
        True,
        False,
        True,
    ]


def test_the_planner_shares_by_what_the_runtime_knows() -> None:
    program = program_of("a = Exp(x) b = Exp(a) c = Exp(b) y = Exp(c)")
    seen = planner_shapes(program, {"a": ("float32", (None,)), "c": ("float32", ("n",))})
    rules = PlannerSettings(InPlaceTable(("test",), {}, {}), file_order, reuses_buffers=True)
    known = plan_block(program, program.body, None, rules)
    assert known.buffer[VarId("c")] == "a"
    less = runtime_program(ExecutedGraph(program, planner_shapes=seen))
    assert plan_block(less, less.body, None, rules).buffer[VarId("c")] == "c"


def test_shapes_of_variables_that_a_file_lacks_are_skipped() -> None:
    program = program_of("a = Exp(x) y = Neg(a)")
    shapes = {VarId("a"): None, VarId("fused"): None}
    seen = runtime_program(ExecutedGraph(program, planner_shapes=shapes))
    assert seen.vars.keys() == program.vars.keys()
    assert seen.vars[VarId("a")].shape is None


def test_a_run_is_needed_only_where_the_data_decides() -> None:
    assert not needs_observation(ExecutedGraph(program_of("a = Exp(x) y = Neg(a)")))
    assert needs_observation(
        ExecutedGraph(program_of("a = NonZero(x) b = Cast<to = 1>(a) y = ReduceSum(b)"))
    )
