"""Choices of loops, each where another one would show: shapes told, rows, what is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from builders import parse
from memplan_cli.core.program import blocks
from memplan_cli.onnx_io.weights.small import small_constants, standard_opset
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.shapes.reading import read_program
from memplan_cli.transforms.chunking.axes.terms import Facts
from memplan_cli.transforms.chunking.loops.begin import begun
from memplan_cli.transforms.chunking.loops.measure import Task
from memplan_cli.transforms.chunking.loops.search import Loops, search_loops
from transforms.loop_models import encoder
from transforms.test_chunk_loops import session, task_of

if TYPE_CHECKING:
    import onnx

    from memplan_cli.core.symbolic.bounds import Bounds


def found_in(text: str, budget: float, bounds: Bounds) -> tuple[onnx.ModelProto, Loops]:
    model = parse(text)
    facts = Facts(small_constants(model), standard_opset(model))
    task = Task(read_program(model).program, facts, frozenset(), bounds)
    return model, search_loops(task, budget)


def shapes_read(nodes: str) -> list[str]:
    """Return the ops that read a shape once inputs tell what they can."""
    text = f"""agraph (float[batch,seq,16] x) => (y) {{
        e = Exp(x) {nodes} z = ConstantOfShape(s) y = Neg(z) }}"""
    program = begun(read_program(parse(text)).program).program
    return [op.inputs[0] for op in program.body.ops if op.type == "Shape"]


@pytest.mark.parametrize(
    ("nodes", "read"),
    [
        ("s = Shape(e)", []),
        ("s = Shape <start = 1> (e)", []),
        ("s = Shape <start = -2, end = 3> (e)", []),
        ("s = Shape(x)", ["x"]),
        ("s = Shape <start = 1.5> (e)", ["e"]),
        ("n = NonZero(e) s = Shape(n)", ["n"]),
    ],
)
def test_a_shape_is_told_where_an_op_makes_what_it_is_read_off(
    nodes: str, read: list[str]
) -> None:
    assert shapes_read(nodes) == read


def test_inputs_that_only_their_shape_is_read_of_stay() -> None:
    text = """agraph (float[batch,16] x, float[batch,4,4] like) => (float[batch,4,4] y) {
        n = Neg(like) s = Shape(n) e = Exp(x) y = Reshape(e, s) }"""
    program = begun(read_program(parse(text)).program).program
    assert [op.type for op in program.body.ops] == ["Exp", "Reshape"]
    assert program.body.inputs == ("x", "like")
    assert set(program.body.inputs) <= program.vars.keys()


@pytest.fixture(scope="module")
def nested() -> Loops:
    return search_loops(task_of(encoder()), 140_000)


def test_loops_are_numbered_from_one_and_told_with_what_is_live_in_them(nested: Loops) -> None:
    assert nested.chunked is not None
    paths = [body.path for body in blocks(nested.chunked.program.body)]
    assert paths == ["", "loop1.body", "loop1.body/loop2.body"]
    assert nested.told
    assert all(0 < each.after <= nested.peak for each in nested.told)


def test_pieces_have_the_rows_that_keep_the_bits() -> None:
    text = """agraph (float[seq,16] x, float[16,256] k) => (float[seq,1] y)
        <int64[1] last = {1}> {
        p = MatMul(x, k) e = Exp(p) y = ReduceMax(e, last) }"""
    _, found = found_in(text, 1, {"seq": (16, 256)})
    (told,) = found.told
    assert 1 < told.pieces <= 256 // 4


def test_samples_are_pieces_of_their_own_where_no_product_forbids_it() -> None:
    text = """agraph (float[batch,4096] x, float[1,4096] k) => (float[batch,1] y)
        <int64[1] last = {1}> {
        p = Add(x, k) e = Exp(p) y = ReduceMax(e, last) }"""
    _, found = found_in(text, 1, {"batch": (1, 16)})
    assert max(told.pieces for told in found.told) == 16


@pytest.mark.parametrize(("width", "pieces"), [(64, True), (16, False)])
def test_rows_are_pieces_where_they_fill_the_registers_of_a_function(
    width: int, *, pieces: bool
) -> None:
    text = """agraph (float[seq,WIDTH] x) => (float[seq,1] y) <int64[1] last = {1}> {
        p = Sin(x) e = Neg(p) y = ReduceMax(e, last) }"""
    _, found = found_in(text.replace("WIDTH", str(width)), 0.5, {"seq": (16, 256)})
    assert bool(found.told) is pieces


def test_rows_of_one_element_are_no_obstacle_where_nothing_is_summed() -> None:
    text = """agraph (float[batch,4096,1] x) => (float[batch,1,1] y) <int64[1] rows = {1}> {
        e = Exp(x) f = Neg(e) y = ReduceMax(f, rows) }"""
    _, found = found_in(text, 40_000, {"batch": (1, 16)})
    assert found.peak <= 40_000
    assert found.before == 16 * 64 * 64 * 4 * 2


def test_sums_of_rows_that_are_long_at_every_size_are_computed_in_pieces() -> None:
    text = """agraph (float[rows,8,seq] x) => (float[rows,1,seq] y) <int64[1] m = {1}> {
        e = Exp(x) f = Neg(e) y = ReduceSum(f, m) }"""
    for low, pieces in ((4, True), (1, False)):
        _, found = found_in(text, 0.5, {"rows": (4, 99), "seq": (low, 128)})
        assert (found.peak <= 0.5 * found.before) is pieces


def test_sums_are_known_to_be_long_by_the_bounds_of_the_one_size_that_there_is() -> None:
    text = """agraph (float[rows,8,rows] x) => (float[rows,1,rows] y) <int64[1] m = {1}> {
        e = Exp(x) f = Neg(e) y = ReduceSum(f, m) }"""
    _, found = found_in(text, 0.5, {"rows": (4, 99)})
    assert found.peak <= 0.5 * found.before


def test_convolutions_of_any_height_have_no_loop_over_rows() -> None:
    text = """agraph (float[1,4,side,32] x, float[4,4,3,3] k) => (float[1,4,side,32] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, k) b = Exp(a) c = Neg(b)
        y = Conv <pads = [1, 1, 1, 1]> (c, k) }"""
    model, found = found_in(text, 0.4, {"side": (32, 256)})
    if found.chunked is not None:
        made, _ = chunked_model(model, found.chunked.program, found.chunked.constants)
        rng = np.random.default_rng(0)
        feeds = {
            "x": rng.standard_normal((1, 4, 77, 32)),
            "k": rng.standard_normal((4, 4, 3, 3)),
        }
        feeds = {name: each.astype(np.float32) for name, each in feeds.items()}
        first, second = (session(each).run(None, feeds)[0] for each in (model, made))
        assert np.asarray(first).tobytes() == np.asarray(second).tobytes()
