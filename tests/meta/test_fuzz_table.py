"""What was fuzzed adds up, run after run."""

from __future__ import annotations

from fuzz.run import TABLE, Row, read_table, with_table


def test_page_read_and_written_is_the_same_page() -> None:
    text = TABLE.read_text(encoding="utf-8")
    rows = read_table(text)
    assert rows
    assert with_table(text, rows) == text


def test_rows_of_two_runs_are_added() -> None:
    assert Row(10, 200, 0).plus(Row(5, 100, 1)) == Row(15, 300, 1)
    text = with_table(TABLE.read_text(encoding="utf-8"), {"csv": Row(15, 300, 1)})
    assert read_table(text) == {"csv": Row(15, 300, 1)}
    assert "What was found" in text
