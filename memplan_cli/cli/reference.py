"""The reference of all commands and options in Markdown, generated from their help.

python -m memplan_cli.cli.reference     write the reference into docs/commands.md
"""

from __future__ import annotations

import re
from collections import Counter
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
"""The marks in the page between which the reference stands."""

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"

_VERBATIM = "\b\n"
"""The mark of click for a paragraph whose lines are kept: the examples."""

_LONG_NAME = re.compile(r"--[a-z-]+")
"""The long name of an option; arguments have none."""

_MIN_COMMANDS = 5
"""An option with the same text in so many commands is described once, in a section of its own."""


def reference() -> str:
    """Return the reference: a section for each command, and one for the options of many commands."""
    # With the help options of `main`: a command keeps the ones with which it was first called.
    context = click.Context(main, info_name="memplan", help_option_names=["-h", "--help"])
    commands = {}
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None  # noqa: S101 - the table's own name
        with click.Context(command, info_name=name, parent=context) as command_context:
            commands[name] = command, _parameters(command, command_context)
    numbers = Counter(line for _, lines in commands.values() for line in lines)
    shared = [
        line
        for line, number in numbers.items()
        if number >= _MIN_COMMANDS and _LONG_NAME.search(line)
    ]
    sections = [
        "\n".join(_section(name, command, parameters, shared))
        for name, (command, parameters) in commands.items()
    ]
    common = "\n".join(f"- {line}" for line in shared)
    return "\n\n".join([*sections, f"## Common options\n\n{common}"])


def with_reference(page: str) -> str:
    """Return a page with the current reference between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _section(
    name: str, command: click.Command, parameters: list[str], shared: list[str]
) -> Iterator[str]:
    """Yield the lines of a command's section; common options get their names only."""
    yield f"## `memplan {name}`"
    yield ""
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith(_VERBATIM):
            yield f"```sh\n{paragraph.removeprefix(_VERBATIM)}\n```"
        else:
            yield _escaped(paragraph)
        yield ""
    yield from (f"- {line}" for line in parameters if line not in shared)
    names = [_LONG_NAME.findall(line)[0] for line in parameters if line in shared]
    if names:
        yield f"- [common options](#common-options): {', '.join(f'`{name}`' for name in names)}"


def _parameters(command: click.Command, context: click.Context) -> list[str]:
    """Return a line of Markdown for each argument and visible option of a command."""
    lines = []
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Argument):
            lines.append(f"`{parameter.make_metavar(context)}`")
        elif isinstance(parameter, click.Option):
            record = parameter.get_help_record(context)
            if record is not None:  # None for a hidden option
                option, text = record
                lines.append(f"`{option}`" + (f": {_escaped(text)}" if text else ""))
    return lines


def _escaped(text: str) -> str:
    """Return a text that Markdown shows unchanged: without HTML tags and emphasis."""
    return text.replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
