"""A file gets onto the disk whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memplan_cli.core.files import staged, write_files
from memplan_cli.errors import ModelError


def test_several_files_are_written(tmp_path: Path) -> None:
    write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_a_file_may_be_given_piece_by_piece(tmp_path: Path) -> None:
    write_files({tmp_path / "a": iter((b"1", b"", b"23")), tmp_path / "b": [b"4"]})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"a": b"123", "b": b"4"}


def test_an_old_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_files({path: b"new"})
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_one_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    real, link = tmp_path / "far" / "a", tmp_path / "a"
    real.write_bytes(b"old")
    link.symlink_to(real)
    write_files({link: b"new"})
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert [path.name for path in real.parent.iterdir()] == ["a"]


def test_a_link_to_nothing_makes_the_file_it_names(tmp_path: Path) -> None:
    link = tmp_path / "a"
    link.symlink_to(tmp_path / "b")
    write_files({link: b"new"})
    assert link.is_symlink()
    assert (tmp_path / "b").read_bytes() == b"new"


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_files({pipe: b"new", tmp_path / "a": b"1"})
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert (tmp_path / "a").read_bytes() == b"1"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_device_that_takes_nothing_leaves_the_old_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(ModelError, match="/dev/full cannot be written: No space left"):
        write_files({tmp_path / "a": b"new", Path("/dev/full"): b"1"})
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
    assert Path("/dev/full").is_char_device()


def test_a_new_file_has_the_mode_that_others_have(tmp_path: Path) -> None:
    write_files({tmp_path / "a": b""})
    (tmp_path / "plain").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_that_is_not_there_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none.*cannot be written"):
        write_files({tmp_path / "a": b"1", tmp_path / "none" / "b": b"2"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody can write")
def test_a_folder_that_cannot_be_written_is_refused_by_the_targets_name() -> None:
    with pytest.raises(ModelError, match=r"^/proc/self/model\.onnx cannot be written"):
        write_files({Path("/proc/self/model.onnx"): b"1"})
    with (
        pytest.raises(ModelError, match=r"^/proc/self/model\.onnx cannot be written"),
        staged(Path("/proc/self/model.onnx"), b"1"),
    ):
        pass


def test_when_one_cannot_be_put_in_place_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if target.name == "second":
            raise OSError(28, "No space left on device", str(target))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(ModelError, match="second cannot be written: No space left"):
        write_files({tmp_path / "first": b"1", tmp_path / "second": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match="No space left"):
        write_files({path: b"new"})
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a": b"new"})
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_is_there_for_as_long_as_the_block_lasts(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    with staged(target, b"trial") as trial:
        assert trial.parent == tmp_path
        assert trial.read_bytes() == b"trial"
        assert not target.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_goes_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), staged(tmp_path / "m", b"trial"):
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []


def test_a_very_long_name_can_be_staged(tmp_path: Path) -> None:
    write_files({tmp_path / ("n" * 240): b"1"})
    assert len(list(tmp_path.iterdir())) == 1
