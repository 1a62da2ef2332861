"""The page of whole processes, from the figures that `process` keeps."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from .charts import main as draw_charts
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PAGE = MEASUREMENTS / "process.md"

PARTS = ("default", "external", "portable", "cpu")
KEYS = ("load", "run", "private", "file")
RATIOS = ("load", "run", "private", "time")

GOALS = {"load": 0.15, "run": 0.60, "private": 0.10, "time": 1.02}

FLOOR = "one_identity"
"""The row of a session that does nothing."""

LARGE = 50_000_000
"""Bytes of a process, under the defaults, from which it is a large one."""

NOISE = 1_000_000
"""Bytes by which two measurements of a process may differ."""

Json = dict[str, Any]


def write_page(folder: Path) -> None:
    """Write the tables into the page, and draw its chart again."""
    rows = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    complete = {
        name: row for name, row in rows.items() if "error" not in row.get("cpu", {"error": 0})
    }
    floor = rows.get(FLOOR, {}).get("default")
    replace_figures(PAGE, "\n".join(tables(complete, floor)))
    draw_charts()


def tables(rows: dict[str, Json], floor: Json | None) -> Iterator[str]:
    """Yield the lines of all tables."""
    yield from summary(rows)
    yield ""
    if floor:
        yield from summary_beyond(rows, floor)
        yield ""
    yield from standing(rows)
    yield ""
    yield from above_one(rows)
    yield ""
    yield from limits(rows)
    yield ""
    yield from processes(rows)


def ratio(row: Json, part: str, key: str, base: str = "default") -> float | None:
    """Return one figure of a part against the base; None where it is not known."""
    if part not in row or "error" in row[part]:
        return None
    if key == "time":
        times = row.get("times", {})
        return times[part] / times[base] if {part, base} <= times.keys() else None
    return float(row[part][key] / row[base][key]) if row[base][key] else None


def mean(rows: Sequence[Json], part: str, key: str, base: str = "default") -> float | None:
    """Return the geometric mean of what is known."""
    found = [value for row in rows if (value := ratio(row, part, key, base))]
    return math.exp(sum(map(math.log, found)) / len(found)) if found else None


def summary(rows: dict[str, Json]) -> Iterator[str]:
    """Yield the means: of all models, and of those whose process is a large one."""
    groups = {
        "all": list(rows.values()),
        "large under the defaults": [r for r in rows.values() if r["default"]["run"] > LARGE],
    }
    yield "| models | file | load | run | private | time | same bits as the defaults |"
    yield "|---|---|---|---|---|---|---|"
    yield "| goal | cpu | " + " | ".join(f"{GOALS[key]:.2f}" for key in RATIOS) + " | all |"
    for name, group in groups.items():
        for part in ("cpu", "portable"):
            cells = (shown(mean(group, part, key)) for key in RATIOS)
            same = sum(
                row.get(part, {}).get("bits") == row["default"]["bits"] for row in group
            )
            yield f"| {name} ({len(group)}) | {part} | {' | '.join(cells)} | {same} |"
        cells = (shown(mean(group, "cpu", key, "external")) for key in RATIOS[:3])
        yield f"| {name} ({len(group)}) | cpu, against external data | {' | '.join(cells)} | | |"


def summary_beyond(rows: dict[str, Json], floor: Json) -> Iterator[str]:
    """Yield the means of what is beyond a session of one Identity, which no file can lower."""
    sizes = ", ".join(f"{key} {floor[key] / 1e6:.1f} MB" for key in KEYS)
    yield f"A session of one Identity: {sizes}. Of what is **beyond** it, where the defaults are"
    yield f"{NOISE / 1e6:.0f} MB beyond it or more (in brackets: of how many models):"
    yield ""
    yield "| file | load | run | private |"
    yield "|---|---|---|---|"
    for part, base in (("cpu", "default"), ("portable", "default"), ("cpu", "external")):
        cells = []
        for key in KEYS[:3]:
            found = [beyond(row, part, base, key, floor[key]) for row in rows.values()]
            known = [value for value in found if value is not None]
            middle = math.exp(sum(map(math.log, known)) / len(known)) if known else None
            cells.append(f"{shown(middle)} ({len(known)})")
        against = "" if base == "default" else ", against external data"
        yield f"| {part}{against} | {' | '.join(cells)} |"


def standing(rows: dict[str, Json]) -> Iterator[str]:
    """Yield the mean of what a session keeps: no way of loading these files takes less."""
    found = [row for row in rows.values() if "stands" in row["cpu"]]
    if found:
        logs = [math.log(row["cpu"]["stands"] / row["default"]["load"]) for row in found]
        mean = math.exp(sum(logs) / len(logs))
        yield f"What sessions of `cpu` keep when they stand, against the defaults' `load`: {mean:.3f}"
        yield f"({len(found)} models). No way of loading these graphs takes less."


def beyond(row: Json, part: str, base: str, key: str, floor: float) -> float | None:
    """Return a ratio of what is beyond a floor; what is at the floor counts as a tenth of noise."""
    if any(name not in row or "error" in row[name] for name in (part, base)):
        return None
    there, here = row[base][key] - floor, row[part][key] - floor
    return None if there < NOISE else max(here, NOISE / 10) / there


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def above_one(rows: dict[str, Json]) -> Iterator[str]:
    """Yield what is above the defaults by more than measurements differ."""
    found = [
        f"{name} {part} {key} {row[part][key] / 1e6:.1f} MB for {row['default'][key] / 1e6:.1f}"
        for name, row in rows.items()
        for part in ("cpu", "portable")
        for key in KEYS[:3]
        if "error" not in row.get(part, {"error": ""})
        and row[part][key] > row["default"][key] + NOISE
    ]
    slow = [
        f"{name} {part} {value:.2f}"
        for name, row in rows.items()
        for part in ("cpu", "portable")
        if (value := ratio(row, part, "time") or 0) > GOALS["time"]
    ]
    yield f"Above the defaults by more than {NOISE / 1e6:.0f} MB: {'; '.join(found) or 'none'}."
    yield ""
    yield f"Slower than {GOALS['time']}: {'; '.join(slow) or 'none'}."


def limits(rows: dict[str, Json]) -> Iterator[str]:
    """Yield the smallest memory limits."""
    yield "| model | smallest limit, MB: defaults | cpu |"
    yield "|---|---|---|"
    for name, row in rows.items():
        if "limits" in row:
            cells = (limit(row["limits"].get(part)) for part in ("default", "cpu"))
            yield f"| {name} | {' | '.join(cells)} |"


def limit(found: Json | None) -> str:
    if found is None:
        return "-"
    return (
        f"{found['limit'] / 1e6:.0f}"
        if "limit" in found
        else f"resident {found['resident'] / 1e6:.0f}"
    )


def processes(rows: dict[str, Json]) -> Iterator[str]:
    """Yield a line for each model and file."""
    yield "| model | file | load | run | private | file-mapped | spread | disk | time | bits |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, row in rows.items():
        for part in PARTS:
            found = row.get(part, {"error": "not measured"})
            if "error" in found:
                yield f"| {name} | {part} | {found['error'][:60]} | | | | | | | |"
                continue
            sizes = (f"{found[key] / 1e6:.1f}" for key in (*KEYS, "spread", "disk"))
            time = shown(ratio(row, part, "time")) if part in row.get("times", {}) else "-"
            bits = "same" if found["bits"] == row["default"]["bits"] else "other"
            if not row["default"].get("steady", True):
                bits = "not steady"
            yield f"| {name} | {part} | {' | '.join(sizes)} | {time} | {bits} |"
