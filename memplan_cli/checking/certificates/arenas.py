"""Proofs that an arena cannot be lower, for arenas of a plan and for a packed CSV file.

*Load*: everything that is live at one tick has bytes of its own.

*Slots*: at levels 0 and 1 a slot is reused whole. If k tensors of one dtype (and shape, at level 0)
with at least some bytes are live at one tick, k slots have at least these bytes. So the k-th largest
slot has, and the sum over the slots of all dtypes and shapes is a bound.
"""

from __future__ import annotations

import csv
import io
import re
from bisect import bisect_left, insort
from collections import defaultdict
from hashlib import sha256
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.certificates.planned_graph import ProofError, require
from memplan_cli.checking.live_bytes import LiveBytes, align, tensor_storages
from memplan_cli.checking.tensors import Box, first_overlap
from memplan_cli.core.results.certificate import (
    NOT_CHECKABLE,
    NOT_CHECKED,
    REFUSED,
    VERIFIED,
    CertificateVerdict,
    PartVerdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.checking.certificates.planned_graph import SizedTensor
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.certificate import ArenaProof, Certificate, SlotLoad
    from memplan_cli.core.results.placements import Placement, PlannedArena

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_COLUMNS = ("lower", "upper", "size")


def check_arena(
    arena: PlannedArena, tensors: Mapping[str, SizedTensor], level: int, proof: ArenaProof
) -> None:
    """Check that a proof shows the lower bound of an arena.

    ``tensors`` are all tensors of the plan, by id; ``level`` is the plan's.

    Raises:
        ProofError: with the reason.
    """
    rows = {
        name: tensor.row for name, tensor in tensors.items() if tensor.row.arena == arena.id
    }
    if proof.method == "load":
        _check_load(arena, rows, proof)
    else:
        _check_slots(arena, rows, level, proof)


def _check_load(arena: PlannedArena, rows: Mapping[str, Placement], proof: ArenaProof) -> None:
    """Check that the aligned bytes live at the tick of a proof reach its bound.

    A tensor and its aliases have the same bytes, which count once.

    Raises:
        ProofError: the proof has no tick, fewer bytes are live, or an alias is wrong.
    """
    if proof.tick is None:
        raise ProofError("the proof names no tick")
    for name, row in rows.items():
        base = row.alias_of or name
        require(
            base in rows and rows[base].bytes == row.bytes,
            f"tensor {name[:120]!r} shares the bytes of {base[:120]!r}, which does not exist",
        )
    load = sum(
        align(storage.bytes, arena.alignment)
        for storage in tensor_storages(rows.values())
        if storage.first <= proof.tick < storage.end
    )
    require(
        load >= proof.bound,
        f"at tick {proof.tick} there are {load} bytes live, not {proof.bound}",
    )


def _check_slots(
    arena: PlannedArena, rows: Mapping[str, Placement], level: int, proof: ArenaProof
) -> None:
    """Check that the slots which the entries of a proof require have the bytes of its bound at least.

    An entry requires a number of slots for tensors of one dtype that are live at one tick. At level 0
    tensors of different shapes never share slots: then entries may be for one shape each, and the slots of
    different shapes are added up. Entries without a shape, and all at level 1, are for tensors of any shape.

    Raises:
        ProofError: with the reason.
    """
    require(level < 2, "at level 2 no slots are reused whole")
    require(  # each tensor that is counted below needs a slot of its own
        all(row.alias_of is None for row in rows.values()), "tensors of the arena share bytes"
    )
    require(
        level == 0 or all(entry.shape is None for entry in proof.slots),
        "at level 1 tensors of different shapes share slots, but the proof counts them separately",
    )
    entries_by_kind: dict[tuple[str, Shape | None], list[SlotLoad]] = defaultdict(list)
    for entry in proof.slots:
        entries_by_kind[entry.dtype, entry.shape].append(entry)
    of_any_shape = {entry.dtype for entry in proof.slots if entry.shape is None}
    of_one_shape = {entry.dtype for entry in proof.slots if entry.shape is not None}
    require(
        of_any_shape.isdisjoint(of_one_shape),
        "tensors are counted twice: of one shape, and of all",
    )
    total = 0
    for (dtype, shape), entries in entries_by_kind.items():
        tensors = [
            LiveBytes(row.first, row.last, align(row.bytes, arena.alignment))
            for row in rows.values()
            if row.dtype == dtype and shape in (None, row.shape)
        ]
        _check_slot_loads(entries, tensors)
        total += _slot_bytes(entries)
    require(total >= proof.bound, f"its slots take {total} bytes, not {proof.bound}")


def _slot_bytes(entries: Iterable[SlotLoad]) -> int:
    """Return the bytes of all slots that some entries require together.

    An entry requires ``number`` slots of at least ``bytes`` bytes. Larger slots, required by other
    entries, are among them.
    """
    total = slots = 0
    for entry in sorted(entries, key=lambda entry: -entry.bytes):
        total += max(entry.number - slots, 0) * entry.bytes
        slots = max(slots, entry.number)
    return total


def _check_slot_loads(entries: Iterable[SlotLoad], tensors: Iterable[LiveBytes]) -> None:
    """Check that each entry has its number of tensors, of at least its bytes, live at its tick.

    All entries are for one dtype, and ``tensors`` are the tensors of this dtype. One pass over ticks, with the
    sizes of live tensors sorted.

    Raises:
        ProofError: naming the first entry, by tick, for which there are fewer.
    """
    upcoming = sorted(tensors, key=attrgetter("first"), reverse=True)  # popped from the end
    live_sizes: list[int] = []  # sorted
    ends: list[tuple[int, int]] = []  # heap of (end, bytes) of live tensors
    for entry in sorted(entries, key=attrgetter("tick")):
        while upcoming and upcoming[-1].first <= entry.tick:
            tensor = upcoming.pop()
            insort(live_sizes, tensor.bytes)
            heappush(ends, (tensor.end, tensor.bytes))
        while ends and ends[0][0] <= entry.tick:
            _, size = heappop(ends)
            del live_sizes[bisect_left(live_sizes, size)]
        count = len(live_sizes) - bisect_left(live_sizes, entry.bytes)
        require(
            count >= entry.number,
            f"at tick {entry.tick} there are {count} tensors of at least {entry.bytes} bytes "
            f"and type {entry.dtype[:40]}, not {entry.number}",
        )


class _CsvBuffer(NamedTuple):
    """A buffer of a CSV file, live in ``[lower, upper)``; its offset is 0 in a problem file."""

    lower: int
    upper: int
    size: int
    offset: int = 0


def check_packing(
    certificate: Certificate, problem: bytes, layout: bytes
) -> CertificateVerdict:
    """Return the verdict on a certificate of a layout of the buffers in a CSV file.

    ``problem`` and ``layout`` are the contents of both files; only the layout has offsets. They take
    the places of a graph and its plan: the certificate has their digests in ``graph_sha256`` and
    ``plan_sha256``.
    """
    proofs = certificate.arenas
    other_proofs = certificate.order, certificate.recompute, *certificate.blocks
    try:
        require(
            (certificate.graph_sha256, certificate.plan_sha256)
            == (sha256(problem).hexdigest(), sha256(layout).hexdigest()),
            "the certificate is of other files: their digests differ",
        )
        require(
            len(proofs) == 1 and not any(other_proofs),
            "the certificate must have one arena proof and nothing else",
        )
        buffers = _read_csv(layout, (*_COLUMNS, "offset"))
        problem_buffers = _read_csv(problem, _COLUMNS)
        require(
            {name: buffer._replace(offset=0) for name, buffer in buffers.items()}
            == problem_buffers,
            "the layout's buffers are not those of the problem",
        )
        height = _layout_height(buffers)
    except ProofError as error:
        return CertificateVerdict((PartVerdict("layout", 0, REFUSED, "", str(error)),))
    return CertificateVerdict((_load_verdict(proofs[0], buffers.values(), height),))


def _load_verdict(
    proof: ArenaProof, buffers: Iterable[_CsvBuffer], height: int
) -> PartVerdict:
    """Return the verdict on the bound of a packed file.

    The bytes live at the tick of the proof must reach the bound, and ``height``, the height of the
    layout, must not be below it.
    """
    if proof.method == NOT_CHECKABLE:
        return PartVerdict("layout", proof.bound, NOT_CHECKED, proof.method, proof.why)
    tick, reason = proof.tick, ""
    if proof.method != "load" or tick is None:
        reason = "the proof names no tick"
    else:
        load = sum(buffer.size for buffer in buffers if buffer.lower <= tick < buffer.upper)
        if load < proof.bound:
            reason = f"at tick {tick} there are {load} bytes live, not {proof.bound}"
        elif height < proof.bound:
            reason = f"the layout is {height} bytes tall, and below the bound"
    status = REFUSED if reason else VERIFIED
    return PartVerdict("layout", proof.bound, status, proof.method, reason)


def _read_csv(data: bytes, columns: Sequence[str]) -> Mapping[str, _CsvBuffer]:
    """Return the buffers of a CSV file by id. Columns besides ``id`` and ``columns`` are ignored.

    ``columns`` are fields of `_CsvBuffer` in order.

    Raises:
        ProofError: the data is no CSV table, a number is invalid, an id is missing, or an id occurs
            twice.
    """
    try:
        table = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig")), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ProofError(f"a file is not a CSV table: {error}") from error
    buffers: dict[str, _CsvBuffer] = {}
    for line in table:
        # Under the key None are cells beyond the header. A cell that the line lacks is None.
        cells = {
            key.strip(): (cell or "").strip() for key, cell in line.items() if key is not None
        }
        name = cells.get("id", "")
        require(name, "a buffer has no id")
        require(name not in buffers, f"buffer {name[:120]!r} occurs twice")
        texts = [cells.get(column, "") for column in columns]
        for text in texts:
            require(_INTEGER.fullmatch(text), f"{text[:40]!r} is not a number")
        buffers[name] = _CsvBuffer(*map(int, texts))
    return buffers


def _layout_height(buffers: Mapping[str, _CsvBuffer]) -> int:
    """Return the highest end address of a buffer in a valid layout.

    Raises:
        ProofError: an offset or a size is negative, or two buffers share a byte at a tick.
    """
    names = list(buffers)
    for name, buffer in buffers.items():
        require(buffer.offset >= 0, f"buffer {name[:120]!r} lies below 0")
        require(buffer.size >= 0, f"buffer {name[:120]!r} has a negative size")
    overlap = first_overlap(
        [Box(b.lower, b.upper, b.offset, b.offset + b.size) for b in buffers.values()]
    )
    if overlap is not None:
        raise ProofError(
            f"buffer {names[overlap[1]][:120]!r} lies on the bytes of another one"
        )
    return max((buffer.offset + buffer.size for buffer in buffers.values()), default=0)
