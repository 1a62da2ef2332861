"""Packing problems and their layouts as CSV files.

The format is MiniMalloc's: a header, then one buffer a line, live in ``[lower, upper)``.

    id,lower,upper,size            id,lower,upper,size,offset
    a,0,3,64                 ->    a,0,3,64,0
    b,1,5,32                       b,1,5,32,64

A file is untrusted: lines have a largest length, so that no file takes more memory than it
has buffers, and every fault is reported with its line.
"""

from __future__ import annotations

import csv
import io
import re
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, ClassVar

from memplan_cli.core.json_types import Count, NotNegative  # noqa: TC001 - types to read by
from memplan_cli.core.problem import (
    Buffer,
    BufferId,
    Layout,
    LiveRange,
    Problem,
    lower_bound,
    violations,
)
from memplan_cli.core.serialization import Keys, json_form
from memplan_cli.errors import InvalidLayoutError, ModelError
from memplan_cli.packing import portfolio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

COLUMNS = ("id", "lower", "upper", "size")
LONGEST_LINE = 64 * 1024
"""Bytes; real lines have some dozens."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


_MICROSECONDS = json_form(write=lambda seconds: round(seconds, 6))


@dataclass(frozen=True, slots=True)
class Packed:
    """A problem and the best layout that was found for it.

    Attributes:
        problem: the problem.
        layout: the layout.
        lower_bound: a height that no layout is below.
        seconds: the wall time of the search.
        capacity: the bytes that the layout has to fit; None: as few as possible.
    """

    json_keys: ClassVar[Keys] = (
        "buffers",
        "lower_bound",
        ("height", "layout.height"),
        ("proved", "layout.proved"),
        "seconds",
    )

    problem: Problem
    layout: Layout
    lower_bound: int
    seconds: NotNegative = field(metadata=_MICROSECONDS)
    capacity: int | None = None

    @property
    def buffers(self) -> Count:
        """Return the number of buffers."""
        return len(self.problem.buffers)

    @property
    def passed(self) -> bool:
        """Whether the layout is within the capacity."""
        return self.capacity is None or self.layout.height <= self.capacity


def pack(
    problem: Problem,
    *,
    capacity: int | None = None,
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Packed:
    """Pack a problem: as low as can be, or until it fits ``capacity`` bytes.

    Raises:
        InvalidLayoutError: an allocator made a layout that is not safe.
    """
    started = time.perf_counter()
    layout = portfolio(problem, time_limit=time_limit, enough=capacity or 0, progress=progress)
    seconds = time.perf_counter() - started
    for violation in violations(problem, layout):
        raise InvalidLayoutError(f"{violation.reason}: {', '.join(violation.buffers[:2])}")
    return Packed(problem, layout, lower_bound(problem), seconds, capacity)


def read_problem(path: Path) -> Problem:
    """Read a problem from a CSV file.

    Raises:
        ModelError: the file cannot be read, or a line of it is wrong.
    """
    try:
        with path.open("rb") as file:
            return Problem(tuple(_buffers(path, file)))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error


def _buffers(path: Path, file: IO[bytes]) -> Iterator[Buffer]:
    rows = _rows(path, file)
    line, header = next(rows, (1, []))
    place = _columns(f"{path}:{line}", header)
    known: dict[str, int] = {}
    for line, row in rows:
        where = f"{path}:{line}"
        if len(row) != len(header):
            raise ModelError(f"{where}: {len(row)} fields under {len(header)} columns")
        buffer = _buffer(where, {name: row[at] for name, at in place.items()})
        if buffer.id in known:
            raise ModelError(f"{where}: id {buffer.id!r} was used in line {known[buffer.id]}")
        known[buffer.id] = line
        yield buffer


def _rows(path: Path, file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the stripped fields of every line that is not blank."""
    line = 0
    while raw := file.readline(LONGEST_LINE + 1):
        line += 1
        if len(raw) > LONGEST_LINE:
            raise ModelError(f"{path}:{line}: longer than {LONGEST_LINE} bytes")
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            # One line at a time: a quote that is not closed must not swallow the file.
            if text:
                yield line, [field.strip() for field in next(csv.reader([text], strict=True))]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ModelError(f"{path}:{line}: {error}") from error


def _columns(where: str, header: list[str]) -> Mapping[str, int]:
    """Return the place of each column we need."""
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ModelError(
            f"{where}: no column {', '.join(missing)}",
            hint=f"the first line names the columns: {','.join(COLUMNS)}",
        )
    # An unknown column may be a constraint (MiniMalloc has some); to ignore it would be wrong.
    for name in header:
        if name not in (*COLUMNS, "offset"):
            raise ModelError(f"{where}: unknown column {name[:80]!r}")
        if header.count(name) > 1:
            raise ModelError(f"{where}: column {name} twice")
    return {name: header.index(name) for name in COLUMNS}


def _buffer(where: str, fields: Mapping[str, str]) -> Buffer:
    lower, upper, size = (_number(where, name, fields[name]) for name in COLUMNS[1:])
    if not fields["id"]:
        raise ModelError(f"{where}: empty id")
    if size < 0:
        raise ModelError(f"{where}: size is negative: {size}")
    if lower >= upper:
        raise ModelError(f"{where}: lower {lower} is not below upper {upper}")
    return Buffer(BufferId(fields["id"]), size, LiveRange(lower, upper))


def _number(where: str, name: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise ModelError(
            f"{where}: {name} is not a whole number of at most 18 digits: {text[:80]!r}"
        )
    return int(text)


def layout_csv(packed: Packed) -> str:
    """Return the problem as CSV with an ``offset`` column."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow((*COLUMNS, "offset"))
    for b in packed.problem.buffers:
        offset = packed.layout.offsets[b.id]
        rows.writerow((b.id, b.live.start, b.live.end, b.size, offset))
    return file.getvalue()
