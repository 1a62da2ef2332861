"""The result of checking a certificate: a verdict on each bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from memplan_cli.core.json_types import one_of
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by

VERIFIED, REFUSED, NOT_CHECKED = "verified", "refused", "not checkable"


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """The verdict on one bound of a plan.

    Attributes:
        part: what is bounded: the order, an arena or recomputation.
        bound: the bound, in multiples of ``unit``.
        status: whether the witness of the bound was verified.
        method: the kind of the witness.
        reason: why the bound is not verified; empty if it is.
        unit: the unit of the arena.
    """

    part: str
    bound: int
    status: Annotated[str, one_of(VERIFIED, REFUSED, NOT_CHECKED)]
    method: str
    reason: str
    unit: str = "1"


@dataclass(frozen=True, slots=True)
class Certified:
    """The verdicts on all parts of a certificate."""

    json_keys: ClassVar[Keys] = ("passed", "parts")

    parts: tuple[PartVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every bound of the plan was verified."""
        return all(part.status == VERIFIED for part in self.parts)
