"""Progress messages: the callback that receives them, and texts with more information."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

Progress = Callable[[str], None]
"""A callback. Its argument is the name of a stage that begins, or a `Counted` or `Detail`."""


class Detail(str):
    """An intermediate result of a search, for debugging. It does not begin a stage."""

    __slots__ = ()


class Counted(str):  # noqa: SLOT000 - a text with slots cannot have more than its characters
    """A stage of which ``done`` of ``total`` parts are done."""

    stage: str
    done: int
    total: int

    def __new__(cls, stage: str, done: int, total: int) -> Self:
        """Return the text ``<stage>, <done> of <total>`` with the three as attributes."""
        text = super().__new__(cls, f"{stage}, {done} of {total}")
        text.stage, text.done, text.total = stage, done, total
        return text


def silent(text: str) -> None:
    """Ignore a message: the callback if no progress is shown."""
    del text
