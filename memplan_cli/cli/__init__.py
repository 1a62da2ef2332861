"""The command line: options -> one workflow -> one renderer -> an exit code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from memplan_cli.cli.common import Output, printable
from memplan_cli.core.interrupts import interrupted_by, last_interrupt
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.core.version import VERSION
from memplan_cli.errors import MemplanError, RuntimeTimeoutError

Table = Mapping[str, tuple[str, str]]
"""Command -> its module, which holds a function of that name, and one line of help."""

COMMANDS: Table = {
    "optimize": (
        "memplan_cli.cli.commands.optimize",
        "Reorder a model to lower its peak memory, and verify it.",
    ),
    "report": (
        "memplan_cli.cli.commands.report",
        "Show a memory plan, or plan a model and show that.",
    ),
    "validate": (
        "memplan_cli.cli.commands.validate",
        "Compare an optimized model with its original.",
    ),
    "verify-certificate": (
        "memplan_cli.cli.commands.verify_certificate",
        "Check the bounds of a plan without the search that found them.",
    ),
    "gate": (
        "memplan_cli.cli.commands.gate",
        "Fail when a model exceeds a memory budget or baseline.",
    ),
    "diff": (
        "memplan_cli.cli.commands.diff",
        "Compare the memory of two models or plans.",
    ),
    "why": ("memplan_cli.cli.commands.why", "Explain the peak memory, or one tensor."),
    "fit": (
        "memplan_cli.cli.commands.fit",
        "Find the largest batch size (or other dim) that fits.",
    ),
    "settings": (
        "memplan_cli.cli.commands.settings",
        "Recommend runtime options that need least memory.",
    ),
    "soak": (
        "memplan_cli.cli.commands.soak",
        "Serve many requests of changing size, and show the memory.",
    ),
    "simulate": (
        "memplan_cli.cli.commands.simulate",
        "Simulate dynamic allocators on a run of a model.",
    ),
    "train-step": (
        "memplan_cli.cli.commands.train_step",
        "Generate a training step from a forward model.",
    ),
    "pack": ("memplan_cli.cli.commands.pack", "Pack buffers of a CSV file into one arena."),
    "sweep": ("memplan_cli.cli.commands.sweep", "Plan many models, one table row each."),
    "doctor": (
        "memplan_cli.cli.commands.doctor",
        "Diagnose the installation and its providers.",
    ),
    "schema": (
        "memplan_cli.cli.commands.schema",
        "Print the JSON schema of a file memplan writes.",
    ),
}
"""The commands, in the order in which the help lists them."""


_LONGEST = 1000
"""Characters of a message."""

_ENDED = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "the terminal is gone"}
"""Signals in people's words."""

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
"""An option's name in a sentence."""

_LATER = 10
"""Time limits, of the usual length, that a hint offers."""


_MOST_COMMANDS = 3
"""Commands that a message names."""

_DECIDED = frozenset(
    ("validate", name) for name in ("--dim", "--shape", "--bounds", "--inputs", "--input")
)
"""Options that a command lacks because a plan has said what they say."""


class _Failure(click.ClickException):
    exit_code = 2


class _Commands(click.Group):
    """Loads a command when it is called, and turns our errors into exit codes: here only."""

    def __init__(self, *args: Any, table: Table, **extra: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **extra)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.table:
            return None
        module, _ = self.table[cmd_name]
        command = getattr(import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            from memplan_cli.core.selection import nearest

            ctx.fail(f"there is no command {name!r}. {nearest(name, self.table)}".strip())
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().main(*args, **extra)
        except KeyboardInterrupt as error:  # outside a command: click would call it a failure
            raise _ended(error) from None
        except OSError as error:
            # Neither the help nor a message of ours could be written: nothing more can be.
            with suppress(OSError):
                click.echo(f"Error: the text cannot be written: {error.strerror}", err=True)
            raise SystemExit(_Failure.exit_code) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return self._invoke(ctx)
        except _Failure:
            ended = last_interrupt()
            if ended:  # what failed is what the signal ended
                raise _ended(ended) from None
            raise

    def _elsewhere(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """Say which commands have an option that the one asked for lacks; else what click says."""
        having = [
            name
            for name in self.table
            for command in [self.get_command(ctx, name)]
            if command and any(error.option_name in each.opts for each in command.params)
        ]
        if not having:
            return error
        of = (error.ctx.info_name if error.ctx else "") or ""
        if (of, error.option_name) in _DECIDED:
            why = "it runs at what `memplan optimize` planned for"
        else:
            left = len(having) - _MOST_COMMANDS
            rest = f" and {left} more" if left > 0 else ""
            why = f"{', '.join(having[:_MOST_COMMANDS])}{rest} {'have' if len(having) > 1 else 'has'} it"
        return click.UsageError(f"{of} has no option {error.option_name}: {why}", error.ctx)

    def _invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise self._elsewhere(ctx, error) from error
        except KeyboardInterrupt as error:
            _show_traceback(ctx)
            raise _ended(error) from None
        except MemplanError as error:
            _show_traceback(ctx)
            late = isinstance(error, RuntimeTimeoutError)
            told = _in_time(ctx) if late else _of_command(ctx, error.hint)
            hint = f"\nHint: {told}" if told else ""
            named = ctx.ensure_object(Output).named
            raise _Failure(f"{_told(named(str(error)))}{_told(named(hint))}") from error
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except OSError as error:
            _show_traceback(ctx)
            raise _Failure(_told(_refused(error))) from error
        except Exception as error:
            # Exit code 1 says that a check failed: a bug of ours must not say that.
            _show_traceback(ctx)
            text = _told(f"{type(error).__name__}: {error}")
            raise _Failure(f"memplan failed: {text}\nHint: --debug shows where") from error
        finally:
            ctx.ensure_object(Output).end_progress()


def _ended(error: KeyboardInterrupt) -> SystemExit:
    """Say what ended the command, and return its exit: 128 and the signal's number."""
    ended = interrupted_by(error)
    with suppress(OSError):
        click.echo(f"memplan: {_ENDED.get(ended.name, ended.name)}", err=True)
    return SystemExit(ended.exit_code)


def _options(ctx: click.Context) -> frozenset[str]:
    """Return the options of the command that runs."""
    group, name = ctx.command, ctx.invoked_subcommand or ""
    command = group.get_command(ctx, name) if isinstance(group, click.Group) else None
    params = () if command is None else command.params
    return frozenset(word for p in params for word in (*p.opts, *p.secondary_opts))


def _of_command(ctx: click.Context, hint: str) -> str:
    """Return what of a hint the command that runs can take up.

    The rooms below offer what some command has: clauses stand between ``; ``, and one with
    an option that this command lacks is left out. A clause with a whole command stays.
    """
    known = _options(ctx)
    clauses = [
        clause
        for clause in hint.split("; ")
        if "memplan " in clause or known.issuperset(_OPTION.findall(clause))
    ]
    return "; ".join(clauses)


def _in_time(ctx: click.Context) -> str:
    """Return what to do about a time-out; only this layer knows a command's options."""
    if "--timeout" in _options(ctx):
        return f"--timeout {_LATER * DEFAULT_TIMEOUT:g} gives it more"
    return "is there a Loop that never ends? The limit of this command is fixed"


def _refused(error: OSError) -> str:
    """Say what the system refuses: of a file that has a name it is no bug of ours."""
    if error.filename is not None:
        return f"{os.fsdecode(error.filename)[: _LONGEST // 2]}: {error.strerror}"
    return f"memplan failed: {type(error).__name__}: {error}\nHint: --debug shows where"


def _told(text: str) -> str:
    """Make a message fit for a terminal, whatever names from files are in it."""
    shown = printable(text)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 4]} ..."


def _show_traceback(ctx: click.Context) -> None:
    output = ctx.ensure_object(Output)
    output.end_progress()
    if output.debug:
        import traceback

        click.echo(traceback.format_exc(), err=True)


def command_line(table: Table) -> click.Group:
    """Return the command line that has the commands of a table."""

    @click.group(
        cls=_Commands, table=table, context_settings={"help_option_names": ["-h", "--help"]}
    )
    @click.version_option(VERSION, prog_name="memplan")
    @click.pass_context
    def main(ctx: click.Context) -> None:
        """Know the memory of an ONNX model before it runs, and make it smaller.

        \b
        memplan optimize model.onnx --level 1 --exclude fc1
        memplan report --print-log
        """
        ctx.ensure_object(Output)

    return main


main = command_line(COMMANDS)
