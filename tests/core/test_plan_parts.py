"""What is made of plans, settings and files of our own: each part arrives."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from builders import block, op, plan_of_text
from memplan_cli import Settings
from memplan_cli.core.check import DEFAULT_CHECK, Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.problem import Buffer, BufferId, Layout, LiveRange, Problem, violations
from memplan_cli.core.results.bound_plan import with_bound_symbols
from memplan_cli.core.results.observations import MODEL_OPTIONS, Peaks, RuntimeSettings
from memplan_cli.core.results.report import FileBytes, Report, RuntimeSummary
from memplan_cli.core.results.rewrites import step_dims
from memplan_cli.core.serialization import to_json
from memplan_cli.core.temporary import clear_files

OPEN = Path("/proc/self/fd")

DYNAMIC = """g (float[batch,8] x) => (float[batch,8] z)
<float[8,8] w = {1, 2}> {
    c = Transpose(w) d = Exp(c) a = MatMul(x, d) b = Exp(a) e = MatMul(b, d) z = Add(e, a)
}"""


def test_an_op_with_a_subgraph_that_draws_nothing_is_not_random() -> None:
    inner = block("", "o", op("o <- x", kind="Relu"))
    assert not op("y <- c", inner, kind="If").is_random


def test_settings_on_top_replace_their_own_keys_in_every_scope() -> None:
    scopes = [field.name for field in fields(RuntimeSettings)]
    below = RuntimeSettings(**{name: {"kept": "1", "both": "1"} for name in scopes})
    above = RuntimeSettings(**{name: {"both": "2", "new": "2"} for name in scopes})
    found = below.updated(above)
    for name in scopes:
        assert getattr(found, name) == {"kept": "1", "both": "2", "new": "2"}, name


def test_a_plan_in_numbers_is_one_arena_in_which_nothing_overlaps() -> None:
    plan = plan_of_text(DYNAMIC, Settings(dims={"batch": 3}))
    found = with_bound_symbols(plan)
    (arena,) = found.arenas
    own = [tensor for tensor in found.tensors if tensor.alias_of is None]
    buffers = tuple(Buffer(BufferId(t.id), t.bytes, LiveRange(t.first, t.last)) for t in own)
    offsets = {BufferId(t.id): t.offset for t in own}
    assert violations(Problem(buffers, 1), Layout(offsets, arena.height)) == ()
    assert arena.height == found.report.memory.planned
    assert all(isinstance(dim, int) for tensor in found.tensors for dim in tensor.shape)


@pytest.mark.skipif(not OPEN.is_dir(), reason="no list of open files")
def test_files_that_are_cleared_are_closed(tmp_path: Path) -> None:
    for at in range(5):
        (tmp_path / f"a{at}.left").write_text("")
    before = len(list(OPEN.iterdir()))
    clear_files(tmp_path, re.compile(r"a\d\.left"))
    assert list(tmp_path.iterdir()) == []
    assert len(list(OPEN.iterdir())) == before


@pytest.mark.parametrize(
    "sides", [(), ("original",), ("optimized",), ("original", "optimized")]
)
def test_what_was_observed_of_one_side_is_written_of_that_side(sides: tuple[str, ...]) -> None:
    peaks = {side: Peaks(10, 20, 30) for side in sides}
    data = to_json(RuntimeSummary("onnxruntime", "1", "cpu", observed=peaks, predicted=peaks))
    assert sorted(data["observed"] or {}) == sorted(sides)
    assert sorted(data["predicted"] or {}) == sorted(sides)


def test_without_a_tolerance_all_bits_must_be_equal() -> None:
    assert Tolerance().exact
    assert DEFAULT_CHECK.tolerance == Tolerance()


def test_the_dims_of_a_step_follow_from_its_past_and_new_entries() -> None:
    rules = {"n": "new", "t": "total", "p": "past", "batch": "one", "fixed": "five"}
    found = step_dims(rules, past=7, new=3)
    assert found == {"n": 3, "t": 10, "p": 7, "batch": 1, "fixed": 5}


def test_a_report_without_what_later_versions_added_is_read() -> None:
    report = plan_of_text(DYNAMIC, Settings(dims={"batch": 3})).report
    data = to_json(report)
    assert "external_weights" not in data  # nothing was moved
    del data["orders"]["candidates"], data["orders"]["chosen"]
    found = from_json(Report, data, "the report")
    assert found == replace(report, orders={}, chosen_order="file")


@pytest.mark.parametrize("naive", [None, 0])
def test_no_share_is_saved_of_nothing(naive: int | None) -> None:
    report = plan_of_text(DYNAMIC, Settings(dims={"batch": 3})).report
    memory = report.memory
    assert report.saved == 1 - memory.planned / memory.naive  # type: ignore[operator]
    assert replace(report, memory=replace(memory, naive=naive)).saved is None


def test_the_sizes_of_files_are_in_a_report_once_files_are_written() -> None:
    report = plan_of_text(DYNAMIC, Settings(dims={"batch": 3})).report
    assert "files" not in to_json(replace(report, files=FileBytes(0, 0)))
    assert to_json(replace(report, files=FileBytes(10, 8)))["files"] == {
        "original": 10,
        "written": 8,
    }


def test_an_estimate_of_training_is_read_back() -> None:
    report = plan_of_text(DYNAMIC, Settings(dims={"batch": 3})).report
    for estimate in ({}, {"raw": 4096, "optimized": 1024}):
        estimated = replace(report, training_estimate=estimate)
        assert from_json(Report, to_json(estimated), "the report") == estimated


def test_options_of_a_model_have_the_numbers_of_the_runtime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    modes, levels = runtime.ExecutionMode, runtime.GraphOptimizationLevel
    for option, numbers in MODEL_OPTIONS.items():
        values = modes if option == "execution_mode" else levels
        for name, number in numbers.items():
            assert int(getattr(values, str(name))) == number, name
