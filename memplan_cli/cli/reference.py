"""The reference of all commands and options in Markdown, generated from their help.

python -m memplan_cli.cli.reference     write the reference into docs/commands.md
"""

from __future__ import annotations

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


def reference() -> str:
    """Return the reference: a section for each command, with a line for each option."""
    # With the help options of `main`: a command keeps the ones with which it was first called.
    context = click.Context(main, info_name="memplan", help_option_names=["-h", "--help"])
    sections = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None  # noqa: S101 - the table's own name
        with click.Context(command, info_name=name, parent=context) as command_context:
            sections.append("\n".join(_section(name, command, command_context)))
    return "\n\n".join(sections)


def with_reference(page: str) -> str:
    """Return a page with the current reference between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _section(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the lines of a command's section."""
    yield f"## `memplan {name}`"
    yield ""
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith(_VERBATIM):
            yield f"```sh\n{paragraph.removeprefix(_VERBATIM)}\n```"
        else:
            yield _escaped(paragraph)
        yield ""
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Argument):
            yield f"- `{parameter.make_metavar(context)}`"
        elif isinstance(parameter, click.Option):
            record = parameter.get_help_record(context)
            if record is not None:  # None for a hidden option
                option, text = record
                yield f"- `{option}`" + (f": {_escaped(text)}" if text else "")


def _escaped(text: str) -> str:
    """Return a text that Markdown shows unchanged: without HTML tags and emphasis."""
    return text.replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
