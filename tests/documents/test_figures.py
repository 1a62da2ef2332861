"""Charts and figures in the documentation are those of the tables of docs/measurements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from benchmarks.charts import CHARTS, CHARTS_FOLDER, chart_files, conditions, table_rows
from documents.pages import DOCS, README, ROOT

if TYPE_CHECKING:
    from pathlib import Path

_LINK = re.compile(r"\]\(([\w./]*measurements/)?(\w+)\.md\)")
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")

CLAIMS = (README, DOCS / "measurements" / "index.md", DOCS / "limits.md")
"""Pages that repeat figures of tables, with a link to the table in the same line."""


def numbers_without_source(page: Path) -> list[str]:
    """Return the numbers in lines that link to one table, which are not on the table's page.

    The text of the lines is compared, not that of links and code. Small whole numbers are words.
    """
    missing = []
    for line in page.read_text(encoding="utf-8").splitlines():
        linked = [name for _, name in _LINK.findall(line)]
        if len(linked) != 1:
            continue
        source = (DOCS / "measurements" / f"{linked[0]}.md").read_text(encoding="utf-8")
        known = set(_NUMBER.findall(source))
        text = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line)
        missing += [
            f"{linked[0]}: {number}"
            for number in _NUMBER.findall(text)
            if len(number) > 1 and number not in known
        ]
    return missing


@pytest.mark.parametrize("page", CLAIMS, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_are_those_of_the_linked_table(page: Path) -> None:
    assert numbers_without_source(page) == []


def test_a_figure_that_the_table_lacks_is_reported(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("| `load` | 0.164, and 0.158 of 45 | [p](measurements/process.md) |\n")
    assert numbers_without_source(page) == ["process: 0.158"]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_show_the_tables(name: str) -> None:
    file = f"{name}.svg"
    drawn = (CHARTS_FOLDER / file).read_text(encoding="utf-8")
    assert drawn == chart_files()[file], "python -m tests.benchmarks.charts draws them again"


def test_rows_of_tables_are_read_by_their_columns() -> None:
    page = "text\n\n| a | b |\n|---|---:|\n| x | 1 |\n\n| c |\n|:--|\n| - |\n"
    assert list(table_rows(page)) == [{"a": "x", "b": "1"}, {"c": "-"}]


def test_a_page_without_date_has_no_chart() -> None:
    assert conditions("ONNX Runtime 1.31.1, 2026-11-23.").endswith("2026-11-23")
    with pytest.raises(ValueError, match="no date"):
        conditions("ONNX Runtime 1.31.1")
