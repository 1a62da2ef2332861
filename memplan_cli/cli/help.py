"""Help of a command, with its options in groups.

click lists the options of a command in one column, in the order of their declarations. Here each
option belongs to a group by its name, so that it is found at the same place in every command.
"""

from __future__ import annotations

import textwrap
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOST_USED = "Most used"
"""The first group of a command's help: the options that most people need."""

OPTION_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Limits": (
        "--memory", "--overhead", "--of", "--max-memory", "--max-increase", "--metric", "--baseline",
        "--update-baseline", "--ratchet", "--allow-version-change",
    ),
    "Requests": ("--requests", "--sequence", "--seed"),
    "Model and sizes": (
        "--original", "--dim", "--shape", "--inputs", "--input", "--bounds", "--allow-partial", "--config",
    ),
    "Training": (
        "--loss", "--loss-fn", "--labels", "--optimizer", "--gradients", "--train", "--freeze", "--running",
        "--weight-decay", "--phase", "--skip-grads",
    ),
    "Plan": (
        "--level", "--order", "--exclude", "--expose", "--alignment", "--allocator",
        "--time-limit",
    ),
    "Techniques": (
        "--target", "--budget", "--best-effort", "--recompute", "--checkpoint", "--chunk", "--kv-cache", "--capacity",
        "--donate", "--fold-constants", "--external-weights",
    ),
    "Runtime and validation": (
        "--confirm", "--measure", "--replay", "--validate", "--no-validate", "--reference", "--tune", "--idle",
        "--provider", "--runs", "--rtol", "--atol", "--run", "--timeout",
    ),
    "Output": (
        "--output", "--out", "--plan", "--settings-out", "--certificate", "--state", "--notes", "--write",
        "--format", "--tensor", "--process", "--dry-run", "--print-log", "--verbose", "--explain", "--all",
        "--jobs", "--resume", "--quiet", "--no-color", "--debug", "--help",
    ),
}  # fmt: skip
"""The groups in the order of the help, each with the long names of its options."""

VERBATIM = "\b\n"
"""The mark of click for a paragraph whose lines are kept: the examples."""

_NAME_COLUMN = 22
"""Width of the column of option names. The text of a longer name begins on the next line."""

_NARROW = 60
"""Columns of a terminal below which two columns leave too little for the text: it is below its name."""


class GroupedCommand(click.Command):
    """A command whose help lists the options in groups.

    Args:
        most_used: long names of at most five options that most people need. They come first.
    """

    def __init__(self, *args: Any, most_used: tuple[str, ...] = (), **extra: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **extra)
        self.most_used = most_used

    def option_groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the visible options by the names of their groups; no group is empty."""
        options = {
            long_name(parameter): parameter
            for parameter in self.get_params(ctx)
            if isinstance(parameter, click.Option) and not parameter.hidden
        }
        groups = {}
        for group, names in {MOST_USED: self.most_used, **OPTION_GROUPS}.items():
            members = [options.pop(name) for name in names if name in options]
            if members:
                groups[group] = members
        assert not options, f"in no group of options: {', '.join(options)}"  # noqa: S101 - our own table
        return groups

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the paragraphs of the docstring, the examples in their own lines."""
        del ctx
        for paragraph in cleandoc(self.help or "").split("\n\n"):
            formatter.write_paragraph()
            with formatter.indentation():
                indent = " " * formatter.current_indent
                if paragraph.startswith(VERBATIM):
                    lines = paragraph.removeprefix(VERBATIM).splitlines()
                else:
                    lines = _wrapped(paragraph, formatter.width - len(indent))
                formatter.write("".join(f"{indent}{line}\n" for line in lines))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of options into the help."""
        for name, options in self.option_groups(ctx).items():
            records = (option.get_help_record(ctx) for option in options)
            with formatter.section(name):
                write_table(formatter, [record for record in records if record is not None])


def long_name(option: click.Parameter) -> str:
    """Return the long name of an option: of ``-o/--output``, ``--output``."""
    return next(name for name in option.opts if name.startswith("--"))


def write_table(formatter: click.HelpFormatter, rows: Iterable[tuple[str, str]]) -> None:
    """Write names and texts in two columns, which stand at the same place in all sections of a help.

    The text begins on the next line if the name is longer than the column of names. On a narrow terminal this
    column has two characters, so that every text begins on a line of its own.
    """
    indent = " " * formatter.current_indent
    name_column = _NAME_COLUMN if formatter.width >= _NARROW else 2
    text_column = len(indent) + name_column + 2
    for name, text in rows:
        first, lines = indent + name, _wrapped(text, formatter.width - text_column)
        if lines and len(name) <= name_column:
            first = first.ljust(text_column) + lines.pop(0)
        formatter.write(
            "\n".join([first, *(" " * text_column + line for line in lines)]) + "\n"
        )


def _wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text, which break at spaces only: names of options contain hyphens."""
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)
