"""Settings that were measured on a provider are predicted, and written, for that provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import CUDA, Peaks, RuntimeSettings
from memplan_cli.reporting.commands.runtime import SETTINGS
from memplan_cli.runtime import facts
from memplan_cli.runtime.measuring import measure
from memplan_cli.runtime.measuring.measure import Trial
from memplan_cli.runtime.steer import Recommendation

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_settings_are_for_the_provider_that_they_were_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def executed_run(_model: Path, _settings: RuntimeSettings, trial: Trial) -> None:
        asked.append(trial.runs_on)

    found = Recommendation(RuntimeSettings(), Peaks(1, 1), Peaks(1, 1))
    monkeypatch.setattr(measure, "resolve_provider", {"cuda": CUDA}.__getitem__)
    monkeypatch.setattr(facts, "executed_run", executed_run)
    monkeypatch.setattr(facts, "recommend", lambda *_: found)
    monkeypatch.setattr(facts, "_unoptimised", lambda *_: None)
    monkeypatch.setattr(facts, "_less_fused", lambda *_: None)
    best = facts.best_settings(Path("m.onnx"), Binding(), Trial(provider="cuda"))
    assert asked == [CUDA]
    assert f"providers=[({CUDA!r}" in SETTINGS["text"](best, "m.onnx")
    assert json.loads(SETTINGS["json"](best, "m.onnx"))["provider"] == CUDA


def test_a_search_counts_each_process_and_says_so(samples: Path) -> None:
    told: list[str] = []
    trial = Trial(runs=1, timing_runs=0)
    facts.best_settings(samples / "train_mlp.onnx", Binding(), trial, told.append)
    assert len(told) > 2
    assert [text.partition(", ")[2].split()[0] for text in told] == [
        str(at) for at in range(len(told))
    ]
    assert all(text.startswith(facts.TUNING) for text in told)


BRANCHES = """g (float[256] x) => (y) {
    at = Constant<value = float {0.5}>() low = ReduceMin<keepdims = 0>(x) some = Less(low, at)
    a = Exp(x)
    y = If (some) <
        then_branch = t () => (p) { b = Neg(a) c = Exp(b) p = Add(b, c) },
        else_branch = e () => (q) { q = Neg(a) }> }"""


def test_a_file_with_branches_is_searched_by_what_its_run_decided(
    save: Callable[..., Path],
) -> None:
    """Without, nothing is predicted, and only a few arenas are tried."""
    trial = Trial(provider="cpu", timing_runs=0)
    found = facts.settings_as_written(save(BRANCHES), Binding(), trial)
    assert found.predicted.held is not None
    assert found.measured.held is not None
    assert not found.notes
