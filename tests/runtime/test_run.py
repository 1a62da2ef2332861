"""One process records everything about a model, and its session is gone before the next one."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import onnx
import onnx.parser
import pytest

from memplan_cli.core.bindings import Binding, FeedSpec
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import UNOPTIMIZED, Difference
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.run import compare as comparing
from memplan_cli.runtime.run.baseline import DEFAULTS, Baseline, BaselineRun
from memplan_cli.runtime.run.compare import compare_unrepeatable, run_written
from memplan_cli.runtime.run.run_model import record_run, run_model
from memplan_cli.runtime.settings_search.written_model import (
    WrittenModel,
    read_baseline_graph,
)
from memplan_cli.runtime.verification.verify import verify
from memplan_cli.runtime.workers.process_memory import Resident, bytes_beyond
from memplan_cli.runtime.workers.spec import InputSet, RunConditions, RunSpec, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.run.run_model import RunRecord

CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,64] x) => (float[n,64] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  y = Add(c, a) }"""

OTHER = CHAIN.replace("y = Add(c, a)", "y = Sub(c, a)")


def write(path: Path, text: str = CHAIN) -> Path:
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


TWO = Binding({"n": 2}, assumed=frozenset({"n"}))


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Callable[..., Baseline]]:
    """Run the original; its files last as long as the test."""
    with ExitStack() as stack:

        def run(binding: Binding = TWO, check: Check = Check("cpu")) -> Baseline:  # noqa: B008
            path = write(tmp_path / "model.onnx")
            running = BaselineRun(path, load_model(path), check, binding)
            return stack.enter_context(running).result()

        yield run


def outputs_only(*specs: FeedSpec) -> tuple[InputSet, ...]:
    return tuple(InputSet((spec,)) for spec in specs)


def test_all_that_is_collected_together_is_what_is_collected_alone(
    original: Callable[..., Baseline],
) -> None:
    found = original(Binding({"n": 4}))
    conditions = RunConditions(binding=Binding({"n": 4}))
    alone = record_run(found.path, DEFAULTS, conditions, "arena").peaks
    peaks = found.record.peaks
    assert replace(
        peaks, milliseconds=None, processor_milliseconds=None, process=None
    ) == replace(alone, milliseconds=None, processor_milliseconds=None)
    assert found.is_repeatable
    assert found.record.outputs == ("y",)
    saved = found.inputs[0].save_to
    assert saved is not None
    assert (saved / "0.npy").exists()
    predicted = read_baseline_graph(found).predicted
    assert (predicted.first_run_peak, predicted.steady_peak) == (
        peaks.first_run_peak,
        peaks.steady_peak,
    )


def test_the_predicted_arena_of_the_original_has_its_workspace(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]> g (bool[n,1024] c, float[n,1024] x)
        => (float[n,1024] y) { a = Exp(x)  b = Neg(x)  y = Where(c, a, b) }"""
    path = write(tmp_path / "where.onnx", text)
    with BaselineRun(path, load_model(path), Check("cpu"), Binding({"n": 1024})) as running:
        found = running.result()
        predicted = read_baseline_graph(found).predicted
    assert found.record.workspace
    assert predicted.held == found.record.peaks.held


def test_a_record_has_only_what_was_collected(tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx")
    inputs = outputs_only(FeedSpec("x", "float32", (2, 64), "normal"))
    record = run_model(RunSpec(SessionSpec(model), inputs, collect=()))
    assert record.failure is None
    assert (record.peaks.first_run_peak, record.peaks.process) == (None, None)
    assert (record.workspace, record.kernels, record.shapes) == (None, None, None)


def test_a_run_that_fails_is_a_record_that_says_why(tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx")
    inputs = outputs_only(FeedSpec("x", "float32", (2, 65), "normal"))
    record = run_model(RunSpec(SessionSpec(model), inputs, collect=()))
    assert record.failure is not None
    assert record.failure.how == "error"
    assert "Got: 65 Expected: 64" in record.failure.reason


def test_input_sets_are_tried_until_one_runs(tmp_path: Path) -> None:
    model = write(tmp_path / "model.onnx")
    inputs = outputs_only(
        *(FeedSpec("x", "float32", (2, size), "normal") for size in (63, 64, 65))
    )
    spec = RunSpec(SessionSpec(model), inputs, (), failures="recorded")
    tried = run_model(replace(spec, stop="at a set that runs")).inputs
    assert [bool(one.failure) for one in tried] == [True, False]
    assert [bool(one.failure) for one in run_model(spec).inputs] == [True, False, True]


def test_the_runtimes_graph_comes_without_weights_and_with_types(
    original: Callable[..., Baseline],
) -> None:
    record = original().record
    assert record.spec.graph is not None
    folder = record.spec.graph.parent
    assert [path.name for path in folder.glob("*.onnx*")] == ["original.onnx"]
    assert record.shapes is not None
    assert record.shapes["c"] == ("float32", ("n", 64))


def test_a_dim_that_was_assumed_is_tried_at_two_values(
    original: Callable[..., Baseline],
) -> None:
    assert [one.specs[0].shape for one in original().inputs] == [(2, 64), (4, 64)]
    assert len(original(Binding({"n": 2})).inputs) == 1


@pytest.mark.parametrize("depth", ["full", "outputs"])
def test_an_original_that_runs_at_one_of_two_values_has_a_note(
    tmp_path: Path, depth: Literal["full", "outputs"]
) -> None:
    fixed = """<ir_version: 10, opset_import: ["" : 21]> g (float[n,64] x) => (float[2,64] y)
        { shape = Constant <value_ints = [2, 64]> ()  y = Reshape(x, shape) }"""
    path = write(tmp_path / "fixed.onnx", fixed)
    check = replace(Check("cpu"), depth=depth)
    with BaselineRun(path, load_model(path), check, TWO) as running:
        found = running.result()
    assert len(found.inputs) == 1
    (note,) = found.notes
    assert note.startswith("one shape only: the original does not run at n=4 (")


def test_runs_that_differ_are_compared_with_those_of_the_same_settings(
    original: Callable[..., Baseline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = original(Binding({"n": 2}))
    other = write(tmp_path / "other.onnx")
    specs: list[RunSpec] = []

    def noisy(spec: RunSpec, *, timeout: float) -> RunRecord:
        specs.append(spec)
        record = run_model(spec, timeout=timeout)
        if len(specs) != 2:
            return record
        differences = (Difference("y", 1, 1e-7, 1),)
        return replace(record, inputs=(replace(record.inputs[0], differences=differences),))

    monkeypatch.setattr(comparing, "run_model", noisy)
    of_one_shape = replace(found, notes=("one shape only",))
    unoptimized = replace(of_one_shape, check=replace(found.check, reference="unoptimized"))
    verdict = compare_unrepeatable(unoptimized, other, UNOPTIMIZED)
    assert verdict.passed
    assert verdict.notes[-1] == "one shape only"
    compared_with = specs[-1].inputs[0].compare_with
    (saved,) = (
        spec.session
        for spec in specs
        if spec.inputs[0].save_to == compared_with and spec.inputs[0].compare_with is None
    )
    assert saved.model == found.path
    assert saved.settings.is_unoptimized


@pytest.mark.parametrize("settings", [DEFAULTS, UNOPTIMIZED])
def test_other_bits_end_the_run(
    original: Callable[..., Baseline], tmp_path: Path, settings: RuntimeSettings
) -> None:
    found = original()
    other, graph = write(tmp_path / "other.onnx", OTHER), tmp_path / "graph.onnx"
    run = run_written(found, other, settings, graph=graph)
    assert run.verdict.status == "failed"
    assert [len(one.differences) for one in run.record.inputs] == [1]
    assert not graph.exists()
    assert not verify(found, None, WrittenModel(other)).verdict.passed


def test_a_model_that_does_not_run_fails_the_check(
    original: Callable[..., Baseline], tmp_path: Path
) -> None:
    broken = CHAIN.replace("y = Add(c, a)", "y = Nothing(c)")
    run = run_written(original(), write(tmp_path / "broken.onnx", broken), DEFAULTS)
    assert run.verdict.status == "failed"
    assert run.verdict.max_abs_diff is None
    assert "does not run" in run.verdict.notes[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_a_process_says_what_it_took(original: Callable[..., Baseline]) -> None:
    large = Binding({"n": 1 << 16})  # 16 MiB a tensor
    process = original(large).record.peaks.process
    assert process is not None
    assert process.run >= process.load >= 0
    assert process.run > 3 << 24, "three tensors are live at once"


def test_nothing_is_said_where_the_system_says_nothing() -> None:
    seen = Resident(9, 5, 4, 1)
    assert bytes_beyond(None, seen, seen) is None
    found = bytes_beyond(Resident(5, 5, 3, 1), Resident(8, 7, 4, 1), seen)
    assert found is not None
    assert (found.load, found.run, found.private, found.file) == (3, 4, 1, 0)
