from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.simulate.arena_order import order_for_arena
from memplan_cli.runtime.simulate.predict import (
    ARENA_REUSE_ONLY,
    ExecutedGraph,
    session_traces,
)
from memplan_cli.runtime.simulate.regions import best_arena

if TYPE_CHECKING:
    from memplan_cli.core.program import Program

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'


def program(inputs: str, outputs: str, nodes: str) -> Program:
    text = HEAD + f"g ({inputs}) => ({outputs}) {{ {nodes} }}"
    return read_program(onnx.parser.parse_model(text)).program


def always(program: Program) -> bool:
    del program
    return True


def live_and_held(found: Program) -> tuple[int, int]:
    trace = session_traces(ExecutedGraph(found), ARENA_REUSE_ONLY, {}).first
    return trace.rounded_peak, best_arena(trace).held


def holes() -> Program:
    """Six tensors of five sizes; where the small one is made decides about a hole."""
    return program(
        "float[102400] x, float[307200] z",
        "float[512000] y, float[1] s",
        """
        small = Abs (x)
        large = Concat <axis = 0> (z, x)
        gone = Abs (large)
        larger = Concat <axis = 0> (gone, x)
        axes = Constant <value = int64[1] {0}> ()
        t = ReduceSum (small, axes)
        s = Abs (t)
        y = Abs (larger)
        """,
    )


def test_an_order_that_fills_the_holes_is_found_at_the_same_peak() -> None:
    before = holes()
    after = order_for_arena(before, always, {})
    old_live, old_held = live_and_held(before)
    live, held = live_and_held(after)
    assert old_held > old_live, "the example has a hole"
    assert held < old_held
    assert live <= old_live
    assert order_for_arena(before, always, {}) == after


def test_an_order_that_is_not_allowed_is_not_taken() -> None:
    before = holes()
    assert order_for_arena(before, lambda program: program == before, {}) is before


def test_a_program_without_holes_comes_back_as_it_is() -> None:
    chain = program("float[64] x", "float[64] y", "a = Abs (x) b = Abs (a) y = Abs (b)")
    assert order_for_arena(chain, always, {}) is chain


def test_a_size_that_depends_on_data_leaves_the_order_alone() -> None:
    unknown = program(
        "float[64] x", "int64[1, n] y", "a = Abs (x) b = NonZero (a) y = Abs (b)"
    )
    assert order_for_arena(unknown, always, {}) is unknown


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=2, max_size=9))
def test_moved_ops_still_follow_what_they_read(shape: list[tuple[int, int]]) -> None:
    nodes, names = [], ["x"]
    for number, (width, back) in enumerate(shape):
        source = names[-1 - back % len(names)]
        nodes.append(f"a{number} = Expand (one, w{width})")
        nodes.append(f"b{number} = Add (a{number}, p{number})")
        nodes.append(f"r{number} = ReduceSum <keepdims = 0> (b{number})")
        nodes.insert(0, f"p{number} = Identity (one)")
        names.append(f"r{number}")
        nodes.append(f"c{number} = Add (r{number}, {source})")
        names[-1] = f"c{number}"
    widths = " ".join(
        f"w{k} = Constant <value = int64[1] {{{k * 30000}}}> ()" for k in range(1, 7)
    )
    one = "one = Constant <value = float[1] {1.0}> ()"
    before = program("float x", f"float {names[-1]}", f"{widths} {one} " + " ".join(nodes))
    after = order_for_arena(before, always, {})
    assert sorted(op.outputs for op in after.body.ops) == sorted(
        op.outputs for op in before.body.ops
    )
    made = set(before.body.inputs)
    for op in after.body.ops:
        assert {var for var in op.inputs if var} <= made
        made.update(op.outputs)
    assert live_and_held(after)[0] <= live_and_held(before)[0]
