"""The reference of all commands and options in Markdown, generated from their help.

python -m tests.documents.reference     write the reference into docs/commands.md
"""

from __future__ import annotations

from collections import Counter
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from memplan_cli.cli import COMMANDS, main
from memplan_cli.cli.help import MOST_USED, OPTION_GROUPS, VERBATIM, GroupedCommand, long_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"
"""The marks in the page between which the reference stands."""

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"

_MIN_COMMANDS = 5
"""An option with the same text in so many commands is described once, in a section of its own."""


class _Line(NamedTuple):
    """A line of the reference about one option of a command.

    Attributes:
        group: its group in the help of the command.
        name: its long name.
        text: its names and its help, in Markdown.
    """

    group: str
    name: str
    text: str


def reference() -> str:
    """Return the reference: a section for each command, and one for the options of many commands."""
    # click keeps in a command the help options of its first context, so this one has those of `main`. Else
    # ``-h`` would be missing here, and whenever this process calls `main` later.
    context = click.Context(main, info_name="memplan", **main.context_settings)
    commands: dict[str, tuple[click.Command, list[_Line]]] = {}
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert isinstance(command, GroupedCommand)
        with click.Context(command, info_name=name, parent=context) as command_context:
            commands[name] = command, _option_lines(command, command_context)
    uses = Counter(line.text for _, lines in commands.values() for line in lines)
    shared = {text for text, number in uses.items() if number >= _MIN_COMMANDS}
    sections = []
    for group in dict.fromkeys(entry.group for entry in COMMANDS.values()):
        sections.append(f"## {group}")
        names = [name for name, entry in COMMANDS.items() if entry.group == group]
        sections += [
            "\n\n".join(filter(None, _section(name, *commands[name], shared)))
            for name in names
        ]
    all_lines = (line for _, lines in commands.values() for line in lines)
    # An option has one shared text, and its name is in `OPTION_GROUPS`.
    text_by_name = {line.name: line.text for line in all_lines if line.text in shared}
    sections.append("## Common options")
    for group, options in OPTION_GROUPS.items():
        texts = [text_by_name[name] for name in options if name in text_by_name]
        sections.append(_list(group, texts))
    return "\n\n".join(filter(None, sections))


def with_reference(page: str) -> str:
    """Return a page with the current reference between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _section(
    name: str, command: click.Command, lines: list[_Line], shared: Collection[str]
) -> Iterator[str]:
    """Yield the paragraphs of a command's section.

    Options in ``shared`` that are not among the most used get their names only.
    """
    yield f"### `memplan {name}`"
    context = click.Context(command)
    yield f"`memplan {' '.join([name, *command.collect_usage_pieces(context)])}`"
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith(VERBATIM):
            yield f"```sh\n{paragraph.removeprefix(VERBATIM)}\n```"
        else:
            yield _escaped(paragraph)
    named_only = [line for line in lines if line.text in shared and line.group != MOST_USED]
    for group in dict.fromkeys(line.group for line in lines):
        yield _list(
            group,
            [line.text for line in lines if line.group == group and line not in named_only],
        )
    if named_only:
        groups = [
            f"{group}: "
            + ", ".join(f"`{line.name}`" for line in named_only if line.group == group)
            for group in dict.fromkeys(line.group for line in named_only)
        ]
        yield f"[Common options](#common-options). {'. '.join(groups)}."


def _list(title: str, lines: list[str]) -> str:
    """Return a list with a title, or an empty text if it has no lines."""
    return "\n".join([f"**{title}**", "", *(f"- {line}" for line in lines)]) if lines else ""


def _option_lines(command: GroupedCommand, context: click.Context) -> list[_Line]:
    """Return a line for each visible option of a command, in the order of its help."""
    lines = []
    for group, options in command.option_groups(context).items():
        for option in options:
            names, text = option.get_help_record(context) or ("", "")
            lines.append(_Line(group, long_name(option), f"`{names}`: {_escaped(text)}"))
    return lines


def _escaped(text: str) -> str:
    """Return a text that Markdown shows unchanged: without HTML tags and emphasis."""
    return text.replace("<", "\\<").replace("*", "\\*")


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
