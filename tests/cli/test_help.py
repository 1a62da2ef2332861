"""Help lists commands and options in groups, the most used first, within 80 columns."""

from __future__ import annotations

import re

import click
import pytest

from memplan_cli.cli import COMMANDS, main
from memplan_cli.cli.help import MOST_USED, OPTION_GROUPS, GroupedCommand
from story import memplan

GROUPS = {
    "Everyday commands": ["report", "optimize", "gate", "why", "diff", "fit"],
    "Commands about ONNX Runtime": ["settings", "soak", "simulate", "validate", "doctor"],
    "More commands": ["train-step", "sweep", "pack", "verify-certificate", "schema"],
}


def sections(help_text: str) -> dict[str, list[str]]:
    """Return the first words of the rows of each section of a help, by the section's title."""
    found: dict[str, list[str]] = {}
    for line in help_text.splitlines():
        if re.fullmatch(r"\S[^:]*:", line):
            rows: list[str] = []
            found[line[:-1]] = rows
        elif re.match(r"  \S", line) and found:
            rows.append(line.split("  ")[1].strip())
    return found


def options(name: str) -> list[click.Option]:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return [option for option in command.params if isinstance(option, click.Option)]


def test_commands_are_listed_in_groups() -> None:
    found = sections(memplan("--help").stdout)
    assert list(found) == [*GROUPS, "Options"]
    assert {group: found[group] for group in GROUPS} == GROUPS


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_listed_in_groups_each_once(name: str) -> None:
    found = sections(memplan(name, "--help").stdout)
    order = [MOST_USED, *OPTION_GROUPS]
    assert list(found) == [group for group in order if group in found]
    assert all(found.values())
    listed = [re.findall(r"--[a-z-]+", row)[0] for group in found.values() for row in group]
    assert sorted(listed) == sorted({*listed})
    declared = [next(n for n in o.opts if n.startswith("--")) for o in options(name)]
    assert sorted(listed) == sorted([*declared, "--help"])


@pytest.mark.parametrize("name", COMMANDS)
def test_most_used_options_come_first_and_are_at_most_five(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, GroupedCommand)
    first, *_ = sections(memplan(name, "--help").stdout).items()
    if len(options(name)) > 6:
        assert first[0] == MOST_USED
        assert [re.findall(r"--[a-z-]+", row)[0] for row in first[1]] == [*command.most_used]
    assert len(command.most_used) <= 5


def test_every_name_in_the_table_of_groups_is_an_option_in_one_group() -> None:
    declared = {name for command in COMMANDS for o in options(command) for name in o.opts}
    listed = [name for names in OPTION_GROUPS.values() for name in names]
    assert sorted(listed) == sorted({*listed})
    assert {*listed} - declared == {"--help"}


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns_and_breaks_no_name_of_an_option(name: str) -> None:
    lines = memplan(*name.split(), "--help").stdout.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line for line in lines if re.search(r"[a-z]-$", line)] == []


def test_a_narrow_terminal_shows_texts_below_their_names() -> None:
    lines = main.get_help(click.Context(main, terminal_width=50)).splitlines()
    below = lines[lines.index("  report") + 1]
    assert below == "      Show how much memory a model or a plan"


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("reprot model.onnx", "there is no command 'reprot'; did you mean 'report'?"),
        ("trainstep model.onnx", "there is no command 'trainstep'; did you mean 'train-step'?"),
        ("xyz", "there is no command 'xyz'; memplan --help lists the commands"),
        ("gate model.onnx --max-memroy 1MiB", "'--max-memory'"),
        ("optimize model.onnx --exlude fc1", "'--exclude'"),
        ("--verison", "'--version'"),
        ("report model.onnx --max-memery 1MiB", "no option --max-memery; gate has --max-memory"),
    ],
)  # fmt: skip
def test_mistyped_command_or_option_gets_the_nearest(words: str, nearest: str) -> None:
    result = memplan(*words.split())
    assert result.exit_code == 2
    assert nearest in result.stderr
