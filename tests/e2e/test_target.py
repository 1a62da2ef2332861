"""Optimise for one provider: the runtime's own graph competes with the graph as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from memplan_cli import Check, Settings, api
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.session import probe_provider

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.settings import TargetChoice

CPU = Settings(target="cpu")


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in load_model(path).metadata_props}


def test_the_graph_optimised_offline_says_what_it_is_tied_to(
    samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "net.onnx"
    for _ in range(2):  # the second time, its own data is in the way
        done = api.optimize(samples / "branchy_cnn.onnx", CPU, out=out, check=None)
        assert done.model == out
    assert metadata(out)["pkg.memplan.runtime"].startswith("onnxruntime ")
    assert "pkg.memplan.hardware" in metadata(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "net.json",
        "net.onnx",
        "net.onnx.data",
    ]


def test_the_better_of_both_graphs_is_proved_and_measured(
    samples: Path, tmp_path: Path
) -> None:
    check = Check(provider="cpu")
    done = api.optimize(
        samples / "branchy_cnn.onnx", CPU, out=tmp_path / "net.onnx", check=check
    )
    assert done.passed
    report = done.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert report.runtime is not None
    before, after = report.runtime.observed["original"], report.runtime.observed["optimized"]
    assert (after.first_run_peak or 0) <= (before.first_run_peak or 0)
    assert (after.held or 0) < (before.held or 0)


def test_a_provider_that_is_not_there_is_an_error(samples: Path, tmp_path: Path) -> None:
    if probe_provider("CUDAExecutionProvider").works:
        pytest.skip("this machine has CUDA")
    with pytest.raises(RuntimeUnavailableError, match="CUDA"):
        api.optimize(
            samples / "branchy_cnn.onnx",
            replace(CPU, target="cuda"),
            out=tmp_path / "net.onnx",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("check", [None, Check(provider="cpu")])
def test_a_budget_that_cannot_be_met_writes_nothing_for_any_target(
    target: TargetChoice, check: Check | None, samples: Path, tmp_path: Path
) -> None:
    asked = Settings(target=target, recompute="auto", budget=1000)
    out = tmp_path / "net.onnx"
    done = api.optimize(samples / "train_mlp.onnx", asked, out=out, check=check)
    assert not done.passed
    assert list(tmp_path.iterdir()) == []
