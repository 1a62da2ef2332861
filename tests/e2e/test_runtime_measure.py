from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.workers.spec import RunConditions

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_DISABLE_ALL",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
    }
)
ON_CPU = RunConditions()

# Exp allocates (4096 bytes each); at most two of the chain are alive.
CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
g (float[1024] x) => (float[1024] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  y = Neg(c) }"""


def test_the_first_run_needs_the_two_tensors_that_meet(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), str(path))
    peaks = record_run(path, PLAIN, ON_CPU, "arena", "time").peaks
    assert (peaks.first_run_peak, peaks.steady_peak, peaks.weights) == (8192, 8192, 0)
    assert peaks.held is not None
    assert peaks.held >= 8192
    assert peaks.milliseconds is not None


def test_arena_settings_reach_the_arena(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), str(path))
    exact = RuntimeSettings(arena={"arena_extend_strategy": "kSameAsRequested"})
    settings = PLAIN.updated(exact)
    assert record_run(path, settings, ON_CPU, "arena").peaks.held == 8192


def test_every_kernel_of_the_first_run_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), str(path))
    (kernels,) = record_run(path, PLAIN, ON_CPU, "kernels").kernels or ()
    assert [kernel.node.split("_")[0] for kernel in kernels] == ["Exp", "Neg"] * 2
    assert [list(map(list, kernel.wrote)) for kernel in kernels] == [[["float", [1024]]]] * 4
