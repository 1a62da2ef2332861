"""Names of new values and nodes that differ from all names in use, and patterns of names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import walk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memplan_cli.core.program import Program


class FreshNames:
    """Makes names that differ from all names in use.

    If a preferred name is in use, ``separator`` and a number are appended, counted from ``first`` for
    each preferred name.
    """

    def __init__(self, taken: Iterable[str], separator: str = "_", first: int = 1) -> None:
        self._taken = set(taken)
        self._separator = separator
        self._first = first
        self._next: dict[str, int] = {}

    def fresh(self, preferred: str) -> str:
        """Return an unused name, ``preferred`` itself if possible, and mark it as used."""
        name = preferred
        while name in self._taken:
            number = self._next.get(preferred, self._first)
            self._next[preferred] = number + 1
            name = f"{preferred}{self._separator}{number}"
        self._taken.add(name)
        return name


def text_of_star(name: str, pattern: str) -> str | None:
    """Return the part of a name that the ``*`` of a pattern stands for; None if the name does not match.

    Other characters stand for themselves, also those of globs: a name such as ``in[0]`` is found. A pattern
    without ``*`` matches its own text only, and the part is empty. Only the first ``*`` is one.
    """
    head, star, tail = pattern.partition("*")
    if not star:
        return "" if name == pattern else None
    end = len(name) - len(tail)
    is_match = end >= len(head) and name.startswith(head) and name.endswith(tail)
    return name[len(head) : end] if is_match else None


def value_names(program: Program) -> set[str]:
    """Return the ids and ONNX names of the vars of all blocks.

    In the main graph, a new var of another name can have its name as its id, and its name hides no
    value of a subgraph.
    """
    return {*program.vars, *(var.name for var in program.vars.values())}


def node_names(program: Program) -> set[str]:
    """Return the names of the ops of all blocks."""
    return {op.name for _, op in walk(program.body)}
