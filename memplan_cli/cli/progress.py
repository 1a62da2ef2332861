"""What a command is doing, on stderr: one live line on a terminal, a line a stage in a log."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from threading import RLock, Timer
from typing import TYPE_CHECKING, Protocol

from memplan_cli.core.progress import Counted, Detail

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.text import Text

QUICK = 1.0
"""Seconds below which progress would only flicker."""

_SELDOM = 10.0
"""Seconds between two lines of a log about one stage whose parts are counted."""

_A_SECOND = 4
"""How often a live line is drawn."""


class Line(Protocol):
    """A line on a terminal that is drawn again and again."""

    def start(self) -> None:
        """Begin to draw."""

    def stop(self) -> None:
        """Take the line away."""


class Display:
    """The stage that runs now, shown once a command takes longer than a moment.

    Args:
        write: takes a whole line of text.
        line: makes a live line of a function that says what is in it; None: this is a log.
        details: whether what searches find is shown.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        line: Callable[[Callable[[], str]], Line] | None = None,
        *,
        details: bool = False,
    ) -> None:
        self._write, self._make, self._details = write, line, details
        self._lock = RLock()
        self._began = time.monotonic()
        self._told = ""
        self._shown = ("", 0.0)
        self._line: Line | None = None
        self._timer: Timer | None = None

    def tell(self, text: str) -> None:
        """Hear of a stage, of a part of one that is done, or of a detail."""
        with self._lock:
            if isinstance(text, Detail):
                if self._details:
                    self.note(f"memplan: {text}")
                return
            self._told = text
            if self._elapsed() > QUICK:
                self._show()
            elif self._timer is None:
                self._timer = Timer(QUICK, self._show)
                self._timer.daemon = True
                self._timer.start()

    def note(self, text: str) -> None:
        """Write a line that stays, above a live one."""
        with self._lock:
            self._take_away()
            self._write(text)

    def stop(self) -> None:
        """Show nothing more, and leave no trace on a terminal."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._take_away()
            self._told = ""

    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _show(self) -> None:
        with self._lock, suppress(OSError):
            if not self._told:
                return
            if self._make is not None:
                if self._line is None:
                    self._line = self._make(self._said)
                    self._line.start()
                return
            stage = _stage(self._told)
            shown, when = self._shown
            if stage != shown or (
                isinstance(self._told, Counted) and self._elapsed() - when > _SELDOM
            ):
                self._shown = (stage, self._elapsed())
                self._write(self._said())

    def _said(self) -> str:
        return f"memplan: {self._told} ({self._elapsed():.0f} s)"

    def _take_away(self) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None


def _stage(text: str) -> str:
    return text.stage if isinstance(text, Counted) else text


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line can be drawn again."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def live_line(said: Callable[[], str]) -> Line:
    """Return a line that says again and again what a function says."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    def text() -> Text:
        return Text(said(), no_wrap=True, overflow="ellipsis")

    return Live(
        console=Console(stderr=True, highlight=False),
        get_renderable=text,
        refresh_per_second=_A_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
