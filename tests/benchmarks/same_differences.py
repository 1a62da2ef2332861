"""Differences between two results of a command, key by key, and rows of those alike.

A result is a set of documents: what was printed, and the files that were written. JSON and
CSV are compared value by value, other text by its numbers, its options and its words. What two runs
of the same code may say differently (seconds, versions) is left out.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

LEFT_OUT = frozenset({"seconds", "version", "memplan", "observed", "digest"})
"""Keys whose values say when, by which version, or on which machine."""

WORDS = frozenset(
    {"description", "help", "hint", "message", "meaning", "notes", "reason",
     "title", "warnings"}
)  # fmt: skip
"""Keys whose values are sentences: their wording may change, no number hangs on it."""

NAMED = frozenset({"tensors", "models", "properties", "$defs"})
"""Keys of objects whose keys are names, not fields."""

NAMES = ("name", "tensor", "id", "block", "model", "allocator", "node")
"""Fields that may name the entries of a list, the first that does."""

_VERSION = re.compile(r"(?<=memplan )\d+\.\d+\.\d+")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*|\[[\w.-]+(?:\|[\w.-]+)+\]")
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")

Key = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """A value that is not the same, of a document at a key.

    The key begins with the document; what is one of many has brackets around it. ``count``
    is of more than one where others like it were folded into it.
    """

    subject: str
    command: str
    key: Key
    old: Any
    new: Any
    words: bool = False
    count: int = 1

    @property
    def pattern(self) -> str:
        """Return the key with a star for what is one of many."""
        document, *rest = self.key
        return f"{document}: " + ".".join(
            "*" if part.startswith("[") else part for part in rest
        )

    @property
    def direction(self) -> str:
        """Return whether a number became lower or higher, be it written as text or not."""
        old, new = _number(self.old), _number(self.new)
        if old is None or new is None or old == new:
            return "other"
        return "lower" if new < old else "higher"


@dataclass(frozen=True)
class Explanation:
    """Why differences are intended; ``directions`` are those that are, of models like ``subject``."""

    command: str
    pattern: str
    reason: str
    directions: tuple[str, ...] = ("lower", "higher", "other")
    subject: str = "*"

    def covers(self, difference: Difference) -> bool:
        """Return whether a difference is one of those meant."""
        return (
            fnmatchcase(difference.command, self.command)
            and fnmatchcase(difference.pattern, self.pattern)
            and difference.direction in self.directions
            and fnmatchcase(difference.subject, self.subject)
        )


@dataclass(frozen=True)
class Row:
    """Differences of any commands under one pattern of keys, for one reason or none."""

    pattern: str
    words: bool
    reason: str
    differences: tuple[Difference, ...]

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return the models that have them."""
        return tuple(dict.fromkeys(d.subject for d in self.differences))

    @property
    def count(self) -> int:
        """Return how many there are."""
        return sum(difference.count for difference in self.differences)

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands that have them."""
        return tuple(dict.fromkeys(d.command for d in self.differences))

    @property
    def directions(self) -> str:
        """Return how many numbers became lower, and how many higher."""
        count: Counter[str] = Counter()
        for difference in self.differences:
            count[difference.direction] += difference.count
        said = [f"{count[way]} {way}" for way in ("lower", "higher") if count[way]]
        return ", ".join(said) or "-"


def differences(
    subject: str, command: str, old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> list[Difference]:
    """Compare the documents of two results, which are texts by name."""
    found = []
    for document in sorted({*old, *new}):
        for key, before, after, words in _changes(
            document, old.get(document), new.get(document)
        ):
            found.append(Difference(subject, command, (document, *key), before, after, words))
    return found


def folded(found: Iterable[Difference]) -> list[Difference]:
    """Return the first difference of each pattern and direction of a case, with a count."""
    groups: dict[tuple[str, bool, str], list[Difference]] = {}
    for one in found:
        groups.setdefault((one.pattern, one.words, one.direction), []).append(one)
    return [replace(g[0], count=sum(one.count for one in g)) for g in groups.values()]


def _changes(
    document: str, old: str | None, new: str | None
) -> Iterator[tuple[Key, Any, Any, bool]]:
    if old == new:
        return
    if old is None or new is None:
        yield (), _presence(old), _presence(new), False
        return
    trees = _tree(document, old), _tree(document, new)
    if None in trees:
        yield from _text_changes(document, old, new)
        return
    before, after = dict(leaves(trees[0])), dict(leaves(trees[1]))
    for key in dict.fromkeys((*before, *after)):
        pair = before.get(key, "(none)"), after.get(key, "(none)")
        if pair[0] != pair[1] or type(pair[0]) is not type(pair[1]):
            words = not WORDS.isdisjoint(key) and not any(map(_is_number, pair))
            yield key, *pair, words


def _presence(text: str | None) -> str:
    return "(none)" if text is None else "(written)"


def _tree(document: str, text: str) -> object:
    if document.endswith(".csv") or _is_table(text):
        return list(csv.DictReader(io.StringIO(text)))
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None


def _is_table(text: str) -> bool:
    return text.startswith(("id,lower,", "name,block,"))


def leaves(value: object, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield each value of a document with its key; entries with names go by their names."""
    if isinstance(value, dict):
        named = bool(key) and key[-1] in NAMED
        for name, inner in value.items():
            if name not in LEFT_OUT or named:
                yield from leaves(inner, (*key, f"[{name}]" if named else str(name)))
        if not value:
            yield key, "{}"
    elif isinstance(value, list):
        names = _entry_names(value)
        if names:
            yield (*key, "(order)"), tuple(names)
        for name, inner in zip(names or map(str, range(len(value))), value, strict=False):
            yield from leaves(inner, (*key, f"[{name}]"))
        if not value:
            yield key, "[]"
    else:
        yield key, _VERSION.sub("N", value) if isinstance(value, str) else value


def _entry_names(entries: Sequence[Any]) -> list[str]:
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return []
    for field in NAMES:
        names = [str(entry.get(field, "")) for entry in entries]
        if len(set(names)) == len(names) and all(field in entry for entry in entries):
            return names
    return []


def _text_changes(document: str, old: str, new: str) -> Iterator[tuple[Key, Any, Any, bool]]:
    """Compare the numbers of two texts, the options they name, and their words."""
    before, after = (_VERSION.sub("N", text) for text in (old, new))
    old_lines, new_lines = (
        [" ".join(line.split()) for line in text.splitlines()] for text in (before, after)
    )
    old_words, new_words = (Counter(map(_worded, lines)) for lines in (old_lines, new_lines))
    if document != "stderr":
        kept = old_words.keys() & new_words.keys()
        numbers = _numbers(old_lines, kept), _numbers(new_lines, kept)
        options = Counter(set(_OPTION.findall(before))), Counter(set(_OPTION.findall(after)))
        for name, pair in (("numbers", numbers), ("options", options)):
            if pair[0] != pair[1]:
                yield (name,), *_only_in_each(*pair), False
    if old_words != new_words:
        yield ("words",), *_only_in_each(old_words, new_words), True
    elif [*map(_worded, old_lines)] != [*map(_worded, new_lines)]:
        yield ("lines", "(order)"), "as before", "another", False


def _worded(line: str) -> str:
    return _NUMBER.sub("#", line)


def _numbers(lines: Iterable[str], kept: Collection[str]) -> Counter[str]:
    """Return the lines whose words are kept, and the bare numbers of the others."""
    found: Counter[str] = Counter()
    for line in lines:
        words = _worded(line)
        found.update([line] if words in kept and words != line else _NUMBER.findall(line))
    return found


def _only_in_each(old: Counter[str], new: Counter[str]) -> tuple[str, str]:
    lost, added = old - new, new - old
    return tuple(  # type: ignore[return-value]  # two of them
        " / ".join(islice(counted.elements(), 8)) or "(none)" for counted in (lost, added)
    )


def rows(found: Iterable[Difference], explained: Sequence[Explanation]) -> list[Row]:
    """Put differences of the same pattern of keys and the same reason in one row."""
    groups: dict[tuple[str, bool, str], list[Difference]] = {}
    for one in found:
        reason = next((e.reason for e in explained if e.covers(one)), "")
        groups.setdefault((one.pattern, one.words, reason), []).append(one)
    return [Row(*group, tuple(members)) for group, members in groups.items()]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> float | None:
    if isinstance(value, str):
        return float(value.replace(",", "")) if _NUMBER.fullmatch(value) else None
    return value if isinstance(value, int | float) and _is_number(value) else None
