"""Temporary files go with their owner, and nothing else ever goes."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from memplan_cli.core import temporary
from memplan_cli.core.temporary import (
    clear_files,
    clear_run_folders,
    create_locked,
    run_folder,
    temporary_beside,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.name != "posix", reason="locks of POSIX")

FILES = re.compile(r"\.a\.[0-9a-f]{16}\.tmp")
NAME = "memplan-0123456789abcdef.tmp"


def left_by_a_killed_run(folder: Path, code: str) -> None:
    """Run code in a process of its own that kills itself in the end."""
    start = f"import os, signal; from pathlib import Path; here = Path({str(folder)!r})\n"
    end = "\nos.kill(os.getpid(), signal.SIGKILL)"
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", start + code + end], check=False, env=environment
    )
    assert done.returncode == -9


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_temporary_files_go_into_the_runs_folder_and_with_it(base: Path) -> None:
    with run_folder() as folder:
        assert folder is not None
        assert Path(tempfile.mkdtemp()).parent == folder
        assert os.environ["TMPDIR"] == str(folder)
    assert list(base.iterdir()) == []
    assert os.environ["TMPDIR"] == str(base)


def test_a_signal_just_before_the_folder_is_removed_does_not_leave_it(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def interrupted() -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt), run_folder():
        monkeypatch.setattr(temporary, "deferred", interrupted)
    assert list(base.iterdir()) == []
    assert os.environ["TMPDIR"] == str(base)


def test_the_folder_of_a_live_run_is_left_alone(base: Path) -> None:
    with run_folder() as folder:
        assert folder is not None
        (folder / "a").write_text("1")
        clear_run_folders(base)
        assert (folder / "a").read_text() == "1"


def test_the_next_run_removes_what_a_killed_one_left(base: Path) -> None:
    left_by_a_killed_run(
        base,
        "from memplan_cli.core.temporary import run_folder\n"
        "run = run_folder(); (run.__enter__() / 'a').write_text('1')",
    )
    assert [len(list(left.iterdir())) for left in base.iterdir()] == [2]
    with run_folder() as folder:
        assert list(base.iterdir()) == [folder]


def test_nothing_that_may_be_somebody_elses_is_removed(base: Path) -> None:
    """Another name, no lock file and something in it, a file, a link to a run's folder."""
    (base / "memplan-results").mkdir()
    (base / "memplan-results" / ".memplan-lock").touch()
    (base / NAME).mkdir()
    (base / NAME / "precious").touch()
    (base / NAME.replace("0", "f")).touch()
    (base / "far").mkdir()
    (base / "far" / ".memplan-lock").touch()
    (base / NAME.replace("1", "e")).symlink_to(base / "far")
    before = sorted(base.rglob("*"))
    clear_run_folders(base)
    assert sorted(base.rglob("*")) == before


def test_an_empty_folder_of_a_run_that_had_no_lock_yet_is_removed(base: Path) -> None:
    (base / NAME).mkdir()
    clear_run_folders(base)
    assert list(base.iterdir()) == []


def test_a_lock_that_is_a_link_is_not_followed(base: Path) -> None:
    (base / "precious").touch()
    (base / NAME).mkdir()
    (base / NAME / ".memplan-lock").symlink_to(base / "precious")
    clear_run_folders(base)
    assert (base / NAME / ".memplan-lock").is_symlink()


def test_without_room_a_run_goes_on_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/proc/self")
    with run_folder() as folder:
        assert folder is None
        assert os.environ["TMPDIR"] == "/proc/self"


def test_without_locks_no_leftovers_are_removed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    (base / NAME).mkdir()
    (base / NAME / ".memplan-lock").touch()
    (base / ".a.0123456789abcdef.tmp").touch()
    before = sorted(base.rglob("*"))
    clear_run_folders(base)
    clear_files(base, FILES)
    assert sorted(base.rglob("*")) == before


def test_a_folder_that_cannot_be_locked_is_not_left_behind(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with run_folder() as folder:
        assert folder is None
    assert list(base.iterdir()) == []


def test_a_file_beside_a_target_is_left_alone_while_its_owner_lives(tmp_path: Path) -> None:
    with temporary_beside(tmp_path / "a") as mine, temporary_beside(tmp_path / "a") as other:
        assert {mine, other} == set(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_the_next_write_of_a_target_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    left_by_a_killed_run(
        tmp_path,
        "from memplan_cli.core.temporary import temporary_beside\n"
        "kept = [temporary_beside(here / name) for name in 'ab']\n"
        "for one in kept: one.__enter__()",
    )
    assert len(list(tmp_path.iterdir())) == 2
    with temporary_beside(tmp_path / "a") as mine:
        names = sorted(path.name for path in tmp_path.iterdir())
        assert [name[:3] for name in names] == [".a.", ".b."]
        assert mine.name in names


def test_links_folders_and_other_names_beside_a_target_are_left_alone(tmp_path: Path) -> None:
    name = ".a.0123456789abcdef.tmp"
    (tmp_path / "precious").touch()
    (tmp_path / name).symlink_to(tmp_path / "precious")
    (tmp_path / name.replace("0", "f")).mkdir()
    (tmp_path / ".a.notes.tmp").touch()
    os.mkfifo(tmp_path / name.replace("1", "e"))
    before = sorted(tmp_path.iterdir())
    clear_files(tmp_path, FILES)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_was_cleared_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli.core import temporary

    lock = temporary._lock
    cleared: list[Path] = []

    def slow(file: int, *, wait: bool) -> bool:
        if wait and not cleared:
            cleared.append(next(tmp_path.iterdir()))
            cleared[0].unlink()
        return lock(file, wait=wait)

    monkeypatch.setattr(temporary, "_lock", slow)
    assert create_locked(tmp_path / "x") is None
    cleared.clear()
    with temporary_beside(tmp_path / "a") as mine:
        assert mine.exists()
