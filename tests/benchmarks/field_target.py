"""What `optimize --target cpu` makes of the collection: its summary and its section."""

from __future__ import annotations

from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .field_rows import Row

PARTS = ("load", "run", "private")
NOISE = 1e6
"""Bytes by which one process may differ from the next."""


def figures(rows: Sequence[Row]) -> list[tuple[str, int, int]]:
    """Return (label, count, of) of what was written for the target."""
    passed = _passed(rows)
    known = [row for row in passed if _ratios(row)]
    return [
        ("`optimize --target cpu` passes", len(passed), _asked(rows)),
        ("of them with the original's bits", sum(bool(row.target["identical"]) for row in passed), len(passed)),
        ("of them no process above the original's by more than 1 MB", sum(not _above(row) for row in known), len(known)),
    ]  # fmt: skip


def section(rows: Sequence[Row]) -> list[str]:
    """Return the lines on the processes of the written files."""
    known = [row for row in _passed(rows) if _ratios(row)]
    lines = [
        "## Written for the processor",
        "",
        "Observed processes of the file that `optimize --target cpu` writes, against those of",
        "the model as given: geometric means over the models, then the worst.",
        "",
        "| figure | mean | worst |",
        "|---|---:|---|",
    ]
    for part in PARTS:
        ratios = {row.key: _ratios(row)[part] for row in known if part in _ratios(row)}
        if ratios:
            worst = max(ratios, key=ratios.__getitem__)
            mean = geometric_mean(ratios.values())
            lines.append(f"| {part} | {mean:.3f} | {ratios[worst]:.3f} `{worst[1]}` |")
    above = [f"- `{row.name}`: {', '.join(_above(row))}" for row in known if _above(row)]
    other = [row for row in _passed(rows) if not row.target["identical"]]
    return [
        *lines,
        "",
        "Above the original by more than 1 MB:",
        "",
        *(above or ["None."]),
        "",
        f"With other bits: {_names(other)}.",
        "",
    ]


def _passed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.ending("target").code == 0 and row.target]


def _asked(rows: Sequence[Row]) -> int:
    return sum(bool(row.target) or bool(row.ending("target").message) for row in rows)


def _sides(row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    process = row.target["process"]
    return process.get("original") or {}, process.get("optimized") or {}


def _ratios(row: Row) -> dict[str, float]:
    """Return what is left of each number of the process, where both sides were measured."""
    before, after = _sides(row)
    return {at: after[at] / before[at] for at in PARTS if before.get(at) and after.get(at)}


def _above(row: Row) -> list[str]:
    before, after = _sides(row)
    return [
        f"{at} {before[at] / 1e6:.1f} -> {after[at] / 1e6:.1f} MB"
        for at in _ratios(row)
        if after[at] > before[at] + NOISE
    ]


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(f"`{row.name}`" for row in rows) or "none"
