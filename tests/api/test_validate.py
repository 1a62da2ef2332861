"""What a proof asks the runtime for: which dims, and which settings it may try."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

from builders import parse
from memplan_cli import Settings, optimize
from memplan_cli.api import validate
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import (
    CPU,
    RuntimeSettings,
    TimeRatio,
    Validation,
)
from memplan_cli.core.results.report import InterfaceTensor
from memplan_cli.core.serialization import to_json
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import PlanError, RuntimeUnavailableError
from memplan_cli.runtime.run.baseline import second_dims
from memplan_cli.runtime.run.timing import ROUNDS
from memplan_cli.runtime.settings_search.written_model import WrittenModel
from memplan_cli.runtime.verification import verify
from memplan_cli.runtime.verification.verify import Verification
from story import memplan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.core.bindings import Binding
    from memplan_cli.runtime.workers.spec import SessionSpec
    from memplan_cli.settings.choices import TargetChoice

SAME = Validation("passed", CPU, max_abs_diff=0.0, bit_identical=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Stand in for the runtime, and write down what it is asked for."""
    words: dict[str, object] = {}

    def compare(_: Path, written: WrittenModel, __: Check, binding: Binding) -> Verification:
        words["written"] = written
        words["dims"] = binding.dims
        second = second_dims(binding)
        words["all"] = [binding.dims, *([] if second is None else [second])]
        return Verification(SAME)

    monkeypatch.setattr(verify, "compare_models", compare)
    return words


def written(samples: Path, folder: Path, dims: Mapping[str, int]) -> tuple[Path, Path]:
    """Write a model of dims that are free in its file; return it and its original."""
    original, out = samples / "dynamic_batch.onnx", folder / "net.onnx"
    optimize(original, Settings(dims=dims), out=out, check=None)
    return out, original


def test_both_models_run_at_the_dims_of_the_plan(
    samples: Path, tmp_path: Path, asked: dict[str, object]
) -> None:
    validate(*written(samples, tmp_path, {"batch": 5}), Check())
    assert asked["dims"] == {"batch": 5}


@pytest.mark.parametrize(
    ("bounds", "ran"),
    [
        ((16, 32), [{"batch": 16}, {"batch": 17}]),
        ((1, 64), [{"batch": 1}, {"batch": 2}]),
        ((1, 2), [{"batch": 1}, {"batch": 2}]),
        ((1, 1), [{"batch": 1}]),
    ],
)
def test_both_models_run_inside_the_bounds_of_the_plan(
    samples: Path,
    tmp_path: Path,
    asked: dict[str, object],
    bounds: tuple[int, int],
    ran: list[dict[str, int]],
) -> None:
    original, out = samples / "dynamic_batch.onnx", tmp_path / "net.onnx"
    optimize(original, Settings(bounds={"batch": DimRange(*bounds)}), out=out, check=None)
    validate(out, original, Check(), ["measure"])
    assert asked["all"] == ran


def test_a_plan_for_bounds_is_replayed_inside_of_them(samples: Path, tmp_path: Path) -> None:
    original, out = samples / "dynamic_batch.onnx", tmp_path / "net.onnx"
    optimize(original, Settings(bounds={"batch": DimRange(1, 1)}), out=out, check=None)
    verdict = validate(out, original, Check("cpu"), ["replay"]).validation
    assert verdict.replay == "passed"
    assert not any("0 tensors bound" in note for note in verdict.notes)


def test_without_a_plan_the_dims_are_assumed(
    samples: Path, tmp_path: Path, asked: dict[str, object]
) -> None:
    out, original = written(samples, tmp_path, {"batch": 5})
    out.with_suffix(".json").unlink()
    validate(out, original, Check())
    assert asked["dims"] == {"batch": 1}


def test_the_plan_of_another_model_says_no_dims(
    samples: Path, tmp_path: Path, asked: dict[str, object]
) -> None:
    out, original = written(samples, tmp_path, {"batch": 5})
    (tmp_path / "other").mkdir()
    other, _ = written(samples, tmp_path / "other", {"batch": 6})
    other.with_suffix(".json").replace(out.with_suffix(".json"))
    with pytest.raises(PlanError, match="belongs to another model"):
        validate(out, original, Check())
    assert "dims" not in asked, "nothing ran"


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_what_optimization_would_undo_is_measured_as_written(
    samples: Path, tmp_path: Path, asked: dict[str, object], target: TargetChoice
) -> None:
    original, out = samples / "branchy_cnn.onnx", tmp_path / "net.onnx"
    optimize(original, Settings(target=target), out=out, check=None)
    validate(out, original, Check(), ["measure"])
    model = asked["written"]
    assert isinstance(model, WrittenModel)
    assert model.unoptimized_only == (target == "cpu")


@pytest.mark.parametrize(("median", "warned"), [(1.05, False), (1.08, True)])
def test_the_time_of_both_is_reported_and_warned_of(
    samples: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    median: float,
    warned: bool,
) -> None:
    found = TimeRatio(median, 1.01, 1.12, ROUNDS)
    seen: list[tuple[str, RuntimeSettings]] = []

    def stub(before: SessionSpec, after: SessionSpec, *_: object) -> TimeRatio:
        seen.extend((run.model.name, run.settings) for run in (before, after))
        return found

    monkeypatch.setattr(verify, "time_ratio", stub)
    original, out = samples / "branchy_cnn.onnx", tmp_path / "net.onnx"
    optimize(original, Settings(), out=out, check=None)
    words = ("validate", out, "--original", original, "--measure")
    data = json.loads(memplan(*words, "--format", "json").stdout)
    assert data["runtime"]["time"] == {
        "median": median, "low": 1.01, "high": 1.12, "rounds": ROUNDS,
    }  # fmt: skip
    (before, plain), (after, chosen) = seen
    assert (before, plain) == (original.name, RuntimeSettings())
    assert (after, to_json(chosen)) == (out.name, data["runtime"]["settings"])
    text = " ".join(memplan(*words).stdout.split())
    assert f"time of a run relative to the original: {median:.2f} (quartiles 1.01" in text
    note = "a run of the written model takes 1.08 times as long as the original"
    assert any(note in said for said in data["notes"]) == (note in text) == warned


def test_that_time_cannot_be_taken_is_said(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stub(*_: object) -> None:
        raise RuntimeUnavailableError("still running after 1 s")

    monkeypatch.setattr(verify, "time_ratio", stub)
    original, out = samples / "branchy_cnn.onnx", tmp_path / "net.onnx"
    optimize(original, Settings(), out=out, check=None)
    found = validate(out, original, Check("cpu"), ["measure"])
    assert found.passed
    assert found.runtime is not None
    assert found.runtime.time is None
    assert any("the time of a run was not measured" in n for n in found.validation.notes)


def test_what_is_measured_is_compared_in_the_same_runs(
    samples: Path, tmp_path: Path, started_jobs: list[str]
) -> None:
    original, out = samples / "branchy_cnn.onnx", tmp_path / "net.onnx"
    before = optimize(original, Settings(), out=out, check=Check("cpu")).plan.report.runtime
    started_jobs.clear()
    found = validate(out, original, Check("cpu"), ["measure"])
    assert found.passed
    assert started_jobs[:2] == ["measured run", "measured run"]
    assert started_jobs[2:] == 2 * ROUNDS * ["measured run"], "the time of both, in turn"
    assert found.runtime is not None
    assert before is not None
    assert found.runtime.settings == before.settings
    for now, then in zip(
        found.runtime.observed.values(), before.observed.values(), strict=True
    ):
        assert (now.first_run_peak, now.held) == (then.first_run_peak, then.held)


def test_a_plan_with_inputs_and_outputs_without_elements_is_accepted(tmp_path: Path) -> None:
    text = "g (float[0,4] x, float[4] b) => (float[0,4] y, float[4] c) { y = Neg(x) d = Exp(b) c = Neg(d) }"
    original, out = tmp_path / "empty.onnx", tmp_path / "out.onnx"
    onnx.save(parse(text), original)
    assert optimize(original, out=out, check=None).model == out
    proof = validate(out, original, Check("cpu"))
    assert proof.validation.passed, proof.validation.notes


def test_bytes_of_outputs_whose_symbol_no_input_has_are_believed(tmp_path: Path) -> None:
    """A graph that was optimized for one size keeps such symbols, and its plan knows the numbers."""
    text = """<ir_version: 10, opset_import: ["" : 20, "test" : 1]>
        g (float[2,4] x) => (float[k,4] y) { a = Neg(x) b = Exp(a) y = test.Cut(b) }"""
    original, out = tmp_path / "cut.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.parser.parse_model(text), original)
    plan = optimize(original, out=out, check=None).plan
    report, memory = plan.report, plan.report.memory
    assert memory.inputs is not None
    assert memory.planned is not None
    total = memory.weights + memory.inputs + 32 + memory.planned
    known = replace(
        report,
        interface=(*report.interface, InterfaceTensor("y", "output", 32)),
        memory=replace(memory, outputs=32, total=total),
        certainty={**report.certainty, "outputs": "exact"},
    )
    comparison = compare_with_model(onnx.load(out), plan.with_report(known), original)
    assert not [text for text in comparison.disagreements if "output" in text]
