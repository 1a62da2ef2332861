"""Predicted equals measured on the real networks that the onnx package brings along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.graph.dumps import executed_graph
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.predict import predict_peaks
from memplan_cli.runtime.workers.spec import RunConditions
from shared_models import LIGHT, with_random_weights

if TYPE_CHECKING:
    from pathlib import Path

QUICK = {"light_shufflenet", "light_squeezenet"}
MODELS = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.slow])
    for path in sorted(LIGHT.glob("*.onnx"))
]


@pytest.mark.parametrize("source", MODELS)
def test_every_peak_of_a_real_network_is_predicted(tmp_path: Path, source: Path) -> None:
    if not MODELS:
        pytest.skip("this onnx has no light models")
    path = tmp_path / "model.onnx"
    with_random_weights(source, path)
    plain = RuntimeSettings(
        session={"graph_optimization_level": "ORT_DISABLE_ALL", "intra_op_num_threads": 1}
    )
    graph = executed_graph(path, plain, {})
    for switch in (True, False):
        chosen = plain.updated(
            RuntimeSettings(session={"enable_mem_pattern": switch, "enable_mem_reuse": switch})
        )
        predicted = predict_peaks(graph, chosen)
        measured = record_run(path, chosen, RunConditions(), "arena").peaks
        assert (predicted.first_run_peak, predicted.steady_peak) == (
            measured.first_run_peak,
            measured.steady_peak,
        )


MIB = 1 << 20


@pytest.mark.parametrize("source", MODELS)
@pytest.mark.parametrize("growth", ["kNextPowerOfTwo", "kSameAsRequested"])
def test_held_is_predicted_within_one_region_of_the_arena(
    tmp_path: Path, source: Path, growth: str
) -> None:
    path = tmp_path / "model.onnx"
    with_random_weights(source, path)
    plain = RuntimeSettings(
        session={"graph_optimization_level": "ORT_DISABLE_ALL", "intra_op_num_threads": 1},
        arena={"arena_extend_strategy": growth},
    )
    graph = executed_graph(path, plain, {})
    without_pattern = plain.updated(RuntimeSettings(session={"enable_mem_pattern": False}))
    workspace = record_run(path, without_pattern, RunConditions(), "arena").workspace
    assert workspace, "kernels of this net ask for some"
    predicted = predict_peaks(graph, plain, workspace=workspace).held
    measured = record_run(path, plain, RunConditions(), "arena").peaks
    assert predicted is not None
    assert measured.held is not None
    taken = measured.held - (measured.weights or 0)
    if growth == "kNextPowerOfTwo":
        # Regions double from a mebibyte on: 1, 3, 7, 15 MiB are held.
        assert abs((predicted // MIB).bit_length() - (taken // MIB).bit_length()) <= 1
    else:
        assert abs(predicted - taken) <= max(workspace.values())
