"""Packing problems and their layouts as CSV files.

The format is MiniMalloc's: a header, then one buffer in each line, live in ``[lower, upper)``.

    id,lower,upper,size            id,lower,upper,size,offset
    a,0,3,64                 ->    a,0,3,64,0
    b,1,5,32                       b,1,5,32,64

A file is untrusted: the length of lines is limited, and every fault is reported with its line.
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
from memplan_cli.errors import InvalidLayoutError, ModelError, unreadable
from memplan_cli.packing import portfolio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

COLUMNS = ("id", "lower", "upper", "size")
MAX_LINE_BYTES = 64 * 1024
"""Bytes of the longest line that is read; real lines have some dozens."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)

_MICROSECONDS = json_form(write=lambda seconds: round(seconds, 6))


@dataclass(frozen=True, slots=True)
class PackingResult:
    """A problem and the lowest layout that was found for it.

    Attributes:
        problem: The buffers.
        layout: Their offsets.
        lower_bound: Bytes that no layout can be below.
        seconds: Wall time of the search.
        capacity: Bytes within which the layout has to fit; None if as few as possible are wanted.
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

    def __repr__(self) -> str:
        """Return one line with the number of buffers, and the bytes that they need."""
        proved = ", proved" if self.layout.proved else f", at least {self.lower_bound}"
        return f"<PackingResult: {self.buffers} buffers in {self.layout.height} bytes{proved}>"

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
) -> PackingResult:
    """Return the lowest layout found for a problem, or the first within ``capacity`` bytes.

    The search stops after ``time_limit`` seconds. ``progress`` is called with the name of each stage.

    Raises:
        InvalidLayoutError: an allocator returned a layout that is not safe.
    """
    started = time.perf_counter()
    layout = portfolio(
        problem, time_limit=time_limit, target_height=capacity or 0, progress=progress
    )
    seconds = time.perf_counter() - started
    for violation in violations(problem, layout):
        raise InvalidLayoutError(f"{violation.reason}: {', '.join(violation.buffers[:2])}")
    return PackingResult(problem, layout, lower_bound(problem), seconds, capacity)


def read_problem(path: Path) -> Problem:
    """Read a problem from a CSV file.

    Raises:
        ModelError: the file cannot be read, or a line of it is wrong.
    """
    try:
        with path.open("rb") as file:
            return Problem(tuple(_buffers(path, file)))
    except OSError as error:
        raise unreadable(path, error, ModelError) from None


def _buffers(path: Path, file: IO[bytes]) -> Iterator[Buffer]:
    """Yield the buffers of a file, in the order of its lines.

    Raises:
        ModelError: a line is wrong; the message begins with its path and number.
    """
    rows = _rows(path, file)
    line, header = next(rows, (1, []))
    column = _column_indices(f"{path}:{line}", header)
    line_of_id: dict[str, int] = {}
    for line, row in rows:
        location = f"{path}:{line}"
        if len(row) != len(header):
            raise ModelError(f"{location}: {len(row)} fields under {len(header)} columns")
        buffer = _buffer(location, {name: row[index] for name, index in column.items()})
        if buffer.id in line_of_id:
            first_line = line_of_id[buffer.id]
            raise ModelError(f"{location}: id {buffer.id!r} was used in line {first_line}")
        line_of_id[buffer.id] = line
        yield buffer


def _rows(path: Path, file: IO[bytes]) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the stripped fields of every line that is not blank.

    Raises:
        ModelError: a line is too long, or is no UTF-8 or CSV.
    """
    line = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        line += 1
        if len(raw) > MAX_LINE_BYTES:
            raise ModelError(f"{path}:{line}: longer than {MAX_LINE_BYTES} bytes")
        try:
            text = raw.decode("utf-8-sig" if line == 1 else "utf-8").strip()
            # One line at a time: a quote that is not closed must not swallow the file.
            if text:
                yield line, [field.strip() for field in next(csv.reader([text], strict=True))]
        except (UnicodeDecodeError, csv.Error) as error:
            raise ModelError(f"{path}:{line}: {error}") from error


def _column_indices(location: str, header: list[str]) -> Mapping[str, int]:
    """Return the index of each of `COLUMNS` in the header.

    ``location`` is the path and line for messages.

    Raises:
        ModelError: a column is missing, unknown, or named twice.
    """
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise ModelError(
            f"{location}: no column {', '.join(missing)}",
            hint=f"the first line names the columns: {','.join(COLUMNS)}",
        )
    # An unknown column may be a constraint (MiniMalloc has some), which must not be ignored.
    for name in header:
        if name not in (*COLUMNS, "offset"):
            raise ModelError(f"{location}: unknown column {name[:80]!r}")
        if header.count(name) > 1:
            raise ModelError(f"{location}: column {name} twice")
    return {name: header.index(name) for name in COLUMNS}


def _buffer(location: str, fields: Mapping[str, str]) -> Buffer:
    """Return the buffer of one line, from its fields by column name.

    ``location`` is the path and line for messages.

    Raises:
        ModelError: a field is wrong.
    """
    lower, upper, size = (_number(location, name, fields[name]) for name in COLUMNS[1:])
    if not fields["id"]:
        raise ModelError(f"{location}: empty id")
    if size < 0:
        raise ModelError(f"{location}: size is negative: {size}")
    if lower >= upper:
        raise ModelError(f"{location}: lower {lower} is not below upper {upper}")
    return Buffer(BufferId(fields["id"]), size, LiveRange(lower, upper))


def _number(location: str, column: str, text: str) -> int:
    """Return the integer in a field.

    Raises:
        ModelError: the text is no integer, or has more than 18 digits.
    """
    if not _NUMBER.fullmatch(text):
        raise ModelError(
            f"{location}: {column} is not a whole number of at most 18 digits: {text[:80]!r}"
        )
    return int(text)


def layout_csv(result: PackingResult) -> str:
    """Return the problem as CSV with an ``offset`` column."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*COLUMNS, "offset"))
    for buffer in result.problem.buffers:
        offset = result.layout.offsets[buffer.id]
        writer.writerow((buffer.id, buffer.live.start, buffer.live.end, buffer.size, offset))
    return file.getvalue()
