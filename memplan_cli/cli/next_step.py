"""The commands that most people run next, printed below the text of a result."""

from __future__ import annotations

import json
from shlex import quote
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.options import repeated_options
from memplan_cli.cli.output import Output, say

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from memplan_cli.reporting.document import NextStep


def next_step(
    label: str,
    command: str,
    files: Iterable[Path | str],
    *options: str,
    without: Collection[str] = (),
) -> NextStep:
    """Return a command line of memplan, with the imperative ``label``, that continues the running command.

    ``files`` are the arguments of ``command``. Options of the running command are repeated if ``command`` has
    them too, except the options in ``without``. The given ``options``, texts as in a shell, replace repeated
    options of the same names.
    """
    from memplan_cli.reporting.document import NextStep

    left_out = {*without, *(option.split()[0] for option in options)}
    kept = [text for text in repeated_options(command) if text.split()[0] not in left_out]
    arguments = (_argument(str(file)) for file in files)
    return NextStep(label, " ".join(["memplan", command, *arguments, *options, *kept]))


def load_step(path: Path) -> NextStep:
    """Return the Python statement that opens a written model with its settings."""
    from memplan_cli.reporting.document import NextStep

    return NextStep("Run it", f"session = memplan.load({json.dumps(str(path))})", "python")


def say_next(form: str, *steps: NextStep) -> None:
    """Print steps below a result, if its format is text.

    Nothing is printed for a model from standard input, whose command line cannot be repeated.
    """
    output = click.get_current_context().find_root().ensure_object(Output)
    if form != "text" or not steps or output.stdin_folder:
        return
    from memplan_cli.reporting.document import Document
    from memplan_cli.reporting.media import draw_document

    say("\n" + draw_document(Document("", steps), "text"))


def _argument(file: str) -> str:
    """Return a file name for a shell; with a leading dash it would be an option."""
    return quote(f"./{file}" if file.startswith("-") else file)
