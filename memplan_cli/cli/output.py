"""What a command prints: results on stdout; progress, notes and reasons of failures on stderr."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock, Timer
from typing import TYPE_CHECKING, Protocol

import click

from memplan_cli.core.progress import Counted, Detail
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.text import Text

PROGRESS_DELAY = 1.0
"""Seconds before the first progress is shown: a quick command shows none."""

LOG_INTERVAL = 10.0
"""Seconds between two lines of a log about the same stage, if the parts of the stage are counted."""

_REFRESHES_PER_SECOND = 4
"""How often the live line of a terminal is drawn."""


@dataclass(slots=True)
class Output:
    """How the running command talks to the user.

    Attributes:
        quiet: progress and notes are not printed.
        color: results may contain colors.
        debug: failures are printed with a traceback, and searches report their details.
        stdin_folder: the temporary folder of a model from standard input, with a slash at its end.
            Everything that prints or writes a text removes it from the text. Empty if there is none.
    """

    quiet: bool = False
    color: bool = True
    debug: bool = False
    stdin_folder: str = ""
    _display: ProgressDisplay | None = None

    def without_stdin_folder(self, text: str) -> str:
        """Return a text without the name of the temporary folder."""
        return text.replace(self.stdin_folder, "") if self.stdin_folder else text

    def progress(self, stage: str) -> None:
        """Show on stderr which stage runs now, if the command takes longer than `PROGRESS_DELAY`."""
        if self.quiet:
            return
        if self._display is None:
            make_line = live_line if _stderr_is_terminal() else None
            self._display = ProgressDisplay(_print_to_stderr, make_line, details=self.debug)
        self._display.show(stage)

    def note(self, text: str) -> None:
        """Print a warning or a note on stderr, unless the command is quiet."""
        if not self.quiet:
            self.reason(text)

    def reason(self, text: str) -> None:
        """Print on stderr why a check failed, even if the command is quiet."""
        text = self.without_stdin_folder(text)
        if self._display is None:
            _print_to_stderr(text)
        else:
            self._display.note(text)

    def end_progress(self) -> None:
        """Remove the progress line: a result or an error message follows."""
        if self._display is not None:
            self._display.stop()


def say(text: str) -> None:
    """Print a result on stdout.

    Raises:
        ModelError: stdout is closed or cannot be written.
        BrokenPipeError: the reader of a pipe has ended.
    """
    context = click.get_current_context(silent=True)
    if context is not None:
        output = context.find_root().ensure_object(Output)
        output.end_progress()
        text = output.without_stdin_folder(text)
    if sys.stdout is None:
        raise ModelError("the result cannot be written: standard output is closed")
    try:
        click.echo(text, nl=not text.endswith("\n"))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ModelError(f"the result cannot be written: {error.strerror}") from error


def deliver(text: str, out: Path | None, output: Output) -> None:
    """Print a result, or write it into the file ``out`` and print the name of the file on stderr.

    A model from stdin is stored in a temporary folder, whose name is removed from paths in the result.

    Raises:
        ModelError: the file or stdout cannot be written.
    """
    if out is None:
        say(text)  # `say` removes the name of the folder itself
        return
    from memplan_cli.core.files import write_files

    write_files({out: output.without_stdin_folder(text).encode()})
    output.note(f"memplan: wrote {out}")


def stdout_is_terminal() -> bool:
    """Return whether results are printed on a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def stdout_has_colors() -> bool:
    """Return whether stdout is a terminal with colors (no-color.org: an empty NO_COLOR is unset)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stdout_is_terminal()


def _print_to_stderr(text: str) -> None:
    """Print a line on stderr. A failure to write it is ignored: it must not stop a command."""
    from memplan_cli.reporting.escape import printable_lines

    with suppress(OSError):
        click.echo(printable_lines(text), err=True)


class Line(Protocol):
    """A line on a terminal that is drawn again and again while it is started."""

    def start(self) -> None:
        """Begin to draw the line."""

    def stop(self) -> None:
        """Erase the line."""


class ProgressDisplay:
    """Shows the running stage of a command: as one live line on a terminal, or as lines of a log."""

    def __init__(
        self,
        write: Callable[[str], None],
        make_line: Callable[[Callable[[], str]], Line] | None = None,
        *,
        details: bool = False,
    ) -> None:
        """Show nothing yet.

        Args:
            write: prints a whole line of text.
            make_line: returns a live line, which calls its argument for the text of each redraw;
                None for a log, in which each stage gets a line when it begins.
            details: whether `Detail` messages of searches are printed.
        """
        self._write, self._make_line, self._details = write, make_line, details
        # Reentrant: the timer's thread and the command's thread both draw.
        self._lock = RLock()
        self._start_time = time.monotonic()
        self._stage = ""
        # The stage of the last line of the log, and the seconds at which it was printed.
        self._logged_stage, self._logged_at = "", 0.0
        self._line: Line | None = None
        self._timer: Timer | None = None

    def show(self, stage: str) -> None:
        """Set the running stage, and draw it as soon as the first stage began `PROGRESS_DELAY` seconds ago.

        A `Detail` is not a stage: it is only printed, and only if ``details`` is set.
        """
        if isinstance(stage, Detail):
            if self._details:
                self.note(f"memplan: {stage}")
            return
        with self._lock:
            self._stage = stage
            seconds_to_wait = PROGRESS_DELAY - self._seconds_since_first_stage()
            if seconds_to_wait <= 0:
                self._draw()
            elif self._timer is None:  # else the timer that runs draws the new stage
                self._timer = Timer(seconds_to_wait, self._draw)
                self._timer.daemon = True
                self._timer.start()

    def note(self, text: str) -> None:
        """Print a line that stays, above the live line."""
        with self._lock:
            self._erase_line()
            self._write(text)

    def stop(self) -> None:
        """Erase the live line, and show nothing until the next stage."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._erase_line()
            self._stage = ""

    def _seconds_since_first_stage(self) -> float:
        """Return the age of the display: it is made when the first stage begins."""
        return time.monotonic() - self._start_time

    def _draw(self) -> None:
        """Start the live line, or print a line of the log if one is due.

        A line of the log is due if the stage is new, or if the stage counts its parts and
        `LOG_INTERVAL` has passed since the last line. Errors of stderr are ignored.
        """
        with self._lock, suppress(OSError):
            if not self._stage:  # `stop` was called while the timer ran
                return
            if self._make_line is not None:
                if self._line is None:
                    self._line = self._make_line(self._text)
                    self._line.start()
                return
            stage, is_due = self._stage, False
            if isinstance(self._stage, Counted):
                stage = self._stage.stage  # the text without the counts
                is_due = self._seconds_since_first_stage() - self._logged_at > LOG_INTERVAL
            if stage != self._logged_stage or is_due:
                self._logged_stage, self._logged_at = stage, self._seconds_since_first_stage()
                self._write(self._text())

    def _text(self) -> str:
        """Return the text of the live line at this moment."""
        return f"memplan: {self._stage} ({self._seconds_since_first_stage():.0f} s)"

    def _erase_line(self) -> None:
        """Erase the live line, if there is a line; `_draw` makes a new line."""
        if self._line is not None:
            self._line.stop()
            self._line = None


def _stderr_is_terminal() -> bool:
    """Return whether stderr is a terminal on which a line can be drawn again."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def live_line(current_text: Callable[[], str]) -> Line:
    """Return a line on stderr that shows the current result of a function, several times a second."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def renderable() -> Text:
        return Text(current_text(), no_wrap=True, overflow="ellipsis")

    return Live(
        console=Console(stderr=True, highlight=False),
        get_renderable=renderable,
        refresh_per_second=_REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
