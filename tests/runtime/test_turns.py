"""Turns of a Scan, simulated as they were seen."""

from __future__ import annotations

import onnx
import onnx.parser

from memplan_cli.core.program import VarId
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.run.baseline import DEFAULTS
from memplan_cli.runtime.simulate.observation import RunObservation, WrittenTensor
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks

PROGRAM = read_program(
    onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
g (float[9,4] x, int64 n, bool go) => (float[4] z)
    <float[4] zero = {0,0,0,0}>
    { z = Loop (n, go, zero) <
        body = l (int64 i, bool k, float[4] now) => (bool o, float[4] then)
        { o = Identity(k)
          then, rows = Scan <num_scan_inputs = 1,
            body = s (float[4] state, float[4] row) => (float[4] next, float[4] out)
            { many = NonZero(row)  least = ReduceSum<keepdims = 0>(many)
              f = Cast<to = 1>(least)  next = Add(state, f)  out = Neg(next) }>(now, x) }> }""")
).program

SCAN = "Loop#0.body/Scan#1.body"
MANY = VarId(f"{SCAN}/many")
TURNS = 9


def peak(sizes: tuple[int, ...]) -> int | None:
    """Return the peak of two Scans of nine turns, a tensor of each turn with its size."""
    observed = RunObservation(
        {MANY: tuple(WrittenTensor(size, size) for size in sizes)},
        {SCAN: (TURNS, TURNS), "Loop#0.body": (2,)},
    )
    return predict_peaks(
        ExecutedGraph(PROGRAM, in_run_order=True, observed=observed), DEFAULTS
    ).first_run_peak


ALIKE = (1 << 10,) * 2 * TURNS


def loop_peak(passed_on: str) -> int | None:
    """Return the peak of a Loop whose body gives a new value, and one of its own values again."""
    program = read_program(
        onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
g (int64 n, bool go, float[1000] one, float[1000] two) => (float[1000] x, float[1000] y)
    {{ x, y = Loop (n, go, one, two) <
        body = l (int64 i, bool k, float[1000] a, float[1000] b) => (o, c, d)
        {{ o = Identity(k)  c = Add(a, b)  d = Identity({passed_on}) }}> }}""")
    ).program
    observed = RunObservation({}, {"Loop#0.body": (5,)})
    return predict_peaks(
        ExecutedGraph(program, in_run_order=True, observed=observed), DEFAULTS
    ).first_run_peak


def test_a_value_that_a_body_passes_on_stays_for_the_next_turn() -> None:
    newest_only, newest_and_last = loop_peak("b"), loop_peak("a")
    assert newest_only is not None
    assert newest_and_last is not None
    assert newest_and_last - newest_only >= 4000


def with_one(turn: int) -> tuple[int, ...]:
    return (*ALIKE[:turn], 1 << 20, *ALIKE[turn + 1 :])


def test_a_turn_unlike_the_others_counts_wherever_it_is() -> None:
    alike = peak(ALIKE)
    assert alike is not None
    for turn in range(2 * TURNS):
        unlike = peak(with_one(turn))
        assert unlike is not None
        assert unlike > 1 << 20 > alike
