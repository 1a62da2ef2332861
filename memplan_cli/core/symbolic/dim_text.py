"""How is a dim's text read? As Python reads arithmetic, after every name was put aside.

Names of dims are freer than Python's (``input.1_dim0``), and in backquotes anything goes.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

_PLAIN = r"[^\W\d][\w.:$#@]*"
_WORD = re.compile(rf"`([^`]*)`|({_PLAIN})")
_BARE = re.compile(_PLAIN)


def quoted(name: str) -> str:
    """Spell a name; one that is no plain word stands in backquotes."""
    return name if _BARE.fullmatch(name) else f"`{name}`"


@dataclass(slots=True)
class Tree:
    """The syntax of a text; ``name`` says what stands where Python sees ``_0``, ``_1`` ..."""

    top: ast.expr
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Tree:
        """Read a text.

        Raises:
            SyntaxError, ValueError, RecursionError, MemoryError: it is no expression.
        """
        names: list[str] = []

        def aside(match: re.Match[str]) -> str:
            names.append(match[2] if match[1] is None else match[1])
            return f" _{len(names) - 1} "  # apart: `2batch` is neither a number nor 2*batch

        safe = _WORD.sub(aside, text).strip()
        if "#" in safe:
            raise ValueError("Python would read a comment")
        return cls(ast.parse(safe, mode="eval").body, names)

    def name(self, node: ast.Name) -> str:
        """Return the name that was put aside."""
        return self.names[int(node.id[1:])]
