"""Named cases, each run alone, and the page of what came of them."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from .pages import write_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

Case = TypeVar("Case")
End = TypeVar("End")


@dataclass(frozen=True)
class Asked:
    """Which cases to run, and whether to write their page."""

    only: str
    writes: bool


def asked(description: str | None) -> Asked:
    """Read the command line: a page is written where all cases were run."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--only", default="", help="Cases with this text in their name.")
    parser.add_argument("--no-table", action="store_true", help="Do not write the page.")
    words = parser.parse_args()
    return Asked(words.only, not words.no_table and not words.only)


def run_all(
    cases: Mapping[str, Case], run: Callable[[Case], End], words: Asked
) -> dict[str, End]:
    """Run each case that is asked for."""
    return {name: run(case) for name, case in cases.items() if words.only in name}


def side_by_side(
    cases: Iterable[str], run: Callable[[str], End], words: Asked, at_once: int = 2
) -> dict[str, End]:
    """Run each case that is asked for by its name, some at once.

    In processes, not threads: commands are started with a function that runs before them.
    """
    chosen = [name for name in cases if words.only in name]
    with ProcessPoolExecutor(at_once) as pool:
        return dict(zip(chosen, pool.map(run, chosen), strict=True))


def cell(text: str, most: int) -> str:
    """Return a text that stays in its cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")[:most]


def publish_check(check: str, lines: Sequence[str], sums: str, words: Asked) -> None:
    """Print a table, and write it and its sums (`pages.write_check`) if all cases were run."""
    if words.writes:
        write_check(check, lines, sums)
    print("\n".join(lines))


def publish(lines: Iterable[str], page: Path, words: Asked) -> None:
    """Print a page, and write it if it is whole."""
    text = "\n".join(lines) + "\n"
    if words.writes:
        page.write_text(text)
    print(text)
