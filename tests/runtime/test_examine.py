"""One process says everything about a model, and its session is gone before the next one."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import UNOPTIMISED, Peaks
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.account import account_before
from memplan_cli.runtime.measuring.measure import Trial, measure
from memplan_cli.runtime.measuring.timing import is_far_slower
from memplan_cli.runtime.proofs.original import run_original
from memplan_cli.runtime.proofs.written import Plain, Run, run_written, unoptimised_both
from memplan_cli.runtime.steer import DEFAULTS
from memplan_cli.runtime.workers.process_memory import Resident, beyond
from memplan_cli.runtime.workers.session import DETERMINISTIC

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.proofs.original import Original

CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,64] x) => (float[n,64] y) { a = Exp(x)  b = Neg(a)  c = Exp(b)  y = Add(c, a) }"""

OTHER = CHAIN.replace("y = Add(c, a)", "y = Sub(c, a)")


def write(path: Path, text: str = CHAIN) -> Path:
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return path


TWO = Binding({"n": 2}, assumed=frozenset({"n"}))


def original(tmp_path: Path, binding: Binding = TWO) -> Original:
    model = write(tmp_path / "model.onnx")
    folder = tmp_path / "proof"
    folder.mkdir()
    return run_original(model, load_model(model), Check("cpu"), binding, folder)


def test_one_session_says_what_several_said_before(tmp_path: Path) -> None:
    found = original(tmp_path, Binding({"n": 4}))
    settings = DEFAULTS.updated(DETERMINISTIC)
    trial = Trial("cpu", {"n": 4}, timing_runs=0)
    before = measure(found.path, settings, trial)
    peaks = found.seen.peaks
    assert replace(peaks, milliseconds=None, effort=None, process=None) == replace(
        before, milliseconds=None, process=None
    )
    assert found.repeats
    assert found.seen.outputs == ("y",)
    assert (found.looks[0].folder / "0.npy").exists()
    predicted = account_before(found).predicted
    assert (predicted.first_run_peak, predicted.steady_peak) == (
        peaks.first_run_peak,
        peaks.steady_peak,
    )


def test_the_runtimes_graph_comes_without_weights_and_with_types(tmp_path: Path) -> None:
    found = original(tmp_path)
    assert found.seen.graph is not None
    assert [p.name for p in found.seen.graph.parent.glob("*.onnx*")] == ["original.onnx"]
    assert found.seen.shapes["c"] == ("float32", ("n", 64))


def test_a_dim_that_was_assumed_is_tried_at_two_values(tmp_path: Path) -> None:
    assert [look.specs[0].shape for look in original(tmp_path).looks] == [(2, 64), (4, 64)]
    (tmp_path / "once").mkdir()
    assert len(original(tmp_path / "once", Binding({"n": 2})).looks) == 1


def test_other_bits_are_found_at_every_dim_and_kept(tmp_path: Path) -> None:
    found = original(tmp_path)
    run = run_written(found, write(tmp_path / "other.onnx", OTHER), UNOPTIMISED, None)
    assert run.verdict.status == "failed"
    assert run.seen is not None
    assert [len(look.differences) for look in run.seen.looks] == [1, 1]
    assert all(look.kept and (look.kept / "0.npy").exists() for look in found.looks)
    assert unoptimised_both(found, run, tmp_path, lambda _: run) == run


def test_other_bits_under_optimisation_end_the_run(tmp_path: Path) -> None:
    found = original(tmp_path)
    other, graph = write(tmp_path / "other.onnx", OTHER), tmp_path / "graph.onnx"
    run = run_written(found, other, DEFAULTS, graph)
    assert run.seen is not None
    assert [len(look.differences) for look in run.seen.looks] == [1]
    assert not graph.exists()


def test_what_differs_under_optimisation_alone_is_compared_without_it(tmp_path: Path) -> None:
    found = original(tmp_path)
    other = write(tmp_path / "other.onnx", OTHER)
    first = run_written(found, other, DEFAULTS, None)
    asked: list[Plain] = []

    def again(plain: Plain) -> Run:
        asked.append(plain)
        return run_written(found, found.path, UNOPTIMISED, None, plain)

    run = unoptimised_both(found, first, tmp_path, again)
    assert run.as_written
    assert run.verdict.bit_identical
    assert "optimisation off" in run.verdict.notes[-1]
    assert [look.specs for look in asked[0].looks] == [look.specs for look in found.looks]


def test_a_model_that_does_not_run_fails_the_check(tmp_path: Path) -> None:
    found = original(tmp_path)
    broken = CHAIN.replace("y = Add(c, a)", "y = Nothing(c)")
    run = run_written(found, write(tmp_path / "broken.onnx", broken), DEFAULTS, None)
    assert run.verdict.status == "failed"
    assert run.verdict.max_abs_diff is None
    assert "does not run" in run.verdict.notes[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
def test_a_process_says_what_it_took(tmp_path: Path) -> None:
    large = Binding({"n": 1 << 16})  # 16 MiB a tensor
    process = original(tmp_path, large).seen.peaks.process
    assert process is not None
    assert process.run >= process.load >= 0
    assert process.run > 3 << 24, "three tensors are live at once"


def test_nothing_is_said_where_the_system_says_nothing() -> None:
    seen = Resident(9, 5, 4, 1)
    assert beyond(None, seen, seen) is None
    found = beyond(Resident(5, 5, 3, 1), Resident(8, 7, 4, 1), seen)
    assert found is not None
    assert (found.load, found.run, found.private, found.file) == (3, 4, 1, 0)


def test_a_few_runs_tell_only_what_is_far_slower() -> None:
    before = Peaks(1, 1, effort=10.0)
    assert not is_far_slower(replace(before, effort=12.5), before)
    assert is_far_slower(replace(before, effort=14.0), before)
    assert not is_far_slower(Peaks(1, 1, effort=0.9), Peaks(1, 1, effort=0.1))
    assert not is_far_slower(Peaks(1, 1), before)
