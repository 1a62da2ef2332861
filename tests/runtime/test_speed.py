"""Whether a file takes longer as it stands is told by its graph and the runtime's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser
import pytest

from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.run.timing import is_slower_unoptimized
from memplan_cli.runtime.simulate.predict import ExecutedGraph

if TYPE_CHECKING:
    from memplan_cli.core.program import Program

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft.nchwc" : 1]>\n'


def program(text: str) -> Program:
    return read_program(onnx.parser.parse_model(HEAD + text)).program


LARGE = program("""g (float[256,256] x, float[256,256] w) => (float[256,256] y)
    { t = Transpose(w)  m = MatMul(x, t)  y = Exp(m) }""")

FUSED = program("""g (float[256,256] x, float[256,256] w) => (float[256,256] y)
    { m = MatMul(x, w)  y = Exp(m) }""")

BLOCKED = program("""g (float[256,256] x, float[256,256] w) => (float[256,256] y)
    { m = com.microsoft.nchwc.Conv(x, w)  y = Exp(m) }""")


@pytest.mark.parametrize(
    ("optimized", "slower"), [(LARGE, False), (FUSED, True), (BLOCKED, True)]
)
def test_bytes_that_are_no_longer_moved_and_blocked_layouts_cost_time(
    optimized: Program,
    slower: bool,  # noqa: FBT001 - what is expected
) -> None:
    assert (
        is_slower_unoptimized(LARGE, {}, ExecutedGraph(optimized, in_run_order=True)) is slower
    )


def test_a_graph_with_fewer_ops_is_not_slower() -> None:
    assert not is_slower_unoptimized(FUSED, {}, ExecutedGraph(LARGE, in_run_order=True))
