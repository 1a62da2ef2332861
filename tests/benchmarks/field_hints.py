"""Hints that commands print, followed as a user would who copies them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

Words = tuple[str, ...]

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+(?:[ =][^\s`;]+)?")
"""An option in a sentence, with the word after it."""
VALUED = ("--dim", "--shape", "--input", "--inputs", "--bounds")
VALUE = re.compile(r"[^-=][^=]*=[\w.,/+-]*[a-z0-9_]|[\w/.-]+[.](npz|json)")
"""``NAME=NUMBERS`` or a file's name; a placeholder such as ``NAME=D,D`` is none."""
ROUNDS = 3


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """Return its error, without the hint."""
        lines = [line for line in self.err.splitlines() if line.startswith("Error:")]
        return lines[0].removeprefix("Error: ") if lines else ""

    @property
    def hints(self) -> list[str]:
        """Return each sentence that tells the user to do something."""
        lines = [at for at in self.err.splitlines() if at.startswith("Hint:")]
        told = [
            at for at in self.out.splitlines() if "give it with --" in at or "say --" in at
        ]
        flat = [" ".join(line.removeprefix("Hint:").split()) for line in lines]
        return [*flat, *dict.fromkeys(_from_option(line) for line in told)]


@dataclass(frozen=True)
class Followed:
    """A hint, the words tried, and where they led."""

    model: str
    command: str
    hint: str
    added: Words
    outcome: str
    """``works``, ``another message``, ``no further``, ``refused`` as an option, or ``nothing to copy``."""


def options(hint: str) -> Words:
    """Return the options of a hint that can be copied as they stand, the valued ones first.

    A hint that offers several ways is followed by the first: all bindings together, or
    one switch.
    """
    found = [re.split(r"[ =]", at.rstrip(",.:?"), maxsplit=1) for at in OPTION.findall(hint)]
    valued = [pair for pair in found if pair[0] in VALUED and VALUE.fullmatch(pair[-1])]
    if valued:
        return tuple(word for pair in valued for word in pair)
    return next(((at[0],) for at in found if at[0] not in VALUED), ())


def follow(
    model: str, command: str, words: Words, said: Said, run: Callable[[Words], Said]
) -> list[Followed]:
    """Run what the hints of a command say, and what the hints after that say."""
    found = []
    for _ in range(ROUNDS):
        if not said.hints:
            break
        hint = said.hints[0]
        added = options(hint)
        if not added or set(added) <= set(words):
            outcome = "no further" if added else "nothing to copy"
            found.append(Followed(model, command, hint, added, outcome))
            break
        words = (*words, *added)
        after = run(words)
        outcome = _outcome(said, after)
        found.append(Followed(model, command, hint, added, outcome))
        if outcome != "another message":
            break
        said = after
    return found


def _outcome(before: Said, after: Said) -> str:
    if after.message.startswith(("No such option", "Invalid value")):
        return "refused"
    if after.code == 2:
        return "no further" if after.message == before.message else "another message"
    if before.code == 2:
        return "works"
    return "works" if len(after.hints) < len(before.hints) else "no further"


def _from_option(line: str) -> str:
    return " ".join(line[line.index("--") :].split())
