from __future__ import annotations

import json
import os
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from benchmarks.packing_instances import square
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    Layout,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.errors import InvalidLayoutError, ModelError
from memplan_cli.packing import portfolio
from memplan_cli.packing.problem_file import (
    MAX_LINE_BYTES,
    PackingResult,
    layout_csv,
    pack,
    read_problem,
)
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

PAIR = "id,lower,upper,size\na,0,3,64\nb,1,5,32\n"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    path = tmp_path / "given.csv"
    path.write_text(PAIR)
    return path


def test_a_problem_is_read(given: Path) -> None:
    assert read_problem(given) == Problem(
        (
            Buffer(BufferId("a"), 64, LiveRange(0, 3)),
            Buffer(BufferId("b"), 32, LiveRange(1, 5)),
        )
    )


@pytest.mark.parametrize(
    "text",
    [
        "size,id,upper,lower\n64,a,3,0\n32,b,5,1\n",
        "\ufeffid , lower,upper,size\r\n\r\n a,0,3,64\r\nb,1,5,32",
        'id,lower,upper,size,offset\n"a",0,3,64,7\n"b",1,5,32,\n',
    ],
)
def test_order_of_columns_blanks_and_old_offsets_do_not_matter(given: Path, text: str) -> None:
    expected = read_problem(given)
    given.write_text(text, encoding="utf-8")
    assert read_problem(given) == expected


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "no column id, lower, upper, size"),
        ("id,lower,size\na,0,3\n", 1, "no column upper"),
        ("id,lower,upper,size,alignment\n", 1, "unknown column 'alignment'"),
        ("id,lower,upper,size,size\n", 1, "column size twice"),
        ("id,lower,upper,size\na,0,3\n", 2, "3 fields under 4 columns"),
        ("id,lower,upper,size\na,0,3,64\nb,x,5,32\n", 3, "lower is not a whole number"),
        ("id,lower,upper,size\na,0,3,1.5\n", 2, "size is not a whole number"),
        ("id,lower,upper,size\na,0,3," + "9" * 5000 + "\n", 2, "at most 18 digits"),
        ("id,lower,upper,size\na,0,3,-1\n", 2, "size is negative"),
        ("id,lower,upper,size\na,3,3,1\n", 2, "lower 3 is not below upper 3"),
        ("id,lower,upper,size\na,0,3,1\n\na,0,3,1\n", 4, "id 'a' was used in line 2"),
        ("id,lower,upper,size\n,0,3,1\n", 2, "empty id"),
        ('id,lower,upper,size\n"a,0,3,1\n', 2, "unexpected end of data"),
        ("id,lower,upper,size\na,0,3,\u0663\n", 2, "size is not a whole number"),
    ],
)
def test_a_fault_is_reported_with_its_line(
    given: Path, text: str, line: int, message: str
) -> None:
    given.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message) as caught:
        read_problem(given)
    assert str(caught.value).startswith(f"{given}:{line}: ")


def test_bytes_that_are_not_utf8_are_reported_with_their_line(given: Path) -> None:
    given.write_bytes(PAIR.encode() + b"\xff\xfe,1,2,3\n")
    with pytest.raises(ModelError, match=r"given.csv:4: .*can't decode"):
        read_problem(given)


def test_a_missing_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file .*none\.csv"):
        read_problem(tmp_path / "none.csv")


def test_an_endless_line_takes_no_memory(given: Path) -> None:
    with given.open("wb") as file:
        file.write(b"id,lower,upper,size\n")
        file.seek(1_000_000_000)  # a hole: a billion zero bytes that take no disk
        file.write(b"x")
    tracemalloc.start()
    with pytest.raises(ModelError, match=f"given.csv:2: longer than {MAX_LINE_BYTES} bytes"):
        read_problem(given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_csv_written_has_the_problem_and_its_offsets(given: Path, tmp_path: Path) -> None:
    problem = read_problem(given)
    out = tmp_path / "out.csv"
    packed = PackingResult(problem, Layout({b.id: 7 for b in problem.buffers}, 99), 96, 0.0)
    out.write_text(layout_csv(packed))
    assert out.read_text() == "id,lower,upper,size,offset\na,0,3,64,7\nb,1,5,32,7\n"
    assert read_problem(out) == problem


def test_a_folder_that_is_not_there_is_an_error_of_ours(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "none" / "out.csv"
    result = memplan("pack", str(given), "-o", str(out))
    assert result.exit_code == 2
    assert f"there is no folder {out.parent}" in result.stderr


def test_a_layout_that_is_not_safe_is_refused(
    given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "memplan_cli.packing.problem_file.portfolio",
        lambda problem, **_: Layout({b.id: 0 for b in problem.buffers}, 96),
    )
    with pytest.raises(InvalidLayoutError, match="overlap in time and in memory: a, b"):
        pack(read_problem(given))


def test_json_has_the_keys_of_the_contract(given: Path) -> None:
    result = memplan("pack", str(given), "--format", "json")
    found = json.loads(result.stdout)
    assert found.pop("seconds") >= 0
    assert found == {
        "schema": "memplan.pack/1",
        "buffers": 2,
        "lower_bound": 96,
        "height": 96,
        "proved": True,
    }
    assert (result.exit_code, result.stderr) == (0, "")


def test_text_gives_height_bound_and_proof(given: Path) -> None:
    lines = [
        " ".join(line.split()) for line in memplan("pack", str(given)).stdout.splitlines()
    ]
    assert lines[0] == "2 buffers in one arena"
    assert {"height 96 96 B", "lower bound 96 96 B"} <= {*lines}
    assert "[ok] No layout is smaller: this is proved." in lines


def test_offsets_are_written_on_request(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert memplan("pack", str(given), "-o", str(out)).exit_code == 0
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    offsets = {BufferId(row[0]): int(row[4]) for row in rows}
    assert violations(read_problem(given), Layout(offsets, 96)) == ()


@pytest.mark.parametrize(("capacity", "code"), [("96", 0), ("95", 1)])
def test_capacity_decides_the_exit_code(
    given: Path, tmp_path: Path, capacity: str, code: int
) -> None:
    out = tmp_path / "out.csv"
    result = memplan("pack", str(given), "-o", str(out), "--capacity", capacity)
    assert result.exit_code == code
    assert out.exists() == (code == 0), "a layout that does not fit is not written"
    assert ("[failed] Capacity: no layout fits." in result.stdout) == (code == 1), (
        "96 is proved"
    )


def test_a_capacity_that_was_not_reached_is_not_reported_as_impossible(tmp_path: Path) -> None:
    given = tmp_path / "square.csv"
    rows = [f"{b.id},{b.live.start},{b.live.end},{b.size}" for b in square(300, 1).buffers]
    given.write_text("\n".join(["id,lower,upper,size", *rows]))
    bound = str(lower_bound(square(300, 1)))
    result = memplan("pack", str(given), "--capacity", bound, "--time-limit", "0")
    assert result.exit_code == 1
    assert "[failed] Capacity: no layout was found that fits." in result.stdout


@pytest.mark.parametrize(
    ("rows", "height"),
    [
        ("a,-5,3,64\nb,-1,5,+32\n", 96),
        ('"a,b ""q""",0,3,64\n', 64),
        ("a,0,3,0\n", 0),
        ("", 0),
        ("a,0,3,64\nb,3,4,64", 64),
    ],
)
def test_odd_but_sound_files_are_packed_and_written_in_place(
    given: Path, rows: str, height: int
) -> None:
    given.write_text(f"id,lower,upper,size\n{rows}")
    problem = read_problem(given)
    result = memplan("pack", str(given), "-o", str(given), "--format", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["height"] == height
    assert given.read_text().startswith("id,lower,upper,size,offset\n")
    assert read_problem(given) == problem


def test_a_link_that_is_written_to_stays_a_link(given: Path, tmp_path: Path) -> None:
    link, target = tmp_path / "link.csv", tmp_path / "target.csv"
    target.write_text("old")
    link.symlink_to(target)
    assert memplan("pack", str(given), "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert read_problem(target) == read_problem(given)


def test_a_pipe_is_written_into_and_stays_a_pipe(given: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert memplan("pack", str(given), "-o", str(pipe)).exit_code == 0
        assert os.read(reader, 1000).startswith(b"id,lower,upper,size,offset\na,0,3,64,")
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_help_has_an_example() -> None:
    assert "memplan pack problem.csv" in memplan("pack", "--help").stdout


def test_pack_is_the_portfolio(given: Path) -> None:
    problem = read_problem(given)
    assert pack(problem).layout == portfolio(problem)
