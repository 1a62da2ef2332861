"""Every command and option in Markdown: the reference at the end of the README.

python -m memplan_cli.cli.reference     write it into README.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


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


def replaced(readme: str) -> str:
    """Return a README with the reference as it is now between its two marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _section(name: str, command: click.Command, context: click.Context) -> Iterator[str]:
    summary = (command.help or "").partition("\n\n")[0].replace("\n", " ").strip()
    yield f"### `memplan {name}`"
    yield ""
    yield summary
    yield ""
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Argument):
            yield f"- `{parameter.make_metavar(context)}`"
        elif isinstance(parameter, click.Option) and not parameter.hidden:
            yield f"- {_option(parameter, context)}"


def _option(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None  # noqa: S101 - it is not hidden
    words, text = record
    return f"`{words}`" + (f": {text}" if text else "")


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "README.md"
    path.write_text(replaced(path.read_text()))
