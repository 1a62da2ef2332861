"""Which settings of a written model a search takes, by predicted and by measured scores."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from builders import parse
from memplan_cli import Check, Settings, api
from memplan_cli.core.results.observations import (
    CPU,
    CUDA,
    Peaks,
    RuntimeSettings,
    TimeRatio,
)
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.reporting.commands.settings import SETTINGS
from memplan_cli.runtime.run.compare import run_written
from memplan_cli.runtime.settings_search.predicted import SettingsChoice
from memplan_cli.runtime.simulate.trace import weight_bytes
from memplan_cli.runtime.verification import confirm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from memplan_cli.runtime.run.compare import WrittenRun
    from memplan_cli.runtime.verification.confirm import Confirmation
    from memplan_cli.runtime.workers.spec import SessionSpec

ON = RuntimeSettings()


def test_weights_are_initializers_and_constants_of_a_known_size() -> None:
    model = parse("""g (float[2] x) => (float[4] y) <float[2] w = {1, 2}> {
        c = Constant <value_floats = [1.0, 2.0]> ()
        a = Add (x, w)  y = Concat <axis = 0> (a, c) }""")
    assert weight_bytes(read_program(model).program, {}) == 16


BRANCHES = """g (float[256] x) => (y) {
    at = Constant<value = float {0.5}>() low = ReduceMin<keepdims = 0>(x) some = Less(low, at)
    a = Exp(x)
    y = If (some) <
        then_branch = t () => (p) { b = Neg(a) c = Exp(b) p = Add(b, c) },
        else_branch = e () => (q) { q = Neg(a) }> }"""


def test_measured_settings_run_the_model_under_each_choice_and_take_no_more_than_predicted_ones(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, costs = save(BRANCHES), list[confirm.MeasuredCost]()
    real = confirm.measured_cost

    def recorded_cost(confirmation: Confirmation) -> confirm.MeasuredCost:
        costs.append(real(confirmation))
        return costs[-1]

    monkeypatch.setattr(confirm, "is_slower", lambda *_: False)
    monkeypatch.setattr(confirm, "measured_cost", recorded_cost)
    by_run, by_prediction = (
        api.settings(model, Settings(), Check("cpu", search=way))
        for way in ("measured", "predicted")
    )
    assert len(costs) > 2
    assert by_run.observed is not None
    assert by_prediction.observed is not None
    assert by_run.predicted.held is not None, "branches are those of the run"
    assert min(costs) == (0, (by_run.observed.first_run_peak or 0) + held(by_run.observed))
    assert held(by_run.observed) <= held(by_prediction.observed)


def test_of_slow_settings_without_processor_times_the_quicker_cost_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirm, "time_ratio", lambda *_: None)

    def cost(milliseconds: float) -> confirm.MeasuredCost:
        spec = SimpleNamespace(session=None, inputs=[None])
        before = SimpleNamespace(spec=spec, peaks=Peaks(1, 1, milliseconds=1.0))
        after = SimpleNamespace(spec=spec, peaks=Peaks(1, 1, milliseconds=milliseconds))
        baseline = SimpleNamespace(record=before, check=Check())
        confirmation: Any = SimpleNamespace(
            passed=True,
            prediction=SimpleNamespace(baseline=baseline),
            run=SimpleNamespace(record=after),
        )
        return confirm.measured_cost(confirmation)

    assert cost(2.0) < cost(3.0)


def held(peaks: Peaks) -> int:
    return (peaks.held or 0) - (peaks.weights or 0)


@pytest.mark.parametrize("other", ["bits", "time"])
def test_settings_with_other_bits_or_longer_runs_are_not_taken(
    save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    model = save(BRANCHES)

    def run_and_change(*arguments: Any, **options: Any) -> WrittenRun:  # noqa: ANN401
        run = run_written(*arguments, **options)
        if other == "bits" and not run.is_unoptimized:
            return replace(
                run, verdict=replace(run.verdict, status="failed", max_abs_diff=1.0)
            )
        return run

    def ratio(_: object, after: SessionSpec, *__: object) -> TimeRatio:
        median = 1.0 if "graph_optimization_level" in after.settings.session else 1.5
        return TimeRatio(median, median, median, 5)

    monkeypatch.setattr(confirm, "run_written", run_and_change)
    monkeypatch.setattr(confirm, "is_slower", lambda *_: other == "time")
    monkeypatch.setattr(confirm, "time_ratio", ratio)
    found = api.settings(model, Settings(), Check("cpu", search="measured"))
    assert found.settings.session["graph_optimization_level"] == "ORT_DISABLE_ALL"


def test_settings_are_written_for_their_provider() -> None:
    for provider in (CPU, CUDA):
        found = SettingsChoice(ON, Peaks(1, 1), provider=provider)
        assert f"providers=[({provider!r}" in SETTINGS["text"](found, "m.onnx")
