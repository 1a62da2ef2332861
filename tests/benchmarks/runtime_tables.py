"""The figures of `runtime_settings` as Markdown: tables, geometric means, and reasons."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Figures = tuple[float | None, ...]

NAMES = ("first run", "held", "held-w", "time")

TARGETS: Mapping[str, Figures] = {
    "settings": (0.78, None, 0.34, 1.02),
    "cpu": (0.66, 0.45, 0.27, 1.05),
}
"""What each figure's geometric mean has to be at most; None where nothing is asked."""

_EQUAL = 0.005

_OFFERS: Mapping[str, str] = {
    "ALL DEFAULT": "optimised, DEFAULT",
    "ALL PRIORITY_BASED": "optimised, PRIORITY_BASED",
    "OFF DEFAULT": "as it is, DEFAULT",
    "OFF PRIORITY_BASED": "as it is, PRIORITY_BASED",
}
"""Columns of the table of the runtime's own orders."""


def tables(rows: Sequence[Row], ratios: Callable[[Row, str], Figures]) -> str:
    """Return the table of settings and targets, and the one of measured orders."""
    left = [row for row in rows if "error" in row.get("default", {"error": ""})]
    rows = [row for row in rows if row not in left]
    parts = [_main(rows, ratios), "", _orders(rows, ratios), "", _offers(rows)]
    if left:
        said = "; ".join(f"{row['name']} ({_error(row)})" for row in left)
        parts += ["", f"Not measured: {said}."]
    return "\n".join(parts)


def _error(row: Row) -> str:
    return str(row.get("default", {}).get("error", "nothing there"))


def _main(rows: Sequence[Row], ratios: Callable[[Row, str], Figures]) -> str:
    names = [*NAMES, *NAMES]
    text = [
        "| model | " + " | ".join(names) + " | same bits | why not less |",
        "|---|" + "---|" * (len(names) + 2),
    ]
    for row in rows:
        figures = [*ratios(row, "settings"), *ratios(row, "cpu")]
        cells = " | ".join(map(_cell, figures))
        text.append(f"| {row['name']} | {cells} | {_bits(row)} | {reason(row, ratios)} |")
    means = [
        mean([ratios(row, part)[at] for row in rows])
        for part in ("settings", "cpu")
        for at in range(len(NAMES))
    ]
    asked = [*TARGETS["settings"], *TARGETS["cpu"]]
    text.append(
        "| **geometric mean** | " + " | ".join(f"**{_cell(m)}**" for m in means) + " | | |"
    )
    text.append("| asked | " + " | ".join(_cell(goal) for goal in asked) + " | | |")
    return "\n".join(text)


def _orders(rows: Sequence[Row], ratios: Callable[[Row, str], Figures]) -> str:
    text = ["| model | original | written | ratio | same bits |", "|---|---|---|---|---|"]
    for row in rows:
        part = row.get("portable", {"error": "not measured"})
        if "error" in part:
            text.append(f"| {row['name']} | | | | {part['error'][:80]} |")
            continue
        before, after = (row[p]["observed"]["first_run_peak"] for p in ("default", "portable"))
        ratio = _cell(ratios(row, "portable")[0])
        bits = "yes" if part["bits"] else part["outputs"]
        text.append(f"| {row['name']} | {before} | {after} | {ratio} | {bits} |")
    middle = mean([ratios(row, "portable")[0] for row in rows])
    text.append(f"| **geometric mean** | | | **{_cell(middle)}** | |")
    return "\n".join(text)


def reason(row: Row, ratios: Callable[[Row, str], Figures]) -> str:
    """Say of the written file why its peak and its arena are not smaller, from evidence."""
    part = row.get("cpu", {"error": "not measured"})
    if "error" in part:
        return str(part["error"])[:120]
    observed, bound = part["observed"], part["bound"]
    peak, held = observed["first_run_peak"], observed["held"] - observed["weights"]
    said = []
    if bound and peak <= bound * (1 + _EQUAL):
        said.append("peak: no order of this graph needs less (proved)")
    elif bound:
        said.append(
            f"peak: the bound is {bound / peak:.2f} of it, settings and outputs differ"
        )
    elif part["graph"] == "file's":
        said.append("peak: the file's own graph needs less than the fused one")
    else:
        said.append("peak: sizes depend on data")
    scratch = observed["scratch"] or 0
    if held > peak * (1 + _EQUAL) + 4096:
        said.append(
            f"arena: {held / peak:.2f} of the peak, kernels' workspace {scratch} bytes"
        )
    worst = ratios(row, "cpu")[0]
    if worst is not None and worst > 1 + 1e-9:
        said.append("above the defaults")
    return "; ".join(said)


def _offers(rows: Sequence[Row]) -> str:
    """Draw what each of the runtime's own orders needs: settings can choose no other."""
    text = [
        "| model | " + " | ".join(_OFFERS.values()) + " |",
        "|---|" + "---|" * len(_OFFERS),
    ]
    for row in rows:
        found = row.get("settings", {}).get("offered", {})
        before = row["default"]["observed"]["first_run_peak"]
        cells = (_cell(found[key] / before) if key in found else "" for key in _OFFERS)
        text.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(text)


def _bits(row: Row) -> str:
    said = []
    for name in ("settings", "cpu"):
        part = row.get(name, {})
        said.append("yes" if part.get("bits") else str(part.get("outputs", "-")))
    return said[0] if said[0] == said[1] else "/".join(said)


def mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean of what is there."""
    known = [value for value in values if value]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else None


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"
