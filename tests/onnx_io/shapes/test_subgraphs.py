"""Shapes inside subgraphs, written as ONNX text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan_cli.core.program import Program, intermediates
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import Loaded, read_program

REPOSITORY = Path(__file__).parents[3]
SHARED = REPOSITORY.parent / "shared" / "models"


def loaded(text: str, bindings: Bindings | None = None) -> Loaded:
    import onnx

    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    return read_program(model, bindings)


def program(text: str, bindings: Bindings | None = None) -> Program:
    return loaded(text, bindings).program


def shape(of: Program, name: str) -> object:
    (found,) = [var for var in of.vars.values() if name in (var.name, var.id)]
    return found.shape


def test_a_carried_value_that_keeps_its_shape_has_the_initial_one() -> None:
    got = program("""
        g (float[4,8] x, int64 n, bool go) => (y) {
            last, all = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r, r2) {
                d = Identity (c)
                r = Relu (h)
                r2 = ReduceSum <keepdims = 0> (r)
            }>
            y = Neg (last)
        }""")
    assert shape(got, "h") == (4, 8)
    assert shape(got, "r") == (4, 8)
    assert shape(got, "last") == (4, 8)
    assert shape(got, "all") == (None,), "nobody knows how often the loop turns"


def test_an_input_of_a_subgraph_that_the_node_does_not_give_is_still_one() -> None:
    got = program("""
        g (float[4] x, float[4] w, int64 n, bool go) => (y) {
            y, z = Loop (n, go, x) <body = b (int64 i, bool c, h, missing) => (d, r, r2) {
                d = Identity (c)
                r = Add (h, w)
                r2 = Mul (missing, w)
            }>
        }""")
    (loop,) = got.body.ops
    assert loop.bodies[0].ops[2].inputs[0] in loop.bodies[0].inputs


def test_results_of_each_turn_are_stacked_up_to_the_trip_count() -> None:
    got = program("""
        g (float[4,8] x, bool go) => (y) <int64 n = {5}> {
            last, all = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r, r2) {
                d = Identity (c)
                r = Relu (h)
                r2 = Neg (r)
            }>
            y = Neg (all)
        }""")
    assert shape(got, "all") == (5, 4, 8)
    assert shape(got, "y") == (5, 4, 8)


def test_a_loop_without_a_turn_hands_on_what_it_was_given() -> None:
    got = program("""
        g (float[2,1] x, bool go) => (y) <int64 n = {0}> {
            last, all = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r, s) {
                d = Identity (c)
                r = Concat <axis = 1> (h, x, x)
                s = Neg (x)
            }>
            y = Neg (last)
        }""")
    assert shape(got, "last") == (2, 1)
    assert shape(got, "y") == (2, 1)
    assert shape(got, "all") == (0, 2, 1)


def test_a_value_that_grows_without_end_is_unknown_and_can_be_given() -> None:
    text = """
        g (float[2,1] x, int64 n, bool go) => (y) {
            last = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r) {
                d = Identity (c)
                s = Neg (h)
                r = Concat <axis = 1> (s, x)
            }>
            y = Neg (last)
        }"""
    assert shape(program(text), "s") == (2, None)
    given = program(text, Bindings(shapes={"s": (2, 30)}))
    assert shape(given, "s") == (2, 30)


def test_a_declaration_that_holds_on_the_first_turn_only_is_not_believed() -> None:
    got = program("""
        g (float[2,1] x, int64 n, bool go) => (y) {
            last = Loop (n, go, x) <body = b (int64 i, bool c, float[2,1] h) => (d, r) {
                d = Identity (c)
                s = Neg (h)
                r = Concat <axis = 1> (s, x)
            }>
            y = Neg (last)
        }""")
    assert shape(got, "s") == (2, None)
    assert shape(got, "last") == (2, None)


def test_a_body_that_takes_too_little_is_a_warning_and_no_crash() -> None:
    import onnx

    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[2,1] x, int64 n, bool go) => (y) {
            last = Loop (n, go, x) <body = b (int64 i) => (d) { d = Identity (i) }>
            y = Neg (last)
        }""")
    assert read_program(model).warnings
    del model.graph.node[0].attribute[:]
    assert read_program(model).warnings


def test_a_value_that_doubles_is_unknown() -> None:
    got = program("""
        g (float[2,1] x, bool go) => (y) <int64 n = {5}> {
            last = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r) {
                d = Identity (c)
                r = Concat <axis = 1> (h, h)
            }>
            y = Neg (last)
        }""")
    assert shape(got, "last") == (2, None)


def test_shapes_that_are_shifted_through_more_values_than_rounds_are_unknown() -> None:
    """Each iteration moves every value to the next one, and the first one doubles."""
    last = 11
    states = ", ".join(f"s{k}" for k in range(last + 1))
    moved = "".join(f"t{k} = Identity (s{k - 1}) " for k in range(1, last + 1))
    results = ", ".join(f"t{k}" for k in range(last + 1))
    outputs = ", ".join(f"y{k}" for k in range(last + 1))
    initial = ", ".join(["x"] * (last + 1))
    got = loaded(f"""
        g (float[3] x, int64 n, bool go) => (z) {{
            {outputs} = Loop (n, go, {initial}) <body = b (int64 i, bool c, {states}) => (d, {results}) {{
                d = Identity (c)
                t0 = Concat <axis = 0> (s0, s0)
                {moved}
            }}>
            z = Neg (y{last})
        }}""")
    assert shape(got.program, f"y{last}") in (None, (None,))
    assert not got.warnings


def test_branches_that_agree_say_the_shape_and_others_leave_a_hole() -> None:
    got = program("""
        g (float[4,8] x, bool go) => (y, z) <int64[1] axes = {0}> {
            y, z = If (go) <
                then_branch = a () => (p, q) { p = Relu (x)  q = ReduceSum (x, axes) },
                else_branch = b () => (r, s) { r = Neg (x)  s = Neg (x) }>
        }""")
    assert shape(got, "y") == (4, 8)
    assert shape(got, "z") == (None, 8)


def test_a_constant_of_the_outside_says_a_shape_inside() -> None:
    got = program("""
        g (float[4,8] x, bool go) => (y) <int64[2] want = {2, 16}> {
            y = If (go) <
                then_branch = a () => (p) { p = Reshape (x, want) },
                else_branch = b () => (r) { r = Reshape (x, want) }>
        }""")
    assert shape(got, "p") == (2, 16)
    assert shape(got, "y") == (2, 16)


def test_shape_arithmetic_of_the_outside_says_a_shape_two_blocks_down() -> None:
    text = """
        g (float[batch,8] x, int64 n, bool go) => (y) <int64[1] two = {2}, int64[1] four = {4}> {
            all = Shape (x)
            zero = Constant <value_ints = [0]> ()
            first = Gather (all, zero)
            want = Concat <axis = 0> (first, two, four)
            y = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r) {
                d = Identity (c)
                r = If (c) <
                    then_branch = s () => (p) { t = Reshape (h, want)  p = Flatten (t) },
                    else_branch = u () => (q) { q = Neg (h) }>
            }>
        }"""
    got = program(text, Bindings(dims={"batch": 3}))
    assert shape(got, "t") == (3, 2, 4)
    assert shape(got, "q") == (3, 8)


def test_scan_slices_and_states_have_shapes() -> None:
    got = program("""
        g (float[6,4] xs, float[4] s0) => (sN, ys) <int64[1] want = {4}> {
            sN, ys = Scan <num_scan_inputs = 1, body = b (s, x) => (t, y) {
                flat = Reshape (x, want)
                t = Add (s, flat)
                y = Identity (t)
            }> (s0, xs)
        }""")
    assert shape(got, "x") == (4,)
    assert shape(got, "t") == (4,)
    assert shape(got, "ys") == (6, 4)


def test_scan_respects_its_axes() -> None:
    got = program("""
        g (float[4,6] xs, float[4] s0) => (sN, ys) <int64[1] want = {4}> {
            sN, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                body = b (s, x) => (t, y) {
                    flat = Reshape (x, want)
                    t = Add (s, flat)
                    y = Identity (t)
                }> (s0, xs)
        }""")
    assert shape(got, "x") == (4,)
    assert shape(got, "ys") == (4, 6)


def test_a_loop_that_carries_a_dim_of_the_outside_keeps_its_name() -> None:
    got = program("""
        g (float[batch,8] x, int64 n, bool go) => (y) {
            y = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r) {
                d = Identity (c)
                r = Relu (h)
            }>
        }""")
    assert shape(got, "r") == ("batch", 8)


def test_names_that_inference_makes_up_are_no_shapes() -> None:
    got = program("g (float[4,8] x) => (y) { z = NonZero (x)  y = Cast <to = 1> (z) }")
    assert shape(got, "z") == (2, None)
    assert shape(got, "y") == (2, None)


def test_a_made_up_name_is_said_by_the_name_that_the_file_has() -> None:
    got = program("""
        g (float[4,8] x) => (y) <int64[u0,2] t> {
            z = NonZero (x)
            t = Transpose <perm = [1, 0]> (z)
            y = Cast <to = 1> (t)
        }""")
    assert shape(got, "z") == (2, "u0")


def test_a_shape_given_for_no_value_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(SettingsError, match="'hiden'") as error:
        program(
            "g (float[4] x) => (y) { hidden = Neg (x)  y = Neg (hidden) }",
            Bindings(shapes={"hiden": (4,)}),
        )
    assert "hidden" in error.value.hint


def test_a_shape_can_be_given_inside_one_block_by_its_path() -> None:
    text = """
        g (float[4,8] x, bool go) => (y) {
            y = If (go) <
                then_branch = a () => (p) { z1 = NonZero (x)  p = Cast <to = 1> (z1) },
                else_branch = b () => (r) { z2 = NonZero (x)  r = Cast <to = 1> (z2) }>
        }"""
    given = program(text, Bindings(shapes={"If#0.then_branch/z1": (2, 7)}))
    assert shape(given, "z1") == (2, 7)
    assert shape(given, "p") == (2, 7)
    assert shape(given, "z2") == (2, None)


def test_a_name_that_looks_like_arithmetic_is_still_a_name() -> None:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["sequence-length", 4])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    model: onnx.ModelProto = helper.make_model(graph)
    read = read_program(model).program
    assert shape(read, "y") == ("`sequence-length`", 4)
    bound = read_program(model, Bindings(dims={"sequence-length": 3})).program
    assert shape(bound, "y") == (3, 4)


def models() -> list[Path]:
    found = sorted((REPOSITORY / "sample_models").glob("*.onnx"))
    shared = sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else ()
    messy = sorted((SHARED / "messy").glob("*.onnx"))
    return [*found, *shared, *messy]


def messy_models() -> list[Path]:
    return [*sorted((SHARED / "messy").glob("*.onnx")), SHARED / "bert_base_dyn_ts.onnx"]


def without_a_size(path: Path, bindings: Bindings) -> list[str]:
    read = read_program(load_model(path), bindings).program
    sizes = {v: size_of(read.vars[v].shape, read.vars[v].dtype) for v in intermediates(read)}
    return [str(var) for var, size in sizes.items() if size is None]


@pytest.mark.parametrize("path", models(), ids=lambda path: path.stem)
def test_every_intermediate_of_the_real_models_has_a_size(path: Path) -> None:
    assert without_a_size(path, Bindings()) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not there")
@pytest.mark.parametrize("path", messy_models(), ids=lambda path: path.stem)
def test_every_intermediate_has_a_size_where_the_inputs_shapes_are_given(path: Path) -> None:
    said = json.loads((path.parent / "inputs" / f"{path.stem}.json").read_text())["inputs"]
    shapes = {name: tuple(spec["shape"]) for name, spec in said.items()}
    assert without_a_size(path, Bindings(shapes=shapes)) == []


def test_the_real_models_are_there() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    assert len(models()) > 40
    assert len(messy_models()) > 5
