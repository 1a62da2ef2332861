"""Predicted equals measured, to the byte, on the CPU provider."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from memplan_cli.api import simulate
from memplan_cli.core.bindings import FeedSpec
from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.graph.dumps import executed_graph, observed_graph
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks
from memplan_cli.runtime.workers.spec import RunConditions
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
ON_CPU = RunConditions()

BRANCHES = """g (float[1024] x) => (float[1024] y, float[4096] z)
    <int64[1] four = {4}, int64[1] flat = {4096}>
    { a = Exp(x)  b = Relu(a)  c = Neg(x)  d = Exp(c)  e = Add(b, d)
      f = Tile(e, four)  h = Neg(f)  k = Sigmoid(h)  m = Reshape(k, flat)
      z = Exp(m)  n = Neg(d)  y = Add(n, e)  unread = Exp(n) }"""

IF = """g (float[64] x, bool c) => (float[64] y)
    { a = Exp(x)
      b = If (c) <
        then_branch = t () => (float[64] p) { q = Exp(a)  r = Neg(q)  p = Exp(r) },
        else_branch = e () => (float[64] s) { s = Neg(a) }>
      y = Neg(b) }"""

LOOP = """g (float[64] x) => (float[64] last, float[5,64] all)
    <int64 trips = {5}, bool go = {1}>
    { a = Exp(x)
      last, all = Loop (trips, go, a) <
        body = b (int64 i, bool c, float[64] now) => (bool k, float[64] then, float[64] out)
        { k = Identity(c)  u = Exp(now)  w = Neg(u)  then = Exp(w)  out = Neg(then) }> }"""

SCAN = """g (float[64] x, float[6,64] rows) => (float[64] last, float[6,64] all)
    { a = Exp(x)
      last, all = Scan <num_scan_inputs = 1,
        body = b (float[64] now, float[64] row) => (float[64] then, float[64] out)
        { u = Exp(now)  w = Add(u, row)  then = Exp(w)  out = Neg(w) }> (a, rows) }"""


NESTED = """g (float[2,64] x, bool c) => (float[2,64] y)
    { a = Exp(x)
      b = If (c) <
        then_branch = t () => (float[2,64] p)
          { q = Exp(a)  r = Neg(q)  z = Exp(r)
            v = If (c) <
              then_branch = tt () => (float[2,64] w) { i = Exp(z)  j = Neg(i)  w = Exp(j) },
              else_branch = ee () => (float[2,64] m) { m = Neg(z) }>
            p = Add(v, a) },
        else_branch = e () => (float[2,64] s) { s = Neg(a) }>
      y = Neg(b) }"""

GROWING = """g (float[2,16] x) => (float[2,m] y)
    <int64 turns = {6}, bool go = {1}>
    { a = Exp(x)
      last = Loop (turns, go, a) <
        body = b (int64 i, bool c, h) => (bool d, r)
        { s = Neg(h)  u = Exp(s)  r = Concat <axis = 1> (u, x)  d = Identity(c) }>
      y = Neg(last) }"""

BY_DATA = """g (float[64] x) => (float[k] y)
    <int64[1] flat = {-1}>
    { a = Exp(x)  n = Neg(a)  o = Greater(x, n)  i = NonZero(o)  j = Reshape(i, flat)
      p = Gather(a, j)  q = Exp(p)  r = Neg(q)  s = Exp(r)  y = Add(s, p) }"""

STOPPING = """g (float[64] x) => (float[64] last)
    <int64 turns = {9}, bool go = {1}, float[1] limit = {0.25}, float half = {0.5}>
    { a = Exp(x)
      last = Loop (turns, go, a) <
        body = b (int64 i, bool c, float[64] now) => (bool k, float[64] then)
        { u = Exp(now)  w = Log(u)  then = Mul(w, half)  m = ReduceMax <keepdims = 0> (then)
          n = Squeeze(limit)  k = Less(n, m) }> }"""

LATE = """g (float[64] x, bool c) => (float[k] y)
    { a = Exp(x)  o = Greater(x, a)  n = Not(o)
      b = If (c) <
        then_branch = t () => (float[k] p)
          { q = Exp(a)  r = Neg(q)  u = Exp(r)  v = Neg(u)  p = Compress <axis = 0> (v, n) },
        else_branch = e () => (float[j] s) { s = Compress <axis = 0> (a, n) }>
      y = Neg(b) }"""

BY_TURN = """g (float[64] x) => (float[64] last)
    <int64 turns = {5}, bool go = {1}, int64 zero = {0}, int64 one = {1}, int64 many = {200}>
    { a = Exp(x)
      last = Loop (turns, go, a) <
        body = b (int64 i, bool c, float[64] now) => (bool k, float[64] then)
        { h = Add(i, one)  n = Mul(h, many)  r = Range(zero, n, one)  f = Cast <to = 1> (r)  e = Exp(f)
          s = ReduceSum <keepdims = 0> (e)  u = Add(now, s)  then = Neg(u)  k = Identity(c) }> }"""

DOUBLE = """g (double[8,16] x) => (double[8,16] y)
    { a = Exp(x)  b = Softmax(a)  c = Relu(b)  d = LogSoftmax(c)  y = Exp(d) }"""

TRAINING = """g (float[2,16,4] x, float[16] m, float[16] v) => (float[2,16,4] y, float[16] n, float[16] o)
    { b = Exp(x)  p = Neg(m)  q = Abs(v)  s = Exp(v)
      c, d, e = BatchNormalization<training_mode = 1>(b, s, s, p, q)
      y = Neg(c)  n = Add(d, p)  o = Neg(e) }"""

TEXTS = {
    "flat": BRANCHES,
    "if": IF,
    "loop": LOOP,
    "scan": SCAN,
    "if in if": NESTED,
    "growing state": GROWING,
    "if of unknown shape": LATE,
    "sizes by data": BY_DATA,
    "turns by data": STOPPING,
    "sizes by turn": BY_TURN,
    "in double": DOUBLE,
    "later outputs": TRAINING,
}

INLINED = """g (float[8,16] x) => (float[8,16] y, float[8,16] z)
    { a = HardSwish(x)  b = Neg(a)  c = HardSwish(b)  d = Exp(x)  e = HardSwish(d)
      y = Add(c, e)  f = Neg(d)  z = Add(f, b) }"""

CALLED_TWICE = """g (float[8,16] x, bool c) => (float[8,16] y)
    { a = m.f(x)
      b = If (c) <
        then_branch = t () => (float[8,16] p) { q = Neg(a)  p = m.f(q) },
        else_branch = e () => (float[8,16] s) { s = Neg(a) }>
      y = m.f(b) }
    <domain: "m", opset_import: ["" : 21]>
    f (a) => (c) { t = Exp(a)  u = Neg(t)  c = Exp(u) }"""

ONE_BRANCH = """g (float[2,64] x, bool c) => (float[2,64] y)
    { a = Exp(x)
      b = If (c) <
        then_branch = t () => (float[2,64] p)
          { q = MatMul(a, W)  r = Neg(q)  z = Exp(r)  p = Neg(z) },
        else_branch = e () => (float[2,64] s) { s = Neg(a) }>
      y = Neg(b) }"""

# What a block holds for a large tensor of the first level lasts through the second.
WIDE = "f = Concat <axis = 0> (q, q, q, q)  t = Reshape(f, cube)  r = ReduceMax <keepdims = 0> (t, at)"
TWO_LEVELS = (
    NESTED.replace("q = Exp(a)", "q = MatMul(a, W)")
    .replace("r = Neg(q)", WIDE, 1)
    .replace("y)\n", "y)\n    <int64[3] cube = {4, 2, 64}, int64[1] at = {0}>\n", 1)
)

PACKED = {
    "in a branch": (ONE_BRANCH, ("W",)),
    "read also as it is": (
        ONE_BRANCH.replace("s = Neg(a)", "k = Size(W)  s = Neg(a)"),
        ("W",),
    ),
    "two blocks deep": (NESTED.replace("i = Exp(z)", "i = MatMul(z, W)"), ("W",)),
    "at both depths": (TWO_LEVELS.replace("i = Exp(z)", "i = MatMul(z, V)"), ("W", "V")),
    "in a loop": (
        LOOP.replace("64]", "2,64]").replace("u = Exp(now)", "u = MatMul(now, W)"),
        ("W",),
    ),
    "in a scan": (
        SCAN.replace("64]", "2,64]").replace("u = Exp(now)", "u = MatMul(now, W)"),
        ("W",),
    ),
}


def measure(
    path: Path, settings: RuntimeSettings, conditions: RunConditions = ON_CPU
) -> Peaks:
    return record_run(path, settings, conditions, "arena").peaks


def settings(order: str, pattern: str, reuse: str) -> RuntimeSettings:
    return RuntimeSettings(
        session={
            "execution_order": order,
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "enable_mem_pattern": pattern == "pattern",
            "enable_mem_reuse": reuse == "reuse",
            "intra_op_num_threads": 1,
        }
    )


QUICK = {"in a branch", "in a loop"}

EVERY_WAY = [
    pytest.param(order, pattern, reuse, marks=[] if first else [pytest.mark.slow])
    for order in ("DEFAULT", "PRIORITY_BASED")
    for pattern in ("pattern", "no pattern")
    for reuse in ("reuse", "no reuse")
    for first in [(order, pattern, reuse) == ("DEFAULT", "pattern", "reuse")]
]


def peaks_of(found: Peaks) -> tuple[int | None, int | None]:
    return found.first_run_peak, found.steady_peak


def saved(folder: Path, text: str, *weights: str) -> Path:
    """Write a model; ``weights`` are 64 by 64."""
    model = onnx.parser.parse_model(HEAD + text)
    for name in weights:
        drawn = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn, name))
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


@pytest.mark.parametrize(("order", "pattern", "reuse"), EVERY_WAY)
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_predicted_peaks_are_the_measured_ones(
    tmp_path: Path, text: str, order: str, pattern: str, reuse: str
) -> None:
    path = saved(tmp_path, text)
    chosen = settings(order, pattern, reuse)
    predicted = predict_peaks(observed_graph(path, chosen, ON_CPU), chosen)
    measured = measure(path, chosen)
    assert peaks_of(predicted) == peaks_of(measured)


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        pytest.param(*case, id=name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name, case in PACKED.items()
    ],
)
def test_a_body_whose_weights_are_packed_away_has_no_pattern(
    tmp_path: Path, text: str, weights: tuple[str, ...]
) -> None:
    path = saved(tmp_path, text, *weights)
    chosen = settings("DEFAULT", "pattern", "reuse")
    predicted = predict_peaks(observed_graph(path, chosen, ON_CPU), chosen)
    assert peaks_of(predicted) == peaks_of(measure(path, chosen))


def test_without_packing_the_same_body_has_one(tmp_path: Path) -> None:
    text, weights = PACKED["at both depths"]
    path = saved(tmp_path, text, *weights)
    packed = settings("DEFAULT", "pattern", "reuse")
    plain = packed.updated(RuntimeSettings(session_config={"session.disable_prepacking": "1"}))
    graph = observed_graph(path, packed, ON_CPU)
    predicted = predict_peaks(graph, plain)
    assert peaks_of(predicted) == peaks_of(measure(path, plain))
    assert predicted.steady_peak != predict_peaks(graph, packed).steady_peak, (
        "it makes a difference"
    )


def test_the_branch_is_the_one_that_the_inputs_choose(tmp_path: Path) -> None:
    path = saved(tmp_path, IF.replace("bool c", "bool[1] c"))
    chosen = settings("DEFAULT", "pattern", "reuse")
    found = set()
    for flag in (0, 1):
        specs = (
            FeedSpec("x", "float32", (64,), "normal"),
            FeedSpec("c", "bool", (1,), "values", values=(flag,)),
        )
        given = replace(ON_CPU, specs=specs)
        predicted = predict_peaks(observed_graph(path, chosen, given), chosen)
        assert peaks_of(predicted) == peaks_of(measure(path, chosen, given))
        found.add(peaks_of(predicted))
    assert len(found) == 2, "the branches differ"


def test_the_graph_after_optimization_is_predicted_from_its_dump(tmp_path: Path) -> None:
    path = saved(tmp_path, BRANCHES)
    predicted = predict_peaks(executed_graph(path, RuntimeSettings(), {}))
    measured = measure(path, RuntimeSettings())
    assert peaks_of(predicted) == peaks_of(measured)
    assert not list(tmp_path.glob("*every-output*")), "the twin is gone"


@pytest.mark.parametrize("order", ["DEFAULT", "PRIORITY_BASED"])
def test_inlined_functions_run_by_the_index_they_got(tmp_path: Path, order: str) -> None:
    path = saved(tmp_path, INLINED)
    chosen = settings(order, "pattern", "reuse")
    predicted = predict_peaks(executed_graph(path, chosen, {}), chosen)
    assert peaks_of(predicted) == peaks_of(measure(path, chosen))


def test_a_function_called_outside_a_branch_and_inside(tmp_path: Path) -> None:
    """The runtime gives both calls' values the same names, and loads no such file."""
    model = onnx.parser.parse_model(HEAD.replace("]", ', "m" : 1]') + CALLED_TWICE)
    path = tmp_path / "model.onnx"
    onnx.save(model, str(path))
    chosen = settings("DEFAULT", "pattern", "reuse")
    predicted = predict_peaks(observed_graph(path, chosen, ON_CPU), chosen)
    assert peaks_of(predicted) == peaks_of(measure(path, chosen))


def test_peaks_that_depend_on_data_are_unknown() -> None:
    model = onnx.parser.parse_model(
        HEAD + "g (float[8] x) => (int64[1,n] y) { y = NonZero(x) }"
    )
    predicted = predict_peaks(ExecutedGraph(read_program(model).program))
    assert (predicted.first_run_peak, predicted.held) == (None, None)


def test_dynamic_allocators_serve_a_loop_as_often_as_it_turned(tmp_path: Path) -> None:
    path = saved(tmp_path, LOOP)
    done = simulate(path, Settings(), ("best-fit", "ort"))
    best_fit, runtime = done.simulations
    # Each of five turns asks for u, w, then and out, as k is handed on; beside them there are
    # a, last, all, and the turn number and condition that the Loop keeps.
    assert best_fit.requests == 5 * 4 + 5
    assert runtime.held == 1 << 20
