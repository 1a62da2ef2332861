"""A memory pattern is taken where runs are short, their sizes are said and no more is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan_cli import Check, Settings, api
from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import metadata_of
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.settings_search import predicted
from memplan_cli.runtime.settings_search.predicted import (
    predict_settings,
    without_pattern_if_assumed,
    without_pattern_if_recorded,
)
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.plan import Plan

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
CHAIN = "a = Exp(x) b = Neg(a) c = Sin(b) d = Add(b, c) e = Cos(d) y = Neg(e)"
ANY = RuntimeSettings()


def executed(
    nodes: str, dims: str = "64", provider: str = "CPUExecutionProvider"
) -> ExecutedGraph:
    text = HEAD + f"g (float[{dims}] x) => (float[{dims}] y) {{ {nodes} }}"
    program = read_program(onnx.parser.parse_model(text)).program
    return ExecutedGraph(program, provider=provider)


def has_pattern(graph: ExecutedGraph, base: RuntimeSettings = ANY) -> bool:
    return bool(predict_settings(graph, base).settings.session["enable_mem_pattern"])


def test_a_short_run_has_a_pattern_and_one_region_for_its_first_run_and_its_block() -> None:
    graph = executed(CHAIN)
    best = predict_settings(graph, ANY)
    peaks = predict_peaks(graph, best.settings)
    assert best.settings.session["enable_mem_pattern"] is True
    assert best.predicted.held == best.settings.arena["initial_chunk_size_bytes"]
    assert best.predicted.held == peaks.held
    assert best.predicted.steady_peak == peaks.steady_peak
    assert (peaks.steady_peak or 0) + (4 << 10) <= best.predicted.held, (
        "room for unpredicted workspace"
    )


def test_settings_compete_by_what_they_take_without_a_pattern() -> None:
    graph = executed(CHAIN)
    on, off = (
        predict_settings(graph, ANY, {}),
        predict_settings(graph, without_pattern_if_assumed(ANY, {"batch"}), {}),
    )
    assert (on.predicted.held or 0) > (off.predicted.held or 0)
    assert on.rank == off.rank


def test_a_long_run_has_none_since_it_would_not_be_shorter() -> None:
    def summed(count: int) -> ExecutedGraph:
        nodes = CHAIN.replace("y = Neg(e)", "y = ReduceSum<keepdims = 1>(e)")
        text = HEAD + f"g (float[{count}] x) => (float[1] y) {{ {nodes} }}"
        return ExecutedGraph(read_program(onnx.parser.parse_model(text)).program)

    assert has_pattern(summed(64))
    assert not has_pattern(summed(4_000_000))


def test_a_pattern_that_holds_more_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predicted, "_MAX_BYTES_FOR_TIME", 0)
    assert not has_pattern(executed(CHAIN))


def test_workspace_beside_the_block_is_held_too() -> None:
    graph = executed("[p] a = Exp(x) [q] b = Neg(a) [r] y = Sin(b)")
    best = predict_settings(graph, ANY, {"q": 1 << 14})
    assert best.settings.session["enable_mem_pattern"] is True
    block = 2 * 256
    assert (best.predicted.held or 0) >= block + (1 << 14)


def test_sizes_that_were_assumed_have_none() -> None:
    assert not has_pattern(executed(CHAIN), without_pattern_if_assumed(ANY, {"batch"}))
    assert has_pattern(executed(CHAIN), without_pattern_if_assumed(ANY, ()))


def test_a_file_that_says_off_keeps_it_off() -> None:
    off = RuntimeSettings(session={"enable_mem_pattern": False})
    assert not has_pattern(executed(CHAIN), without_pattern_if_recorded(ANY, off))
    assert has_pattern(executed(CHAIN), without_pattern_if_recorded(ANY, ANY))


def test_other_providers_and_what_only_data_decides_have_none() -> None:
    assert not has_pattern(executed(CHAIN, provider=CUDA))
    text = HEAD + "g (float[8] x) => (int64[1,n] y) { y = NonZero(x) }"
    by_data = ExecutedGraph(read_program(onnx.parser.parse_model(text)).program)
    assert not has_pattern(by_data)
    branch = """at = Constant<value = float {0.5}>() low = ReduceMin<keepdims = 0>(x)
        some = Less(low, at) a = Exp(x)
        y = If (some) <then_branch = t () => (p) { p = Neg(a) },
                       else_branch = e () => (q) { q = Exp(a) }>"""
    assert not has_pattern(executed(branch))


@settings(deadline=None, max_examples=16)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=24))
def test_what_an_arena_is_said_to_hold_is_what_two_runs_make_it_hold(
    pairs: list[tuple[int, int]],
) -> None:
    names, nodes = ["x"], []
    for number, (one, other) in enumerate(pairs):
        left, right = names[one % len(names)], names[other % len(names)]
        nodes.append(f"v{number} = Concat<axis = 0>({left}, {right})")
        nodes.append(f"w{number} = ReduceSum<keepdims = 1>(v{number})")
        names += [f"w{number}"] if number % 3 else [f"v{number}", f"w{number}"]
    text = (
        f"g (float[64] x) => (float[1] y) {{ {' '.join(nodes)} y = Neg(w{len(pairs) - 1}) }}"
    )
    graph = ExecutedGraph(read_program(onnx.parser.parse_model(HEAD + text)).program)
    best = predict_settings(graph, ANY)
    assert best.predicted.held == predict_peaks(graph, best.settings, {}).held


SEQ = """g (float[n, 16] x) => (float[n, 16] y) {
    a = Exp(x) b = MatMul(a, w) c = Add(a, b) d = Relu(c) e = MatMul(d, w) f = Add(d, e)
    s = Softmax(f) y = Mul(s, x) }"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    parsed = onnx.parser.parse_model(HEAD + SEQ)
    weight = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(parsed, path := tmp_path / "m.onnx")
    return path


def written(model: Path, target: str, **dims: int) -> Plan:
    asked = Settings(target=target, dims=dims)  # type: ignore[arg-type]
    check = Check(provider="cpu")
    return api.optimize(model, asked, out=model.with_name("o.onnx"), check=check).plan


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_what_is_written_at_said_sizes_holds_what_was_predicted(
    model: Path, target: str
) -> None:
    facts = written(model, target, n=4).report.runtime
    assert facts is not None
    seen, told = facts.observed["optimized"], facts.predicted["optimized"]
    assert facts.settings is not None
    assert facts.settings.session["enable_mem_pattern"] is True
    assert (seen.held or 0) - (seen.weights or 0) == told.held
    assert (seen.first_run_peak, seen.steady_peak) == (told.first_run_peak, told.steady_peak)
    recorded = recorded_settings(metadata_of(load_model(model.with_name("o.onnx"))))
    assert recorded is not None
    assert recorded.settings == facts.settings
    assert api.settings(model.with_name("o.onnx"), Settings(dims={"n": 4})).settings.session[
        "enable_mem_pattern"
    ]


def test_what_is_written_at_assumed_sizes_has_none(model: Path) -> None:
    report = written(model, "portable").report
    assert report.runtime is not None
    assert report.runtime.settings is not None
    assert report.runtime.settings.session["enable_mem_pattern"] is False
    within = Settings(bounds={"n": DimRange(1, 8)})
    out = model.with_name("o.onnx")
    ranged = api.optimize(model, within, out=out, check=Check(provider="cpu")).plan.report
    assert ranged.runtime is not None
    assert ranged.runtime.settings is not None
    assert ranged.runtime.settings.session["enable_mem_pattern"] is False


def test_copies_under_a_budget_have_none(tmp_path: Path) -> None:
    text = """g (float[8, 16] x) => (float[8, 16] y) {
        a = Exp(x) b = Concat<axis = 1>(a, a, a) c = Exp(b) d = Relu(c)
        e = ReduceSum<keepdims = 0>(d) y = Mul(a, e) }"""
    onnx.save(onnx.parser.parse_model(HEAD + text), path := tmp_path / "m.onnx")
    asked = Settings(recompute="auto", budget=3300)
    report = api.optimize(path, asked, check=Check(provider="cpu")).plan.report
    assert report.recompute.nodes
    assert report.runtime is not None
    assert report.runtime.settings is not None
    assert report.runtime.settings.session["enable_mem_pattern"] is False
