"""The README names every command and option, or this fails."""

from __future__ import annotations

from pathlib import Path

from memplan_cli.cli.reference import reference, replaced

README = Path(__file__).parents[2] / "README.md"


def test_readme_holds_the_reference_as_it_is() -> None:
    text = README.read_text()
    assert replaced(text) == text, "run `python -m memplan_cli.cli.reference`"


def test_reference_names_each_option_that_the_contract_names() -> None:
    text = reference()
    for word in (
        "--level",
        "--exclude",
        "--print-log",
        "--max-memory",
        "--replay",
        "--capacity",
    ):
        assert word in text


def test_readme_that_misses_an_option_is_noticed() -> None:
    text = README.read_text().replace("`--replay`", "`--reply`")
    assert replaced(text) != text
