"""The command line: a group that imports a command when it is called, and maps errors to exit codes.

Exit codes are 0 (done), 1 (a check failed), 2 (the command could not work), and 128 plus the number
of the signal that ended the command.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memplan_cli.cli.output import Output
from memplan_cli.core.interrupts import interrupted_by, last_interrupt
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.core.version import VERSION
from memplan_cli.errors import (
    INSTALL_RUNTIME,
    MemplanError,
    RuntimeMissingError,
    RuntimeTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommandEntry(NamedTuple):
    """A row of the table of commands.

    Attributes:
        group: the heading under which the help lists the command.
        summary: one line of help.
        module: the module with the function of the command, which is imported when it is called; empty: the
            module of `memplan_cli.cli.commands` with the name of the command.
    """

    group: str
    summary: str
    module: str = ""


_EVERYDAY, _RUNTIME = "Everyday commands", "Commands about ONNX Runtime"

MORE_COMMANDS = "More commands"

COMMANDS: Mapping[str, CommandEntry] = {
    "report": CommandEntry(_EVERYDAY, "Show how much memory a model or a plan needs."),
    "optimize": CommandEntry(
        _EVERYDAY, "Write a model that needs less memory, and verify it."
    ),
    "gate": CommandEntry(_EVERYDAY, "Fail if a model exceeds a limit or a baseline."),
    "why": CommandEntry(_EVERYDAY, "Explain the peak memory, the process, or one tensor."),
    "diff": CommandEntry(_EVERYDAY, "Compare the memory of two models or plans."),
    "fit": CommandEntry(_EVERYDAY, "Find the largest batch size that fits into a memory."),
    "settings": CommandEntry(_RUNTIME, "Recommend session settings that need least memory."),
    "soak": CommandEntry(_RUNTIME, "Show the memory over many requests of varying size."),
    "simulate": CommandEntry(_RUNTIME, "Simulate dynamic allocators on one run of a model."),
    "validate": CommandEntry(_RUNTIME, "Compare an optimized model with its original."),
    "doctor": CommandEntry(_RUNTIME, "Show versions, and which providers work."),
    "train-step": CommandEntry(MORE_COMMANDS, "Write a training step for a forward model."),
    "sweep": CommandEntry(MORE_COMMANDS, "Plan many models, and print a table of them."),
    "pack": CommandEntry(MORE_COMMANDS, "Pack the buffers of a CSV file into one arena."),
    "verify-certificate": CommandEntry(MORE_COMMANDS, "Check the proofs of a plan's bounds."),
    "schema": CommandEntry(MORE_COMMANDS, "Print the JSON schema of a file or a result."),
}
"""The commands, in the order in which the help lists them."""

_MAX_MESSAGE = 1000
"""Characters of an error message; names from a model can be long."""

_SIGNAL_TEXTS = {
    "SIGINT": "interrupted",
    "SIGTERM": "terminated",
    "SIGHUP": "the terminal was closed",
}

_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
"""The name of an option within a sentence."""

_SUGGESTED_TIMEOUT = 10 * DEFAULT_TIMEOUT

_MAX_LISTED_COMMANDS = 3
"""Commands that an error message lists before it counts the others."""

_SIMILAR = 0.77
"""Similarity (`difflib`) from which one option is taken for a misspelling of another: ``--batch`` is none
of ``--ratchet``."""

_FIXED_BY_PLAN = frozenset(
    ("validate", name) for name in ("--dim", "--shape", "--bounds", "--inputs", "--input")
)
"""``(command, option)`` for options that the command lacks because its plan file has the value."""


class _CommandError(click.ClickException):
    """The command could not work; the message is complete."""

    exit_code = 2


class _CommandGroup(click.Group):
    """Imports a command's module when the command is called, and maps errors to exit codes."""

    def __init__(self, *args: Any, table: Mapping[str, CommandEntry], **extra: Any) -> None:  # noqa: ANN401 - click's
        super().__init__(*args, **extra)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the table."""
        del ctx
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and return the command; None if there is none."""
        del ctx
        if cmd_name not in self.table:
            return None
        function = cmd_name.replace("-", "_")
        module = self.table[cmd_name].module or f"memplan_cli.cli.commands.{function}"
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of commands, which are not imported, and then the options into the help."""
        from memplan_cli.cli.help import write_table

        for group in dict.fromkeys(entry.group for entry in self.table.values()):
            rows = [
                (name, row.summary) for name, row in self.table.items() if row.group == group
            ]
            with formatter.section(group):
                write_table(formatter, rows)
        # Not `super()`: click's groups also list their commands, which imports all of them.
        click.Command.format_options(self, ctx, formatter)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments name, or fail with the nearest names."""
        name = args[0]
        if name not in self.table and not name.startswith("-"):
            from memplan_cli.core.selection import nearest

            if name.endswith((".onnx", ".json")):
                hint = f"memplan report {name} shows the memory of a model or a plan"
            else:
                hint = nearest(name, self.table) or "memplan --help lists the commands"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's own signature
        """Run the command line, and exit with the exit codes of this module in every case."""
        try:
            return super().main(*args, **extra)
        except KeyboardInterrupt as error:
            # Outside `invoke`, for example while arguments are parsed. click would exit with 1.
            raise _exit_of_signal(error) from None
        except OSError as error:
            # The help or an error message could not be written.
            with suppress(OSError):
                click.echo(f"Error: the text cannot be written: {error.strerror}", err=True)
            raise SystemExit(_CommandError.exit_code) from error

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run a command. If a signal ended it, exit as after the signal, whatever error was raised."""
        try:
            return self._invoke(ctx)
        except _CommandError:
            # A signal may end a worker or a library call first, which then reports an error. `_invoke`
            # raises all errors as this one, except wrong usage and a closed pipe.
            interrupt = last_interrupt()
            if interrupt:
                raise _exit_of_signal(interrupt) from None
            raise

    def _invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run a command, and turn its exceptions into those that click prints.

        Exit code 1 means that a check failed, so that an unexpected exception is exit code 2.
        """
        try:
            return super().invoke(ctx)
        # Subclasses first: a NoSuchOption is a UsageError, and this is a ClickException.
        except click.NoSuchOption as error:
            raise self._option_error(ctx, error) from error
        except click.UsageError as error:
            raise _usage_error(ctx, error) from None
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            _show_traceback(ctx)
            raise _exit_of_signal(error) from None
        except Exception as error:
            _show_traceback(ctx)
            raise _CommandError(_error_text(ctx, error)) from error
        finally:
            ctx.ensure_object(Output).end_progress()

    def _option_error(self, ctx: click.Context, error: click.NoSuchOption) -> click.UsageError:
        """Return an error that names the commands that have an option unknown to this command.

        For an option of `_FIXED_BY_PLAN`, the error says that the plan has the value instead. If no
        command has the option, the error names the most similar option: of this command, or else of other
        commands. If none is similar, the error names the options that most people need.
        """
        option = error.option_name
        from difflib import get_close_matches

        names = {
            name: _option_names(command)
            for name in self.table
            if (command := self.get_command(ctx, name))
        }
        command_name = (error.ctx.info_name if error.ctx else "") or ""
        owners = [name for name, options in names.items() if option in options]
        if not owners:
            own = names.get(command_name, frozenset())
            if get_close_matches(option, own, n=1, cutoff=_SIMILAR):
                return error  # click names it
            others = sorted(set().union(*names.values()))
            similar = get_close_matches(option, others, n=1, cutoff=_SIMILAR)
            if not similar:
                return click.UsageError(_unlike_any(option, error.ctx), error.ctx)
            (known,) = similar
            owners = [name for name, options in names.items() if known in options]
            text = f"there is no option {option}; {_owners_text(owners)} {known}"
            return click.UsageError(text, error.ctx)
        if (command_name, option) in _FIXED_BY_PLAN:
            reason = "the plan of `memplan optimize` contains the value"
        else:
            reason = f"{_owners_text(owners)} it"
        return click.UsageError(f"{command_name} has no option {option}: {reason}", error.ctx)


def _exit_of_signal(interrupt: KeyboardInterrupt) -> SystemExit:
    """Print which signal ended the command, and return the exit: 128 plus the signal's number."""
    signal = interrupted_by(interrupt)
    with suppress(OSError):
        click.echo(f"memplan: {_SIGNAL_TEXTS.get(signal.name, signal.name)}", err=True)
    return SystemExit(signal.exit_code)


def _unlike_any(option: str, ctx: click.Context | None) -> str:
    """Return the message for an option that is like no other: with the most used ones, and how to set a dim."""
    text = f"there is no option {option}"
    most_used = getattr(ctx.command, "most_used", ()) if ctx else ()
    if most_used:
        text += f"; the most used are {', '.join(most_used)}"
    if ctx and "--dim" in _option_names(ctx.command):
        text += f"; a dim of the model is set by --dim {option.lstrip('-')}=N"
    return text


def _owners_text(owners: Sequence[str]) -> str:
    """Return the commands that have an option, with the verb: ``report and why have``."""
    hidden = len(owners) - _MAX_LISTED_COMMANDS
    more = f" and {hidden} more" if hidden > 0 else ""
    verb = "have" if len(owners) > 1 else "has"
    names = owners[:_MAX_LISTED_COMMANDS]
    listed = " and ".join(names) if len(names) == 2 else ", ".join(names)
    return f"{listed}{more} {verb}"


def _option_names(command: click.Command) -> frozenset[str]:
    """Return all names of a command's options: of ``--run/--no-run``, both."""
    return frozenset(name for p in command.params for name in (*p.opts, *p.secondary_opts))


def _running_option_names(ctx: click.Context) -> frozenset[str]:
    """Return the option names of the running command; none if no command was found.

    ``ctx`` is the context of the group.
    """
    group, name = ctx.command, ctx.invoked_subcommand or ""
    command = group.get_command(ctx, name) if isinstance(group, click.Group) else None
    return frozenset() if command is None else _option_names(command)


def _applicable_hint(ctx: click.Context, hint: str) -> str:
    """Return the clauses of a hint that apply to the running command.

    Errors are raised without knowing the command. Their hints are clauses, separated by ``; ``. A
    clause is left out if it names an option that this command lacks, unless the clause contains a
    whole command line.
    """
    names = _running_option_names(ctx)
    clauses = [
        clause
        for clause in hint.split("; ")
        if "memplan " in clause or names.issuperset(_OPTION.findall(clause))
    ]
    return "; ".join(clauses)


def _timeout_hint(ctx: click.Context) -> str:
    """Return what to do if a process exceeded its time limit."""
    if "--timeout" in _running_option_names(ctx):
        return f"--timeout {_SUGGESTED_TIMEOUT:g} allows more time"
    return "this command has a fixed time limit; check the model for a Loop that never ends"


def _usage_error(ctx: click.Context, error: click.UsageError) -> click.UsageError:
    """Return an error of click; for a word too many, it explains how a value with a name is given."""
    is_extra = error.message.startswith("Got unexpected extra argument")
    if not is_extra or "--dim" not in _running_option_names(ctx):
        return error
    text = f"{error.message}. A value with a name is one word, as in --dim NAME=N."
    return click.UsageError(text, error.ctx)


def _error_text(ctx: click.Context, error: Exception) -> str:
    """Return the text of an error for the user, with the hint if there is one."""
    if isinstance(error, MemplanError):
        return _memplan_error_text(ctx, error)
    if isinstance(error, OSError) and error.filename is not None:
        # The name is cut, so that the reason after it is shown.
        file = os.fsdecode(error.filename)[: _MAX_MESSAGE // 2]
        return _shortened(f"{file}: {error.strerror}")
    text = _shortened(f"{type(error).__name__}: {error}")
    return f"memplan failed: {text}\nHint: --debug shows a traceback"


def _memplan_error_text(ctx: click.Context, error: MemplanError) -> str:
    """Return the message and the applicable hint of an error.

    The temporary folder of a model from standard input is cut from file names: the user does not know it.
    """
    message, hint = error.message, _applicable_hint(ctx, error.hint)
    if isinstance(error, RuntimeMissingError):
        message = f"memplan {ctx.invoked_subcommand} needs ONNX Runtime: {INSTALL_RUNTIME}"
    elif isinstance(error, RuntimeTimeoutError):
        hint = _timeout_hint(ctx)
    lines = [message, f"Hint: {hint}"] if hint else [message]
    output = ctx.ensure_object(Output)
    return "\n".join(_shortened(output.without_stdin_folder(line)) for line in lines)


def _shortened(text: str) -> str:
    """Return a text for a terminal: printable, and at most `_MAX_MESSAGE` characters long."""
    from memplan_cli.reporting.escape import printable_lines

    text = printable_lines(text)
    return text if len(text) <= _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 4]} ..."


def _show_traceback(ctx: click.Context) -> None:
    """Remove the progress line, and print the current exception's traceback with ``--debug``."""
    output = ctx.ensure_object(Output)
    output.end_progress()
    if output.debug:
        import traceback

        click.echo(traceback.format_exc(), err=True)


def command_line(table: Mapping[str, CommandEntry]) -> click.Group:
    """Return the command line with the commands of a table."""

    @click.group(
        cls=_CommandGroup,
        table=table,
        context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    )
    @click.version_option(VERSION, prog_name="memplan")
    @click.pass_context
    def main(ctx: click.Context) -> None:
        """Know the memory of an ONNX model before it runs, and make it smaller.

        \b
        memplan report model.onnx                    # how much it needs
        memplan optimize model.onnx                  # write a smaller one
        memplan gate model.onnx --max-memory 512MiB  # fail if it needs more
        """
        ctx.ensure_object(Output)

    return main


main = command_line(COMMANDS)
