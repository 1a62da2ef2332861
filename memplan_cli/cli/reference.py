"""The reference of all commands and options in Markdown, made from their help.

python -m memplan_cli.cli.reference     write it into docs/commands.md
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

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"

_VERBATIM = "\b\n"
"""What click puts before a paragraph whose lines stay apart: the examples."""


def reference() -> str:
    """Return the reference: a section a command, a line an option."""
    # As `main` itself is called: a command remembers the first help option it was asked for.
    context = click.Context(main, info_name="memplan", help_option_names=["-h", "--help"])
    sections = []
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None  # noqa: S101 - the table's own name
        with click.Context(command, info_name=name, parent=context) as inner:
            sections.append("\n".join(_section(name, command, inner)))
    return "\n\n".join(sections)


def replaced(page: str) -> str:
    """Return a page with the reference as it is now between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _section(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `memplan {name}`"
    yield ""
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        yield from _paragraph(paragraph)
        yield ""
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Argument):
            yield f"- `{parameter.make_metavar(context)}`"
        elif isinstance(parameter, click.Option) and not parameter.hidden:
            yield f"- {_option(parameter, context)}"


def _paragraph(text: str) -> Iterator[str]:
    if text.startswith(_VERBATIM):
        yield "```sh"
        yield text.removeprefix(_VERBATIM)
        yield "```"
    else:
        yield _plain(text)


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None  # noqa: S101 - it is not hidden
    words, text = record
    return f"`{words}`" + (f": {_plain(text)}" if text else "")


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it stands: no tags, no emphasis."""
    return text.replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
