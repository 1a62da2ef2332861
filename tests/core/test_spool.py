"""Bytes that are gone through more than once, from memory or from a file."""

from __future__ import annotations

import errno
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from memplan_cli.core.compact import spool
from memplan_cli.core.compact.spool import Parts, spooled

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES = [b"one ", b"", b"two ", b"three" * 100]
WHOLE = b"".join(PIECES)


@pytest.fixture(params=[1, 1 << 20], ids=["file", "memory"])
def most_kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(spool, "MOST_KEPT", request.param)
    return int(request.param)


@pytest.mark.usefixtures("most_kept")
def test_the_bytes_come_out_as_they_went_in_as_often_as_one_likes() -> None:
    kept = spooled(iter(PIECES))
    assert b"".join(kept) == WHOLE
    assert b"".join(kept) == WHOLE
    assert b"".join(spooled(iter([]))) == b""


def test_who_reads_at_once_reads_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MOST_KEPT", 1)
    monkeypatch.setattr(spool, "_CHUNK", 7)
    kept = spooled(iter(PIECES))
    pairs = list(zip(kept, kept, strict=True))
    assert b"".join(one for one, _ in pairs) == b"".join(other for _, other in pairs) == WHOLE


def test_long_bytes_are_not_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "MOST_KEPT", 1)
    assert not isinstance(spooled(iter(PIECES)), (list, Parts))


def test_without_a_place_for_files_all_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nowhere(**_: Any) -> Any:  # noqa: ANN401 - as tempfile's
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(spool, "MOST_KEPT", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)
    kept = spooled(iter(PIECES))
    assert b"".join(kept) == b"".join(kept) == WHOLE


class _Small:
    """A file on a disk with room for some bytes."""

    def __init__(self, room: int) -> None:
        self.data, self.room, self.place = bytearray(), room, 0

    def write(self, data: memoryview) -> int:
        if len(self.data) == self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), self.room - len(self.data), 3)
        self.data += data[:taken]
        return taken

    def close(self) -> None:
        self.room = 0

    def seek(self, place: int) -> None:
        self.place = place

    def read(self, size: int) -> bytes:
        return bytes(self.data[self.place : self.place + size])


@pytest.mark.parametrize("room", [0, 2, 4, 6, 8, 100])
def test_what_a_full_disk_has_no_room_for_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr(spool, "MOST_KEPT", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: _Small(room))
    kept = spooled(iter(PIECES))
    assert b"".join(kept) == WHOLE
    assert b"".join(kept) == WHOLE


def test_parts_are_gone_through_in_their_order() -> None:
    def pieces() -> Iterator[bytes]:
        yield from PIECES

    parts = Parts([b"<"], spooled(pieces()), [b">"])
    assert b"".join(parts) == b"".join(parts) == b"<" + WHOLE + b">"
