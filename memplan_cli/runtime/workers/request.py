"""What a server of forked processes is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOP = b"stop\n"
"""The request to end the job that runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a forked process is to do, where, and where its output goes.

    Attributes:
        kind: one of those that the server knows.
        words: what it is told.
        folder: the one to run in.
        out: the file for stdout.
        err: the file for stderr.
        environment: its variables.
        limits: pairs of a resource and its most.
    """

    kind: str
    words: Sequence[str]
    folder: str
    out: str
    err: str
    environment: Mapping[str, str]
    limits: Sequence[tuple[int, int]] = ()
