"""Settings for CUDA are predicted without a GPU, each key in the scope where ONNX Runtime reads it."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli import api
from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.reporting.snippets import c_snippet, settings_snippet
from memplan_cli.runtime.settings_search.predicted import predict_settings, with_limit
from memplan_cli.runtime.simulate.arena import ArenaSettings, held_after_runs
from memplan_cli.runtime.simulate.predict import ExecutedGraph, session_traces
from memplan_cli.runtime.simulate.regions import EXACT
from memplan_cli.runtime.simulate.trace import with_copied_inputs
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20

CONVOLUTION = """g (float[1,1,64,64] x) => (float[1,1,64,64] y) <float[1,1,1,1] w = {0.5}>
    { a = Conv(x, w)  b = Relu(a)  c = Conv(b, w)  y = Add(c, a) }"""

PLAIN = "g (float[512,512] x, int64 unused) => (float[512,512] y) { a = Exp(x) b = MatMul(a, x) y = Exp(b) }"


def executed(text: str, provider: str = CUDA) -> ExecutedGraph:
    return ExecutedGraph(read_program(parse(text)).program, provider=provider)


def test_the_limit_has_room_for_weights_tensors_and_as_much_again() -> None:
    graph = executed(CONVOLUTION)
    best = with_limit(predict_settings(graph, RuntimeSettings()), graph)
    held, limit = best.predicted.held, int(best.settings.arena["max_mem"])
    assert held is not None
    weights = 4
    assert 0 <= limit - (weights + 2 * held + 64 * MIB) < 256


def test_the_arena_has_room_for_the_copies_of_the_inputs() -> None:
    graph = executed(PLAIN)
    best = predict_settings(graph, RuntimeSettings())
    trace = session_traces(graph, best.settings, {}).first
    inputs = [4 * 512 * 512, 8]
    arena = ArenaSettings.from_settings(best.settings.arena)
    assert held_after_runs(with_copied_inputs(trace, inputs), arena) == best.predicted.held
    on_cpu = predict_settings(replace(graph, provider=CPU), RuntimeSettings())
    assert (best.predicted.held or 0) >= trace.rounded_peak + MIB
    assert (on_cpu.predicted.held or 0) < (best.predicted.held or 0) + MIB


def test_copies_of_inputs_live_as_long_as_the_run() -> None:
    trace = session_traces(executed(PLAIN), RuntimeSettings(), {}).first
    copied = with_copied_inputs(trace, [1024, 0, 512])
    assert copied.rounded_peak == trace.rounded_peak + 1536
    assert [step.is_free for step in copied.steps[:2]] == [False, False]
    assert [step.is_free for step in copied.steps[-2:]] == [True, True]
    assert copied.sizes == (1024, 0, 512, *trace.sizes)


def test_options_of_convolutions_are_set_where_there_are_some() -> None:
    with_some, without = (
        predict_settings(executed(text), RuntimeSettings()).settings.provider
        for text in (CONVOLUTION, PLAIN)
    )
    assert with_some == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "cudnn_conv_use_max_workspace": "0",
    }
    assert without == {}


def test_on_the_cpu_nothing_of_this_is_set() -> None:
    settings = predict_settings(executed(CONVOLUTION, CPU), RuntimeSettings()).settings
    assert settings.provider == {}
    assert "max_mem" not in settings.arena


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(parse(CONVOLUTION), path)
    return path


def test_settings_for_cuda_need_no_gpu_and_say_that_nothing_was_measured(model: Path) -> None:
    found = api.settings(model, provider="cuda")
    assert found.provider == CUDA
    assert any("never measured" in note for note in found.notes)
    assert "graph_optimization_level" not in found.settings.session
    python, c = (
        code(found.settings, "m.onnx", CUDA) for code in (settings_snippet, c_snippet)
    )
    ast.parse(python)
    for text in (python, c):
        register, create = text.split("session.use_env_allocators")
        assert "max_mem" in register
        assert "cudnn_conv_algo_search" in create
    on_cpu = api.settings(model)
    assert (on_cpu.provider, on_cpu.settings.provider) == (CPU, {})
    assert not any("never measured" in note for note in on_cpu.notes)


def test_sizes_that_depend_on_data_have_no_limit() -> None:
    graph = executed("g (float[8] x) => (int64[1,n] y) { y = NonZero(x) }")
    best = with_limit(predict_settings(graph, RuntimeSettings()), graph)
    assert best.settings.arena == EXACT


def test_sizes_that_were_assumed_have_no_limit(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(parse(CONVOLUTION.replace("1,1,64,64", "n,1,64,64")), path)
    assert "max_mem" not in api.settings(path, provider="cuda").settings.arena
    assert "max_mem" in api.settings(path, provider="cuda", dims={"n": 2}).settings.arena


def test_the_command_prints_them(model: Path) -> None:
    done = memplan("settings", model, "--provider", "cuda")
    assert done.exit_code == 0, done.output
    assert "create_and_register_allocator_v2" in done.output
    assert "never measured" in " ".join(done.output.split())
