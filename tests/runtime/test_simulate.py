from __future__ import annotations

import onnx
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocation_traces import trace_of_pairs
from memplan_cli.errors import SettingsError, UnknownSizeError
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.simulate.allocators import ALLOCATORS, simulate
from memplan_cli.runtime.simulate.predict import ExecutedGraph

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
CHAIN = "g (float[1024] x) => (float[1024] y) { a = Exp(x) b = Neg(a) c = Exp(b) y = Neg(c) }"


def executed(text: str) -> ExecutedGraph:
    return ExecutedGraph(read_program(onnx.parser.parse_model(HEAD + text)).program)


def test_best_fit_needs_no_more_than_what_is_live_on_a_chain() -> None:
    result = simulate(executed(CHAIN), "best-fit")
    assert (result.held, result.live, result.requests) == (8192, 8192, 4)
    assert result.fragmentation == 0.0


def test_the_runtime_takes_its_first_region_whole() -> None:
    assert simulate(executed(CHAIN), "ort").held == 1 << 20


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(0, 9)), min_size=1, max_size=40))
def test_no_allocator_takes_less_than_what_is_live(pairs: list[tuple[int, int]]) -> None:
    trace = trace_of_pairs(pairs, 1)
    for allocate in ALLOCATORS.values():
        assert allocate(trace) >= trace.live_peak
    assert ALLOCATORS["best-fit"](trace) <= sum(-(-size // 256) * 256 for size, _ in pairs)


def test_an_unknown_allocator_names_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'tlsf'") as caught:
        simulate(executed(CHAIN), "tlsf")
    assert "best-fit" in caught.value.hint


def test_a_size_that_data_decides_is_named() -> None:
    graph = executed(
        "g (float[8] x) => (float y) { n = NonZero(x) y = ReduceSum<keepdims=0>(x) }"
    )
    with pytest.raises(UnknownSizeError, match="n is not known"):
        simulate(graph, "bfc")
