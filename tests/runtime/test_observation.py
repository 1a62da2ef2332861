"""Branches, iterations and sizes of one run, from events made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser

from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.simulate.observation import (
    OpExecution,
    RunObservation,
    WrittenTensor,
    observation_of,
)
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.session_profile import TensorTypes

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4] x, bool c, int64 n, bool go) => (float[4] y, float[k,4] all)
    <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}>
    { a = MatMul(x, w)
      b = If (c) < then_branch = t () => (float[4] p) { p = Neg(a) },
                   else_branch = e () => (float[4] q) { r = Exp(a)  q = Neg(r) }>
      y, all = Loop (n, go, b) <
        body = l (int64 i, bool k, float[4] now) => (bool o, float[4] then, float[4] out)
        { o = Identity(k)  then = Exp(now)  out = Neg(then) }> }"""

FOUR: TensorTypes = [("float", (4,))]
LOOP = "Loop#2.body"


def observed(*events: OpExecution) -> RunObservation:
    return observation_of(read_program(onnx.parser.parse_model(TEXT)).program, events)


def iteration(size: int) -> tuple[OpExecution, ...]:
    wrote: TensorTypes = [("float", (size,))]
    return (
        OpExecution((f"{LOOP}/o",), [("bool", ())], [("bool", ())]),
        OpExecution((f"{LOOP}/then",), wrote, wrote),
        OpExecution((f"{LOOP}/out",), wrote, wrote),
    )


BRANCH = (
    OpExecution(("If#1.then_branch/p",), FOUR, FOUR),
    OpExecution(("b",), [("bool", ())], FOUR),
)


def test_the_branch_that_left_events_ran_once_and_the_other_never() -> None:
    got = observed(*BRANCH)
    assert got.iterations == {"If#1.then_branch": (1,), "If#1.else_branch": (0,)}


def test_iterations_are_counted_up_to_the_event_of_the_loop_itself() -> None:
    loop = OpExecution(("y", "all"), [], [("float", (4,)), ("float", (2, 4))])
    got = observed(*iteration(4), *iteration(4), loop, *iteration(4), loop)
    assert got.iterations[LOOP] == (2, 1)


def test_each_frame_of_a_body_has_sizes_of_its_own() -> None:
    got = observed(*iteration(4), *iteration(6))
    assert got.written[VarId(f"{LOOP}/then")] == (WrittenTensor(16, 4), WrittenTensor(24, 6))


def test_a_key_is_the_exclusive_or_of_all_dims() -> None:
    got = observed(OpExecution(("y", "all"), [], [("float", (4,)), ("float", (3, 6))]))
    assert got.written[VarId("all")] == (WrittenTensor(72, 3 ^ 6),)


def test_a_weight_that_the_kernel_did_not_read_is_packed() -> None:
    assert observed(OpExecution(("a",), FOUR, FOUR)).packed == {"w"}
    handed = [*FOUR, ("float", (4, 4))]
    assert observed(OpExecution(("a",), handed, FOUR)).packed == frozenset()


def test_an_event_without_all_tensors_of_its_op_gives_no_sizes() -> None:
    got = observed(OpExecution(("y", "all"), [], FOUR))
    assert got.written == {}


def test_if_no_branch_left_events_the_larger_one_counts() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4] x, bool c) => (float[4] y) <int64[2] many = {1000, 4}, int64[1] first = {0}> {
        y = If(c) <
            then_branch = t () => (float[4] a) { a = Neg(x) },
            else_branch = e () => (float[4] b)
                { wide = Expand(x, many)  b = ReduceMax<keepdims = 0>(wide, first) }> }"""
    program = read_program(onnx.parser.parse_model(text)).program
    counts = {"If#0.then_branch": (0,), "If#0.else_branch": (0,)}
    peaks = [
        predict_peaks(
            ExecutedGraph(program, in_run_order=True, observed=observed), DEFAULTS
        ).first_run_peak
        for observed in (None, RunObservation(iterations=counts))
    ]
    assert peaks[0] == peaks[1]
    assert (peaks[1] or 0) > 16_000
