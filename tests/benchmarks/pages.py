"""The pages of docs/measurements: text by hand, and tables that programs write between two marks."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .models import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MEASUREMENTS = ROOT / "docs" / "measurements"

FULL_TABLES = ROOT / "out" / "tables"
"""Where programs write tables with a row for each thing tried; pages have the sums only."""


def replace_figures(page: Path, figures: str, name: str = "figures") -> None:
    """Replace what stands between the two marks of a page with this name; its other text stays."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.read_text(encoding="utf-8").split(begin, 1)
    after = rest.split(end, 1)[1]
    page.write_text(f"{before}{begin}\n{figures.strip()}\n{end}{after}", encoding="utf-8")


def write_check(check: str, lines: Iterable[str], sums: str) -> None:
    """Write the full table of a check below ``out/tables``, and its sums into the page of all checks.

    Args:
        check: the command that runs it, as the page has it. The file is called after its last word.
        lines: the full table, a row for each thing tried.
        sums: how much was tried and how much went wrong, in a few words.
    """
    write_full_table(re.split(r"[ .]", check)[-1], lines)
    page = MEASUREMENTS / "robustness.md"
    today = datetime.now(UTC).date().isoformat()
    rows = [
        f"{line.rsplit('|', 3)[0]}| {sums} | {today} |" if f"`{check}`" in line else line
        for line in page.read_text(encoding="utf-8").splitlines()
    ]
    page.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_full_table(name: str, lines: Iterable[str]) -> None:
    """Write a table with a row for each thing tried below ``out/tables``."""
    FULL_TABLES.mkdir(parents=True, exist_ok=True)
    (FULL_TABLES / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
