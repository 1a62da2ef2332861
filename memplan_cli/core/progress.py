"""Progress messages: a callable that is told which stage begins, and one that ignores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

Progress = Callable[[str], None]
"""Takes the name of the stage that begins, in users' words; or a `Counted`, or a `Detail`."""


class Detail(str):
    """What a search has found on its way: no stage, for those who look into memplan."""

    __slots__ = ()


class Counted(str):  # noqa: SLOT000 - a text with slots cannot have more than its characters
    """A stage of which so many parts are done."""

    stage: str
    done: int
    total: int

    def __new__(cls, stage: str, done: int, total: int) -> Self:
        """Return a text that says all three."""
        made = super().__new__(cls, f"{stage}, {done} of {total}")
        made.stage, made.done, made.total = stage, done, total
        return made


def silent(text: str) -> None:
    """Ignore a message."""
    del text
