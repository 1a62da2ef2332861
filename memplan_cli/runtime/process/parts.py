"""The parts of a process: their names, their bytes, and the options that would remove them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import ProcessBytes  # noqa: TC001 - a type to read by
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

PARSED_FILE = "parsed file"
INLINE_WEIGHTS = "weights of the file, on the heap"
FOLDED_CONSTANTS = "constants folded at load"
BLOCKED_FILTERS = "filters in blocked layouts"
PACKED_WEIGHTS = "packed weights:"
SESSION_GRAPH = "session and graph"
RUNTIME_CODE = "code of the runtime"
ARENA = "arena"
ARENA_TABLES = "tables of the arena"
MAPPED_WEIGHTS = "weights, mapped from their file"
KERNEL_WORKSPACE = "workspace of kernels, beside the arena"
HEAP_SLACK = "freed, kept by the heap"

_EXTERNAL = "weights as external data"
_OFFLINE = "--target cpu"
_SETTINGS = "memplan settings"

_REMEDIES: Mapping[str, str] = {
    PARSED_FILE: _EXTERNAL,
    INLINE_WEIGHTS: _EXTERNAL,
    FOLDED_CONSTANTS: "--target cpu, or --fold-constants",
    BLOCKED_FILTERS: _OFFLINE,
    ARENA: f"{_SETTINGS}: pattern off, reuse off, an arena of the right size",
    ARENA_TABLES: f"{_SETTINGS}: they go with the arena",
    HEAP_SLACK: f"{_EXTERNAL}, then {_OFFLINE}",
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


def kept_bytes(
    output_bytes: int | None, process: ProcessBytes, predicted: ProcessBytes | None = None
) -> int:
    """Return the bytes by which a process is larger if its caller keeps the outputs of the last run.

    A measured ``process`` does not have this figure. Then it is that of the ``predicted`` one, else
    ``output_bytes`` (0 if unknown).
    """
    if process.kept is not None:
        return process.kept
    if predicted is not None and predicted.kept is not None:
        return predicted.kept
    return output_bytes or 0


def whole_process(process: ProcessBytes, inputs: int | None, kept: int) -> int:
    """Return the highest memory of a process that runs a model again and again, with all that is in it.

    It is what the interpreter and the imported runtime take, the model at its highest, the arrays of its
    ``inputs`` in bytes (0 if unknown), and the `kept_bytes` of the last outputs.
    """
    return PROFILE.imported_process + process.run + (inputs or 0) + kept


def remedy_of(name: str) -> str:
    """Return the option that would remove a part, or an empty text."""
    return _OFFLINE if name.startswith(PACKED_WEIGHTS) else _REMEDIES.get(name, "")
