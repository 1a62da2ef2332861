"""Many models, one row each: jobs, rows, resuming, processes that die, a cluster."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import os
import re
import time
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from memplan_cli import api
from memplan_cli.api.sweep import sweep
from memplan_cli.api.sweep_processes import in_processes, one_by_one
from memplan_cli.api.sweep_tasks import (
    Task,
    do_task,
    failed_row,
    found_models,
    run_tasks,
    tasks_of,
)
from memplan_cli.core.deserialization import from_json
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.reporting.commands.sweep import SWEEP, Row
from memplan_cli.settings.settings import Settings
from story import memplan, write

REPOSITORY = Path(__file__).parents[2]
SAMPLES = REPOSITORY / "sample_models"
DYNAMIC = SAMPLES / "dynamic_batch.onnx"
KEEP = {"order": "keep"}


def tasks(*batches: int) -> tuple[Task, ...]:
    return tuple(Task(DYNAMIC, {"batch": batch}, None, KEEP) for batch in batches)


def test_every_model_meets_every_value_and_one_plan_for_all(tmp_path: Path) -> None:
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    for path in paths:
        write(path, "g (float[batch,seq] x) => (y) { y = Neg(x) }")
    found = tasks_of(paths, {"batch": (1, 8), "seq": (4,)}, {})
    assert len(found) == 3 * len(paths)
    assert [dict(task.dims) for task in found[:3]] == [
        {"batch": 1, "seq": 4},
        {"batch": 8, "seq": 4},
        {"batch": "1..8", "seq": 4},
    ]


def test_a_sweep_of_no_models_has_no_rows() -> None:
    assert sweep([], {"batch": (1, 8)}) == ()


def test_a_model_is_bound_by_the_dims_that_it_has() -> None:
    found = tasks_of([SAMPLES], {"batch": (1, 8)}, {})
    others = [task for task in found if task.model != DYNAMIC]
    assert [task.dims["batch"] for task in found if task not in others] == [1, 8, "1..8"]
    assert len(others) == len(list(SAMPLES.glob("*.onnx"))) - 1
    assert {(tuple(task.dims), task.missing_dims) for task in others} == {((), ("batch",))}


def test_a_name_with_slashes_is_a_name(tmp_path: Path) -> None:
    text = 'g (float[b,4] "/l/in") => (float[b,4] y) { x = Neg("/l/in") y = Neg(x) }'
    model = write(tmp_path / "m.onnx", text)
    (task,) = tasks_of([model], {}, {"shapes": {"/l/in": (3, 4)}})
    row = do_task(task)
    assert row.missing_inputs == ()
    assert row.inputs == 3 * 4 * 4


def test_a_model_is_swept_once_even_if_it_is_named_twice() -> None:
    assert found_models([DYNAMIC, SAMPLES, Path(f"{SAMPLES}/*.onnx")])[0] == DYNAMIC
    assert len(found_models([DYNAMIC, SAMPLES])) == len(list(SAMPLES.glob("*.onnx")))


def test_a_folder_without_models_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no \*\.onnx"):
        found_models([tmp_path])


def test_what_memplan_wrote_beside_a_model_is_not_swept_with_its_folder(
    tmp_path: Path,
) -> None:
    for name in ("a.onnx", "a.memplan.onnx", "b.memplan.onnx"):
        (tmp_path / name).touch()
    assert [path.name for path in found_models([tmp_path])] == ["a.onnx", "b.memplan.onnx"]
    written = tmp_path / "a.memplan.onnx"
    assert found_models([written]) == (written,)


def test_a_row_has_the_numbers_of_the_report() -> None:
    row = do_task(tasks(8)[0])
    memory = api.plan(DYNAMIC, Settings(dims={"batch": 8}, order="keep")).report.memory
    assert row.passed
    assert row.planned == memory.planned
    assert row.total == memory.total


def test_the_plan_for_all_values_is_the_one_of_the_largest() -> None:
    both = do_task(Task(DYNAMIC, {"batch": "1..8"}, None, KEEP))
    one = do_task(tasks(8)[0])
    assert both == replace(one, key=both.key, dims=both.dims)


def test_a_number_in_a_file_gives_way_to_the_values_of_the_row(tmp_path: Path) -> None:
    config = tmp_path / "memplan.yaml"
    config.write_text("dims: {batch: 3}\n")
    row = do_task(Task(DYNAMIC, {"batch": "1..8"}, config, KEEP))
    assert row.error == ""


def test_a_model_that_cannot_be_read_is_a_row(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"nonsense")
    (row,) = run_tasks((Task(bad),), one_by_one)
    assert not row.passed
    assert "not an ONNX model" in row.error


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    run_tasks(tasks(1, 2), one_by_one, resume=file)
    heard: list[Row] = []
    rows = run_tasks(tasks(1, 2, 3), one_by_one, resume=file, on_row=heard.append)
    assert [row.dims["batch"] for row in rows] == [1, 2, 3]
    assert [row.dims["batch"] for row in heard] == [3]
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("kept", [-40, -1, 1, 5])
def test_half_a_line_that_a_kill_left_is_done_again(kept: int, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    run_tasks(tasks(1, 2), one_by_one, resume=file)
    text = file.read_text()
    line = text.index("\n") + 1
    file.write_text(text[:kept] if kept < 0 else text[: line + kept])
    rows = run_tasks(tasks(1, 2), one_by_one, resume=file)
    assert [row.passed for row in rows] == [True, True]
    assert len(file.read_text().splitlines()) == 2
    assert file.read_text() == text


def test_other_settings_or_another_model_are_other_rows(tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(DYNAMIC.read_bytes())
    first = Task(copy, {"batch": 1}, None, KEEP)
    key = first.key
    assert Task(copy, {"batch": 1}, None, {"order": "auto"}).key != key
    assert Task(copy, {"batch": 2}, None, KEEP).key != key
    copy.write_bytes((SAMPLES / "train_mlp.onnx").read_bytes())
    assert first.key != key


@pytest.mark.parametrize("config", [None, "edge.yaml"])
def test_an_edited_settings_file_gives_other_rows(config: str | None, tmp_path: Path) -> None:
    copy = tmp_path / "model.onnx"
    copy.write_bytes(DYNAMIC.read_bytes())
    settings = tmp_path / (config or "memplan.yaml")
    task = Task(copy, {"batch": 1}, settings if config else None)
    keys = []
    for text in ("level: 1", "level: 2", "level: 1", "level: wrong"):
        settings.write_text(text)
        keys.append(task.key)
    assert keys[0] == keys[2]
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    "content", [b'{"a": 1}\n', b"\x08\x0a", b"text", b"[" * 99_999 + b"\n"]
)
def test_a_file_of_something_else_is_neither_taken_for_rows_nor_changed(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="not a file of sweep rows"):
        run_tasks(tasks(1), one_by_one, resume=file)
    assert file.read_bytes() == content


def test_an_interrupted_sweep_ends_its_own_processes_only() -> None:
    context = multiprocessing.get_context("spawn")
    other = context.Process(target=time.sleep, args=(600,))
    other.start()
    try:
        rows = in_processes(tasks(1, 2, 3), count=1)
        next(rows)
        assert isinstance(rows, Generator)
        rows.close()
        assert multiprocessing.active_children() == [other]
    finally:
        other.kill()
        other.join()


def test_processes_give_the_rows_that_one_process_gives() -> None:
    todo = tasks(1, 2, 3, 4, 5)
    assert run_tasks(todo, partial(in_processes, count=2)) == run_tasks(todo, one_by_one)


def test_a_job_that_kills_its_process_is_one_failed_row(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The worker imports this module's stand-in for a task by its name.
    (tmp_path / "deadly_tasks.py").write_text(
        "import os, signal\n"
        "from memplan_cli.api.sweep_tasks import do_task\n"
        "def deadly(task):\n"
        "    if task.dims['batch'] == 3:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return do_task(task)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{REPOSITORY}")
    from deadly_tasks import deadly  # type: ignore[import-not-found] # written just above

    from memplan_cli.api import sweep_processes as sweep_runners

    monkeypatch.setattr(sweep_runners, "do_task", deadly)
    todo = tasks(*range(1, 8))
    heard: list[Row] = []
    rows = run_tasks(todo, partial(in_processes, count=2), on_row=heard.append)
    assert len(heard) == 7, "no row is lost and none comes twice"
    assert [row.passed for row in rows] == [batch != 3 for batch in range(1, 8)]
    assert "died" in rows[2].error


def test_rows_come_out_as_table_lines_and_csv() -> None:
    (task,) = tasks(2)
    rows = (do_task(task), failed_row(task, 'no, "because"\nof this'))
    assert "] 1 of 2 rows planned" in SWEEP["text"](rows)
    lines = [from_json(Row, json.loads(s), "it") for s in SWEEP["jsonl"](rows).splitlines()]
    assert lines[0] == rows[0]
    table = list(csv.DictReader(io.StringIO(SWEEP["csv"](rows))))
    assert table[0]["planned"] == str(rows[0].planned)
    assert table[1]["error"] == 'no, "because" of this'
    assert table[1]["planned"] == ""
    assert len(json.loads(SWEEP["json"](rows))["rows"]) == 2
    assert SWEEP["text"](rows).endswith("[failed] 1 of 2 rows planned\n")
    alone = SWEEP["text"](rows[:1])
    assert alone.endswith("\n[ok] 1 of 1 rows planned\n")
    assert alone.splitlines()[0] == f"Memory of the tensors of 1 model in {SAMPLES}/"
    assert re.search(r"^dynamic_batch\.onnx, batch=2 +20\.31 KiB ", alone, re.MULTILINE)


def test_the_command_writes_rows_and_says_by_its_exit_code_if_one_failed(
    tmp_path: Path,
) -> None:

    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"nonsense")
    options = ["--jobs", "1", "--format", "jsonl", "--order", "keep", "--dim", "batch=1,2"]
    good = memplan("sweep", str(DYNAMIC), *options)
    assert good.exit_code == 0
    assert [json.loads(s)["dims"]["batch"] for s in good.stdout.splitlines()] == [1, 2, "1..2"]
    both = memplan("sweep", str(DYNAMIC), str(bad), *options)
    assert both.exit_code == 1
    assert len(both.stdout.splitlines()) == 6
