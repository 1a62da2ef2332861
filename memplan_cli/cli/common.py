"""What commands share: how they speak to the user, and options of several of them."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT, PROVIDERS
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from memplan_cli.cli.progress import Display

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Output:
    """How to speak to the user: how much, in colour or not, with tracebacks or without."""

    quiet: bool = False
    color: bool = True
    debug: bool = False
    unnamed: str = ""
    """A temporary folder that results and messages do not name."""
    _display: Display | None = None

    def named(self, text: str) -> str:
        """Return a text without the folder that is nobody's."""
        return text.replace(self.unnamed, "") if self.unnamed else text

    def progress(self, text: str) -> None:
        """Say on stderr what is being done, once the work takes longer than a moment."""
        if self.quiet:
            return
        if self._display is None:
            from memplan_cli.cli.progress import Display, is_terminal, live_line

            line = live_line if is_terminal() else None
            self._display = Display(_echo, line, details=self.debug)
        self._display.tell(text)

    def note(self, text: str) -> None:
        """Say something on stderr that is no result; that it cannot be said stops nothing."""
        if not self.quiet:
            self.reason(text)

    def reason(self, text: str) -> None:
        """Say why a command fails, even to those who want results only."""
        text = self.named(text)
        if self._display is None:
            _echo(text)
        else:
            self._display.note(text)

    def end_progress(self) -> None:
        """Show no more progress: what follows is a result, or the reason of a failure."""
        if self._display is not None:
            self._display.stop()


def _echo(text: str) -> None:
    with suppress(OSError):
        click.echo(printable(text), err=True)


def printable(text: str) -> str:
    """Make control characters visible: a name from a file must not steer the terminal."""
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode()
        for c in text
    )


def _wants_color() -> bool:
    """Whether colours reach a terminal that knows them (no-color.org: empty is not set)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout is not None and sys.stdout.isatty()


def output_options(command: Command) -> Command:
    """Add ``--quiet``, ``--no-color`` and ``--debug``, and pass an `Output` as ``output``."""

    @wraps(command)
    def run(*args: object, quiet: bool, no_color: bool, debug: bool, **options: object) -> Any:  # noqa: ANN401 - as the command
        color = not no_color and _wants_color()
        output = click.get_current_context().find_root().ensure_object(Output)
        output.quiet, output.color, output.debug = quiet, color, debug
        return command(*args, output=output, **options)

    for option in (
        click.option(
            "--debug",
            is_flag=True,
            help="Show a traceback when something fails, and what searches find.",
        ),
        click.option(
            "--no-color", is_flag=True, help="Print without colors (also: NO_COLOR)."
        ),
        click.option("--quiet", "-q", is_flag=True, help="Print results only, no progress."),
    ):
        run = option(run)
    return run  # type: ignore[return-value]


provider_option = click.option(
    "--provider",
    type=click.Choice(["auto", *PROVIDERS]),
    default="auto",
    show_default=True,
    help="Execution provider; cuda never falls back to cpu.",
)


class Finite(click.FloatRange):
    """A range of numbers that compare: neither infinite nor none at all."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        """Return the number, or fail as click does."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Return ``--format`` with these choices, the first by default, as ``form``."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Output format.",
    )


dim_option = click.option(
    "--dim", "dims", multiple=True, metavar="NAME=N", help="Set a symbolic dimension."
)

shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=D,D",
    help="Override a tensor's shape; an input's binds its dims everywhere.",
)

inputs_option = click.option(
    "--inputs",
    multiple=True,
    metavar="FILE",
    help="Real inputs: .npz, folder of input_*.pb, or JSON; they bind shapes and values.",
)

input_option = click.option(
    "--input",
    "input_values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of an input: a number, text, or a list as in 1,2,3.",
)

run_option = click.option(
    "--run/--no-run",
    default=None,
    help="Run the model where its sizes cannot be told otherwise (default), or never.",
)

timeout_option = click.option(
    "--timeout",
    type=Finite(0, min_open=True),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Time limit of each process that runs a model, in seconds.",
)


def say(text: str) -> None:
    """Print a result; the text is what a renderer made.

    Raises:
        ModelError: stdout takes no more; a reader that is gone is another matter.
    """
    context = click.get_current_context(silent=True)
    if context is not None:
        output = context.find_root().ensure_object(Output)
        output.end_progress()
        text = output.named(text)
    if sys.stdout is None:
        raise ModelError("the result cannot be written: standard output is closed")
    try:
        click.echo(text, nl=not text.endswith("\n"))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ModelError(f"the result cannot be written: {error.strerror}") from error
