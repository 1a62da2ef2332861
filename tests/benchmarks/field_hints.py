"""Hints that commands print, followed as a user would who copies them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from memplan_cli.cli import main as entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Words = tuple[str, ...]

WHOLE = re.compile(r"`(memplan [^`]+)`|(?:^|: )(memplan .+)$")
"""A command in a clause."""
LEFT_OUT = re.compile(r"\bremove (--[a-z-]+)")
QUOTED = re.compile(r"'([^']+)'")
NAMED = re.compile(r"^(?:did you mean|free dims are) '?([^',?]+)")
"""A name in place of one that is wrong, the first of several."""
PLACEHOLDER = re.compile(
    r"\b(MODEL|PLAN|FILE|NAME|SECONDS|SIZE|INPUT|OUTPUT)\b|=N\b|=D,D|=A[.]"
)
"""What a user would have to fill in: nothing that can be copied."""
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
        """Return each hint: below an error, or a command in a text."""
        told = [
            at.removeprefix("Hint:") for at in self.err.splitlines() if at.startswith("Hint:")
        ]
        shown = [at for at in self.out.splitlines() if at.strip().startswith("memplan ")]
        return list(dict.fromkeys(at.strip() for at in (*told, *shown)))


@dataclass(frozen=True)
class Followed:
    """A hint, the words tried, and where they led."""

    model: str
    command: str
    hint: str
    added: Words
    outcome: str
    """``works``, ``another message``, ``no further``, ``refused`` as an option, or ``nothing to copy``."""


def offers(hint: str, words: Words, message: str = "") -> list[Words]:
    """Return each command that a hint on a command offers: its own options changed, or another.

    Clauses stand between ``; ``: each is a way of its own. A name stands in place of the
    one that the message quotes.
    """
    quoted = QUOTED.search(message)
    wrong = quoted[1] if quoted else ""
    found = [_offered(clause, words, wrong) for clause in hint.split("; ")]
    return list(dict.fromkeys(at for at in found if at))


def _offered(clause: str, words: Words, wrong: str) -> Words:
    if PLACEHOLDER.search(clause):
        return ()
    named = NAMED.search(clause)
    if named and wrong:
        return tuple(word.replace(wrong, named[1]) for word in words)
    whole = WHOLE.search(clause)
    if whole:
        return tuple(shlex.split(whole[1] or whole[2]))[1:]
    removed = LEFT_OUT.search(clause)
    if removed:
        return _without(words, removed[1])
    added = tuple(_options(clause, words[0]))
    return (*words, *added) if added else ()


def _options(clause: str, command: str) -> Iterator[str]:
    """Yield the options in a clause, each with its value where the command wants one."""
    start = re.search(r"(?<![\w-])--[a-z]", clause)
    tokens = iter(_split(clause[start.start() :]) if start else ())
    for token in tokens:
        if not token.startswith("--"):
            continue
        name, sign, _ = token.partition("=")
        yield token.rstrip(",.:)")
        if not sign and not _is_flag(command, name.rstrip(",.:)")):
            yield next(tokens, "").rstrip(",.:)")


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an apostrophe, which no shell would like
        return text.split()


def _is_flag(command: str, option: str) -> bool:
    known = entry.get_command(click.Context(entry), command)
    params = known.params if known is not None else ()
    found = (p for p in params if option in (*p.opts, *p.secondary_opts))
    return getattr(next(found, None), "is_flag", False)


def _without(words: Words, option: str) -> Words:
    if option not in words:
        return ()
    at = words.index(option)
    return (*words[:at], *words[at + 1 + (not _is_flag(words[0], option)) :])


@dataclass(frozen=True)
class _Asked:
    """What is run: a command on a model."""

    model: str
    command: str
    run: Callable[[Words], Said]


def follow(
    model: str, command: str, words: Words, said: Said, run: Callable[[Words], Said]
) -> list[Followed]:
    """Run what every hint of a command says, and what the hints after that say."""
    return list(_followed(_Asked(model, command, run), words, said, ROUNDS))


def _followed(asked: _Asked, words: Words, said: Said, rounds: int) -> Iterator[Followed]:
    for hint in said.hints:
        found = offers(hint, words, said.message)
        if not found:
            yield Followed(asked.model, asked.command, hint, (), "nothing to copy")
        for tried in found:
            after = asked.run(tried)
            outcome = _outcome(said, after, hint)
            added = tried[len(words) :] if tried[: len(words)] == words else tried
            yield Followed(asked.model, asked.command, hint, added, outcome)
            if outcome == "another message" and rounds > 1:
                yield from _followed(asked, tried, after, rounds - 1)


def _outcome(before: Said, after: Said, hint: str) -> str:
    if after.message.startswith(("No such option", "Invalid value", "Missing")):
        return "refused"
    if hint in after.hints or after.message == before.message != "":
        return "no further"
    if after.code == 2:
        return "another message"
    return "works" if after.code in (0, 1) else "no further"
