"""Names of new values and nodes that differ from all names in use."""

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


def value_names(program: Program) -> set[str]:
    """Return the ids and ONNX names of the vars of all blocks.

    In the main graph, a new var of another name can have its name as its id, and its name hides no
    value of a subgraph.
    """
    return {*program.vars, *(var.name for var in program.vars.values())}


def node_names(program: Program) -> set[str]:
    """Return the names of the ops of all blocks."""
    return {op.name for _, op in walk(program.body)}
