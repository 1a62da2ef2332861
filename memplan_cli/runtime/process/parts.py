"""The parts of a process: their names, their bytes, and the options that would remove them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import ProcessBytes  # noqa: TC001 - a type to read by

if TYPE_CHECKING:
    from collections.abc import Mapping

PARSE = "parsed file"
INSIDE = "weights of the model file, on the heap"
FOLDED = "constants folded at load"
BLOCKED = "filters in blocked layouts"
PACKED = "packed weights:"
GRAPH = "session and graph"
CODE = "code of the runtime"
ARENA = "arena"
ARENA_TABLES = "tables of the arena"
WEIGHT_FILES = "weights, mapped from their file"
KERNELS = "workspace of kernels, beside the arena"
SLACK = "freed, kept by the heap"

_EXTERNAL = "weights as external data"
_OFFLINE = "--target cpu"
_SETTINGS = "memplan settings"

_REMEDIES: Mapping[str, str] = {
    PARSE: _EXTERNAL,
    INSIDE: _EXTERNAL,
    FOLDED: "--target cpu, or --fold-constants",
    BLOCKED: _OFFLINE,
    ARENA: f"{_SETTINGS}: pattern off, reuse off, an arena of the right size",
    ARENA_TABLES: f"{_SETTINGS}: they go with the arena",
    SLACK: f"{_EXTERNAL}, then {_OFFLINE}",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one purpose in a process.

    Attributes:
        name: the purpose.
        load: bytes at the highest point while the session is made.
        run: bytes at the highest point of all.
        private: anonymous bytes after the runs.
        remedy: the option that would remove them, or an empty text.
    """

    name: str
    load: int
    run: int
    private: int
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class PredictedProcess:
    """The predicted bytes of a process, and its parts, the largest first."""

    process: ProcessBytes
    parts: tuple[Part, ...]


def remedy_of(name: str) -> str:
    """Return the option that would remove a part, or an empty text."""
    return _OFFLINE if name.startswith(PACKED) else _REMEDIES.get(name, "")
