"""Kernels of nodes without names, told apart by the order in which they were run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.graph.dumps import observed_graph
from memplan_cli.runtime.graph.recorded import executions_by_order
from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
from memplan_cli.runtime.settings_search.written_model import read_baseline_graph
from memplan_cli.runtime.simulate.predict import ExecutedGraph
from memplan_cli.runtime.workers.session_profile import Kernel
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
g (float[5,4] x, bool c, int64 n, bool go) => (float[5,4] y, float[4] last, float[4] z)
    <float[4] zero = {0,0,0,0}>
    { a = Exp(x)
      b = If (c) < then_branch = t () => (float[5,4] p) { p = Neg(a) },
                   else_branch = e () => (float[5,4] q) { r = Exp(a)  q = Sqrt(r) }>
      last, y = Scan <num_scan_inputs = 1,
        body = s (float[4] state, float[4] row) => (float[4] next, float[4] out)
        { t0 = Neg(row)  t1 = Neg(state)  next = Add(t0, t1)  out = Relu(next) }>(zero, b)
      z = Loop (n, go, last) <
        body = l (int64 i, bool k, float[4] now) => (bool o, float[4] then)
        { o = Identity(k)
          m = If (k) < then_branch = u () => (float[4] v) { v = Exp(now) },
                       else_branch = w () => (float[4] s) { s = Neg(now) }>
          then = Tanh(m) }> }""")

EXECUTED = ExecutedGraph(read_program(MODEL).program, in_run_order=True)

ROW = [("float", [4])]


def kernels(text: str) -> list[Kernel]:
    """Return kernels from ``name@begin`` words, in the order in which they were done."""
    words = (word.split("@") for word in text.split())
    return [Kernel(name, ROW, ROW, int(begin)) for name, begin in words]


TURN = "Neg_0@{0} Neg_1@{0} Add_2@{0} Relu_3@{0} "
RAN = (
    "Exp_0@1 Neg_0@3 If_1@2 "
    + "".join(TURN.format(at) for at in (5, 6, 7))
    + "Scan_2@4 Identity_0@9 Exp_0@11 If_1@10 Tanh_2@12 Loop_3@8"
)


def places(text: str) -> list[str] | None:
    events = executions_by_order(EXECUTED, kernels(text))
    return None if events is None else [event.outputs[0] for event in events]


def test_each_kernel_is_at_its_node_a_subgraphs_before_their_own() -> None:
    turn = [f"Scan#2.body/{name}" for name in ("t0", "t1", "next", "out")]
    loop = "Loop#3.body/"
    assert places(RAN) == [
        "a",
        "If#1.then_branch/p",
        "b",
        *turn * 3,
        "last",
        f"{loop}o",
        f"{loop}If#1.then_branch/v",
        f"{loop}m",
        f"{loop}then",
        "z",
    ]


def test_a_node_that_ran_no_turn_has_no_kernels_within() -> None:
    assert places("Exp_0@1 Neg_0@3 If_1@2 Scan_2@4 Loop_3@8") is not None


def test_kernels_that_fit_no_node_are_at_no_place() -> None:
    assert places(RAN.replace("Relu_3@6", "Tanh_3@6")) is None
    assert places(RAN.replace("Relu_3@7 ", "")) is None
    assert places(RAN.removesuffix("Loop_3@8")) is None
    assert places(RAN + " Exp_4@20") is None
    assert places(RAN.replace("Neg_0@3", "Abs_0@3")) is None


def test_kernels_that_fit_two_branches_are_at_no_place() -> None:
    twin = onnx.ModelProto()
    twin.CopyFrom(MODEL)
    branches = twin.graph.node[1].attribute
    (either,) = (branch.g for branch in branches if len(branch.g.node) == 2)
    either.node[1].op_type, either.node[1].input[0] = "Neg", "a"
    del either.node[0]
    executed = ExecutedGraph(read_program(twin).program, in_run_order=True)
    assert executions_by_order(executed, kernels(RAN)) is None


def test_kernels_of_a_block_that_two_orders_fit_are_told_only_if_they_did_the_same() -> None:
    told = kernels(RAN)
    assert [kernel.node for kernel in told[3:5]] == ["Neg_0", "Neg_1"]
    told[3] = told[3]._replace(wrote=[("float", [2])])
    assert executions_by_order(EXECUTED, told) is None


def test_a_block_that_was_left_alone_ran_in_the_order_that_follows_from_its_file() -> None:
    nodes = "r = Exp(x)  q = Sqrt(x)  y = Add(r, q)"
    head = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4] x, bool c) => (float[4] b) { b = If (c) <then_branch = t () => (float[4] y)
        {"""
    tail = "}, else_branch = e () => (float[4] z) { z = Neg(x) }> }"
    program = read_program(onnx.parser.parse_model(head + nodes + tail)).program
    told = kernels("Sqrt_1@2 Exp_0@3 Add_2@4 If_0@1")
    events = executions_by_order(ExecutedGraph(program, in_run_order=True), told)
    assert events is not None
    assert [event.outputs[0].rpartition("/")[2] for event in events] == ["q", "r", "y", "b"]


def test_a_run_says_of_nodes_without_names_what_a_run_of_the_dump_says(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL.SerializeToString())
    assert not any(node.name for node in MODEL.graph.node)
    with BaselineRun(path, load_model(path), Check("cpu"), Binding()) as run:
        found = read_baseline_graph(run.result())
    assert not any("again" in warning for warning in found.warnings)
    again = observed_graph(path, DEFAULTS, RunConditions())
    assert found.executed.observed is not None
    assert found.executed.observed == again.observed
