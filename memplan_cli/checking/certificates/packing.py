"""The certificate of a packed CSV file: no layout of its buffers is lower than the one given."""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left, insort
from hashlib import sha256
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.certificates.refused import RefusedError, refuse_unless
from memplan_cli.core.results.certificate import NOT_CHECKABLE
from memplan_cli.core.results.certified import (
    NOT_CHECKED,
    REFUSED,
    VERIFIED,
    Certified,
    PartVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.results.certificate import ArenaProof, Certificate

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_COLUMNS = ("lower", "upper", "size")


class _Row(NamedTuple):
    """A buffer, live in ``[lower, upper)``; without an offset in a problem's file."""

    lower: int
    upper: int
    size: int
    offset: int = 0


def check_packing(certificate: Certificate, problem: bytes, layout: bytes) -> Certified:
    """Check the certificate of a layout of the buffers in a CSV file.

    Args:
        certificate: With one arena, and about nothing else.
        problem: The file that was packed.
        layout: The file that was written, with offsets.
    """
    proofs = certificate.arenas
    try:
        refuse_unless(
            (certificate.graph_sha256, certificate.plan_sha256)
            == (sha256(problem).hexdigest(), sha256(layout).hexdigest()),
            "the certificate is of other files: their digests differ",
        )
        refuse_unless(
            len(proofs) == 1 and not certificate.order and not certificate.recompute,
            "the certificate is not about one arena alone",
        )
        rows = _read(layout, (*_COLUMNS, "offset"))
        wanted = {name: row[:3] for name, row in _read(problem, _COLUMNS).items()}
        refuse_unless(
            {name: row[:3] for name, row in rows.items()} == wanted,
            "the layout's buffers are not those of the problem",
        )
        height = _height(rows)
    except RefusedError as error:
        return Certified((PartVerdict("layout", 0, REFUSED, "", str(error)),))
    return Certified((_verdict(proofs[0], list(rows.values()), height),))


def _verdict(proof: ArenaProof, rows: Sequence[_Row], height: int) -> PartVerdict:
    if proof.method == NOT_CHECKABLE:
        return PartVerdict("layout", proof.bound, NOT_CHECKED, proof.method, proof.why)
    tick = proof.tick
    if proof.method != "load" or tick is None:
        reason = "it names no tick at which so much is live"
        return PartVerdict("layout", proof.bound, REFUSED, proof.method, reason)
    found = sum(row.size for row in rows if row.lower <= tick < row.upper)
    status, reason = VERIFIED, ""
    if found < proof.bound:
        status = REFUSED
        reason = f"at tick {tick} there are {found} bytes live, not {proof.bound}"
    elif height < proof.bound:
        status, reason = REFUSED, f"the layout is {height} bytes tall, and below the bound"
    return PartVerdict("layout", proof.bound, status, proof.method, reason)


def _read(data: bytes, columns: Sequence[str]) -> Mapping[str, _Row]:
    """Return the buffers of a CSV file by their ids.

    Raises:
        RefusedError: it is none, or a number of it is none.
    """
    try:
        table = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise RefusedError(f"a file is no table: {error}") from error
    rows: dict[str, _Row] = {}
    for line in table:
        cells = {(key or "").strip(): str(cell or "").strip() for key, cell in line.items()}
        name = cells.get("id", "")
        refuse_unless(name and name not in rows, f"buffer {name[:120]!r} is there twice")
        texts = [cells.get(column, "") for column in columns]
        for text in texts:
            refuse_unless(_NUMBER.fullmatch(text), f"{text[:40]!r} is no number")
        rows[name] = _Row(*map(int, texts))
    return rows


def _height(rows: Mapping[str, _Row]) -> int:
    """Return the top of the highest buffer.

    Raises:
        RefusedError: two buffers lie on the same bytes at one tick, or one below 0.
    """
    live: list[tuple[int, int]] = []
    ending: list[tuple[int, tuple[int, int]]] = []
    for name, row in sorted(rows.items(), key=lambda pair: pair[1].lower):
        refuse_unless(row.offset >= 0, f"buffer {name[:120]!r} lies below 0")
        refuse_unless(row.size >= 0, f"buffer {name[:120]!r} has a negative size")
        if not row.size or row.lower >= row.upper:
            continue
        while ending and ending[0][0] <= row.lower:
            _, gone = heappop(ending)
            del live[bisect_left(live, gone)]
        span = row.offset, row.offset + row.size
        at = bisect_left(live, span)
        refuse_unless(
            not _touching(live[max(at - 1, 0) : at + 1], span),
            f"buffer {name[:120]!r} lies on the bytes of another one",
        )
        insort(live, span)
        heappush(ending, (row.upper, span))
    return max((row.offset + row.size for row in rows.values()), default=0)


def _touching(spans: Iterable[tuple[int, int]], span: tuple[int, int]) -> bool:
    return any(low < span[1] and span[0] < high for low, high in spans)
