"""Random mutants: what is edited, what names an edit, and that a planted fault is found."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_edits import Mutant, mutants, mutated
from benchmarks.random_mutants import ROOMS, Row, page, sampled

ROOT = Path(__file__).parents[2]
FILE = "memplan_cli/core/made_up.py"
SOURCE = '''"""A module."""
from __future__ import annotations
LIMIT: int = 3
TABLE = {"a": 1, "b": 2}
Name = int | str
def low(values: list[int], most: int = LIMIT) -> list[int]:
    """Return the low ones."""
    if not values:
        raise ValueError(f"{1 + 1} nothing")
    return [value for value in values if value < most and value != 0]
'''


def texts(source: str = SOURCE) -> set[str]:
    return {mutant.text for mutant in mutants(source, FILE)}


@pytest.mark.parametrize(
    "text",
    [
        "3 -> 4",
        "without 'a': 1",
        "without raise ValueError",
        "not values",
        "not values -> values",
        "value < most -> value <= most",
        "value != 0 -> value == 0",
        "value < most and value != 0 -> value < most or value != 0",
        "value < most and value != 0 -> value != 0",
        "without if value < most and value != 0",
    ],
)
def test_each_kind_of_edit_is_made(text: str) -> None:
    assert text in texts()


def test_messages_annotations_and_aliases_of_types_are_not_edited() -> None:
    assert not [text for text in texts() if "1 + 1" in text or "int" in text or "str" in text]


def test_a_mutant_is_the_file_with_one_edit() -> None:
    for mutant in mutants(SOURCE, FILE):
        changed = ast.unparse(mutated(SOURCE, mutant))
        assert changed != ast.unparse(ast.parse(SOURCE)), mutant.key
        compile(changed, FILE, "exec")


def test_what_names_a_mutant_outlives_changes_elsewhere() -> None:
    later = SOURCE.replace("LIMIT: int = 3", "import sys\n\nLIMIT: int = 7")
    own = {m.key for m in mutants(SOURCE, FILE) if m.place == "low"}
    assert own == {m.key for m in mutants(later, FILE) if m.place == "low"}
    assert len(own) == len([m for m in mutants(SOURCE, FILE) if m.place == "low"])


def test_a_mutant_keeps_its_name_where_its_function_moves_to_another_file() -> None:
    moved = mutants(SOURCE, "memplan_cli/elsewhere/other.py")
    assert [m.name for m in moved] == [m.name for m in mutants(SOURCE, FILE)]


def test_a_mutant_that_the_file_no_longer_has_is_an_error() -> None:
    (first, *_) = mutants(SOURCE, FILE)
    with pytest.raises(LookupError):
        mutated('"""Nothing."""', first)


def test_a_sample_keeps_its_mutants_where_others_come() -> None:
    every = list(mutants(SOURCE, FILE))
    more = [*every, *mutants("def other(a):\n    return a + 1\n", FILE)]
    first, second = sampled(every, 1, 5), sampled(more, 1, 5)
    assert len(first) == len(second) == 5
    assert len(set(first) & set(second)) >= 3
    assert first != sampled(every, 2, 5)


def test_a_score_leaves_out_what_was_judged_to_be_equivalent() -> None:
    one, other, third = list(mutants(SOURCE, FILE))[:3]
    rows = {
        one.key: Row(one.key, "killed", "a test", 1.0),
        other.key: Row(other.key, "survived", "", 1.0),
        third.key: Row(third.key, "survived", "", 1.0),
    }
    lines = page({"core": 9}, [one, other, third], rows, {other.name: "a reason"}, 1)
    assert "| core | 9 | 3 | 3 | 1 | 0 | 1 | 1 | 50.0 % |" in lines
    assert [line for line in lines if line.startswith("| core/made_up.py")] == [
        f"| core/made_up.py | `(module)` | {third.operator}: `{third.text}` |"
    ]


_PLANTED = """
import sys
from pathlib import Path
from benchmarks.code_changes import definitions
from benchmarks.random_edits import mutants
from benchmarks.random_runs import Job, preload, run_cold
found = next(p for p, _ in definitions(Path("memplan_cli"))["align"] if "core" in p.parts)
file = str(found)
test = "tests/core/test_problem.py"
preload()
for mutant in mutants(Path(file).read_text(), file):
    if mutant.place == sys.argv[1] and mutant.text == sys.argv[2]:
        tests = [f"{test}::{name}" for name in sys.argv[4:]]
        print(run_cold(Job(mutant, tests, {}), Path(sys.argv[3]), set()).verdict)
"""


def planted(tmp_path: Path, place: str, text: str, *tests: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PLANTED, place, text, str(tmp_path / "base"), *tests],
        cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.slow
def test_a_planted_fault_is_found_and_one_that_no_test_reads_is_not(tmp_path: Path) -> None:
    edit = "-size // alignment -> -size * alignment"
    assert planted(tmp_path, "align", edit, "test_align_rounds_up") == "killed"
    assert planted(tmp_path, "align", edit, "test_rows_are_what_calls_make") == "survived"


def test_the_rooms_that_are_edited_are_there() -> None:
    assert all((ROOT / "memplan_cli" / room).is_dir() for room in ROOMS)
    assert Mutant(FILE, "", "a", "b", 0, (1, 1), None, is_compiled=False).room == "core"
