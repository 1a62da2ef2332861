"""The page of other runtimes, from the figures that `runtimes` keeps."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from .charts import main as draw_charts
from .pages import MEASUREMENTS, replace_figures
from .process_page import mean
from .runtimes import NETWORKS, RUNTIMES, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .process import Json

PAGE = MEASUREMENTS / "runtimes.md"

BASE = "defaults"
KEYS = {
    "load": "load",
    "run": "run",
    "private": "private",
    "whole": "whole process",
    "create": "seconds to load",
    "time": "time of a run",
}
"""The figures of a row, and their columns."""

NOISE = 0.02
"""The share by which a figure has to be lower to count."""


def write_page(folder: Path) -> None:
    """Write the tables of the networks that are done into the page, and draw its chart again."""
    files = [folder / f"{name}.json" for name in NETWORKS]
    rows = [json.loads(file.read_text()) for file in files if file.exists()]
    replace_figures(PAGE, "\n".join(tables([row for row in rows if "times" in row])))
    draw_charts()


def tables(rows: Sequence[Json]) -> Iterator[str]:
    """Yield the lines of all tables."""
    yield from summary(rows, BASE, "runtime")
    yield ""
    yield from summary(rows, "memplan", "against memplan")
    yield ""
    for table in (lower_elsewhere, failures, processes):
        yield from table(rows)
        yield ""


def figure(row: Json, name: str, key: str) -> float | None:
    """Return a figure of a runtime in MB, seconds or milliseconds; None if it was not measured."""
    if key == "time":
        milliseconds: float | None = row["times"].get(name)
        return milliseconds
    if key not in row.get(name, {}):
        return None
    value: float = row[name][key]
    return value if key == "create" else value / 1e6


def summary(rows: Sequence[Json], base: str, title: str) -> Iterator[str]:
    """Yield geometric means against one runtime, of the networks that each of the others has run."""
    yield f"| {title} | networks | {' | '.join(KEYS.values())} | largest difference |"
    yield "|---|--:|" + "--:|" * (len(KEYS) + 1)
    for name, runtime in RUNTIMES.items():
        if name == base:
            continue
        done = [row for row in rows if "error" not in row[name]]
        cells = [mean(done, name, key, base) for key in KEYS]
        texts = ["-" if cell is None else f"{cell:.3f}" for cell in cells]
        largest = max((row[name]["difference"] for row in done), default=0.0)
        is_same = all(row[name]["bits"] == row[BASE]["bits"] for row in done)
        apart = "same bits" if is_same else f"{largest:.1e}"
        yield f"| {runtime.title} | {len(done)} | {' | '.join(texts)} | {apart} |"


def lower_elsewhere(rows: Sequence[Json]) -> Iterator[str]:
    """Yield, for each network, the runtime that needs least where neither of memplan's files does."""
    yield f"| lower than both files of memplan | {' | '.join(KEYS.values())} |"
    yield "|---|" + "---|" * len(KEYS)
    for row in rows:
        cells = [_lowest(row, key) for key in KEYS]
        if any(cells):
            yield f"| {row['name']} | {' | '.join(cells)} |"


def _lowest(row: Json, key: str) -> str:
    """Return the runtime with the lowest figure, and that of memplan's lower file; empty if that is lower."""
    found = {name: value for name in RUNTIMES if (value := figure(row, name, key)) is not None}
    ours = min((found[name] for name in SETTINGS if name in found), default=None)
    name = min(found, key=lambda each: found[each])
    if ours is None or found[name] >= (1 - NOISE) * ours:
        return ""
    title = RUNTIMES[name].title.split(",")[0 if RUNTIMES[name].packages else 1].strip()
    return f"{title}: {_number(found[name])} of {_number(ours)}"


def failures(rows: Sequence[Json]) -> Iterator[str]:
    """Yield what runtimes could not do, with the last line of each error."""
    yield "| not measured | network | reason |"
    yield "|---|---|---|"
    for name, runtime in RUNTIMES.items():
        for row in rows:
            if "error" in row[name]:
                yield f"| {runtime.title} | {row['name']} | {_reason(row[name]['error'])} |"


def _reason(error: str) -> str:
    """Return the last message of an error without paths and characters of tables."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    messages = [line for line in lines if re.match(r"[\w.]+Error: ", line)]
    line = re.sub(r"(/[\w.+-]+){2,}/", "", (messages or lines)[-1])
    return line.replace("|", "/")[:160]


def processes(rows: Sequence[Json]) -> Iterator[str]:
    """Yield all figures: MB, seconds of the processor, and milliseconds of a run."""
    yield (
        f"| network | runtime | {' | '.join(KEYS.values())} | file-mapped | spread "
        "| difference |"
    )
    yield "|---|---|" + "--:|" * (len(KEYS) + 3)
    for row in rows:
        for name, runtime in RUNTIMES.items():
            if "error" not in row[name]:
                values = [figure(row, name, key) for key in (*KEYS, "file", "spread")]
                cells = " | ".join("-" if v is None else _number(v) for v in values)
                same = row[name]["bits"] == row[BASE]["bits"]
                apart = "same bits" if same else f"{row[name]['difference']:.0e}"
                yield f"| {row['name']} | {runtime.title} | {cells} | {apart} |"


def _number(value: float) -> str:
    """Return a figure with as many digits as it is worth."""
    return f"{value:.1f}" if value >= 1 else f"{value:.3f}"
