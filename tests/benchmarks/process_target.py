"""Hold the process that `optimize` predicts of the file that it writes against those observed.

    PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.process_target

Reads what `process bytes` has kept in ``out/process/``: the prediction and the observation of the
command's own report, and the median of fresh processes that load the file by `memplan_cli.load` and
do nothing else. Goes into docs/measurements/process_prediction.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .process import OUT
from .process_prediction import BYTES, NUMBERS, SHARE, megabytes, written

if TYPE_CHECKING:
    from collections.abc import Iterator

SET = "written"
"""The marks of its table in the page."""

PARTS = ("cpu", "portable")

Json = dict[str, Any]


def rows() -> Iterator[tuple[str, str, Json]]:
    """Yield model, part and figures of each file that was written and measured."""
    for path in sorted(OUT.glob("*.json")):
        row: Json = json.loads(path.read_text())
        for part in PARTS:
            if "error" not in (found := row.get(part, {"error": ""})):
                yield path.stem, part, found


def is_near(value: float, alone: Json, number: str) -> bool:
    """Whether a figure is as near as is asked to that of a process alone."""
    room = max(SHARE * alone[number], BYTES) + alone["spread"]
    return bool(abs(value - alone[number]) <= room)


def cells(found: Json) -> Iterator[str]:
    """Yield for each number: predicted, reported, alone; bold what is too far off."""
    for number in NUMBERS:
        for source in ("predicted", "reported"):
            said = (found.get(source) or {}).get(number)
            if said is None:
                yield "-"
                continue
            text = megabytes(said)
            yield text if is_near(said, found, number) else f"**{text}**"
        yield megabytes(found[number])


def table() -> Iterator[str]:
    """Yield the lines of the table, and how many are near."""
    yield "| model | file |" + "".join(
        f" {n} predicted | in the report | alone |" for n in NUMBERS
    )
    yield "|---|---|" + "---:|" * 9
    near: dict[tuple[str, str], list[bool]] = {}
    for name, part, found in rows():
        yield f"| {name} | {part} | {' | '.join(cells(found))} |"
        for source in ("predicted", "reported"):
            said = found.get(source)
            good = said is not None and all(is_near(said[n], found, n) for n in NUMBERS)
            near.setdefault((part, source), []).append(good)
    yield ""
    for (part, source), each in near.items():
        yield f"{part}, {source}: {sum(each)} of {len(each)} within 2 % or 2 MB in all three."
        yield ""


if __name__ == "__main__":
    written(SET, "\n".join(table()))
