"""What a server of forked processes is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STOP = b"stop\n"
"""The request to end the job that runs."""

Begin = Literal["waiting", "new"]
"""Whether the process that waits for work of this kind does it, or one that starts with it."""


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
        worker: the name under which its process waits for more; none: it ends.
        begin: ``new`` ends the process that waits under this name before.
    """

    kind: str
    words: Sequence[str]
    folder: str
    out: str
    err: str
    environment: Mapping[str, str]
    limits: Sequence[tuple[int, int]] = ()
    worker: str = ""
    begin: Begin = "waiting"
