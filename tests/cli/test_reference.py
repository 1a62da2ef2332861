"""The reference of commands holds every command and option, each with its help."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from documents.reference import reference, with_reference
from memplan_cli.cli import COMMANDS, main

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_page_holds_the_reference_as_it_is() -> None:
    text = PAGE.read_text()
    assert with_reference(text) == text, "run `python -m tests.documents.reference`"


def test_page_that_misses_an_option_is_noticed() -> None:
    text = PAGE.read_text().replace("`--replay`", "`--reply`")
    assert with_reference(text) != text


def test_table_of_the_page_names_every_command() -> None:
    table = PAGE.read_text().partition("## Exit codes")[0]
    assert [name for name in COMMANDS if f"[`{name}`](#memplan-{name})" not in table] == []


def test_reference_names_each_option_that_users_rely_on() -> None:
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


@pytest.mark.parametrize("name", COMMANDS)
def test_command_and_its_options_have_help_and_stand_in_the_reference(name: str) -> None:
    command = main.get_command(main.make_context("memplan", [name]), name)
    assert command is not None
    options = [item for item in command.params if isinstance(item, click.Option)]
    section = reference().partition(f"## `memplan {name}`")[2].partition("\n##")[0]
    assert command.help
    assert [item.opts for item in options if not item.help] == []
    assert [word for item in options for word in item.opts if word not in section] == []
