"""Compare, replay, measure and predict on the CUDA provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

from benchmarks.in_place import probe_table
from memplan_cli import api
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import CUDA, RuntimeSettings
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.replay.replay import replay
from memplan_cli.runtime.run.run_model import process_of_run, record_run
from memplan_cli.runtime.simulate.predict import ExecutedGraph, predict_peaks
from memplan_cli.runtime.simulate.regions import OWN_INITIALIZERS, one_region
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import RunConditions
from memplan_cli.settings.settings import Settings
from runs import compared

if TYPE_CHECKING:
    from pathlib import Path

ON_CUDA = RunConditions(CUDA)

PLAIN = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "execution_order": "PRIORITY_BASED",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
    }
)

NET = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,8,32,32] x) => (float[2,10] y)
{ a = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)  b = Relu(a)
  c = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(b)  d = Sigmoid(c)  e = Mul(c, d)
  f = GlobalAveragePool(e)  g = Flatten(f)  y = MatMul(g, v) }"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model = onnx.ModelProto()
    text = NET.replace(
        "(float[2,10] y)", "(float[2,10] y) <float[1] w = {0}, float[1] v = {0}>"
    )
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    weights = {"w": (16, 8, 3, 3), "v": (16, 10)}
    del model.graph.initializer[:]
    for name, shape in weights.items():
        drawn = generator.standard_normal(shape, dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(drawn, name))
    path = tmp_path / "net.onnx"
    onnx.save(model, str(path))
    return path


def test_auto_is_cuda_here() -> None:
    assert resolve_provider("auto") == CUDA


def test_the_rewritten_model_gives_the_same_bits(net: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    api.optimize(net, Settings(), out=out, check=None)
    got = compared(net, out, Check("cuda"))
    assert (got.status, got.bit_identical, got.provider) == ("passed", True, CUDA)


def test_the_plan_holds_in_device_memory(net: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    plan = api.optimize(net, Settings(), out=out, check=None).plan
    result = replay(out, plan, ON_CUDA)
    assert (result.status, result.reason, result.coverage.placed > 3) == ("passed", "", True)


def test_the_counters_say_something(net: Path) -> None:
    peaks = record_run(net, PLAIN, ON_CUDA, "arena").peaks
    assert peaks.held is not None
    assert peaks.first_run_peak is not None
    assert 0 < peaks.first_run_peak <= peaks.held


def test_the_arena_has_the_first_region_that_it_was_registered_with(net: Path) -> None:
    settings = PLAIN.updated(
        RuntimeSettings(arena=one_region(3 << 20), session_config=OWN_INITIALIZERS)
    )
    peaks = record_run(net, settings, ON_CUDA, "arena").peaks
    assert peaks.held is not None
    assert peaks.weights is not None
    assert peaks.held - peaks.weights == 3 << 20


def test_a_run_beyond_the_limit_of_the_arena_is_one_message(net: Path) -> None:
    limited = PLAIN.updated(RuntimeSettings(arena={"max_mem": 32 << 10}))
    with pytest.raises(
        RuntimeUnavailableError, match="out of device memory: no room for"
    ) as error:
        record_run(net, limited, ON_CUDA, "arena")
    assert "bfc_arena" not in str(error.value)


def test_predicted_settings_work_here(net: Path) -> None:
    choice = api.settings(net, provider="cuda")
    assert int(choice.settings.arena["max_mem"]) > 0
    peaks = record_run(net, choice.settings, ON_CUDA, "arena").peaks
    assert peaks.first_run_peak is not None


def test_the_prediction_is_near_what_is_measured(net: Path) -> None:
    # The in-place table of CUDA is its own; the error is printed, and bounded here.
    predicted = predict_peaks(
        ExecutedGraph(read_program(load_model(net)).program, provider=CUDA), PLAIN
    )
    measured = record_run(net, PLAIN, ON_CUDA, "arena").peaks
    assert predicted.first_run_peak is not None
    assert measured.first_run_peak is not None
    print(f"first run: predicted {predicted.first_run_peak}, is {measured.first_run_peak}")
    assert 0.5 <= predicted.first_run_peak / measured.first_run_peak <= 2.0


def test_the_in_place_table_can_be_probed() -> None:
    table = probe_table(CUDA)
    assert "Relu" in table["in_place"]
    assert table["alias"].get("Reshape") == [0]


def test_a_process_says_what_it_took_on_the_device(net: Path) -> None:
    process = process_of_run(net, RuntimeSettings(), ON_CUDA)
    assert process is not None
    assert process.device is not None
    assert process.device > 1_000_000
