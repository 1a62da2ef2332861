"""Progress messages: a callable that is told which stage begins, and one that ignores it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(slots=True)
class Tally:
    """The parts of a stage, counted as they begin, of which some may turn out not to be needed.

    Attributes:
        tell: told of each part.
        stage: its name.
        expected: how many parts there are at most, as far as is known.
        begun: how many have begun.
    """

    tell: Progress
    stage: str
    expected: int = 0
    begun: int = 0

    def begin(self) -> None:
        """Say that one more part begins: those before it are done."""
        done, self.begun = self.begun, self.begun + 1
        self.expected = max(self.expected, self.begun)
        self.tell(Counted(self.stage, done, self.expected))

    def settle(self, most: int, before: int) -> None:
        """Expect no more of what was to take ``most`` parts, and began after ``before``."""
        self.expected -= max(most - (self.begun - before), 0)


def silent(text: str) -> None:
    """Ignore a message."""
    del text
