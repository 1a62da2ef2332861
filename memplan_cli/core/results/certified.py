"""What came out of checking a certificate: a verdict on each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from memplan_cli.core.deserialization import one_of
from memplan_cli.core.serialization import Keys  # noqa: TC001 - a type to read by

VERIFIED, REFUSED, NOT_CHECKED = "verified", "refused", "not checkable"


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """One bound of a plan: what it says, and whether its witness shows it.

    The bound is in multiples of ``unit``, as its arena is.
    """

    part: str
    bound: int
    status: Annotated[str, one_of(VERIFIED, REFUSED, NOT_CHECKED)]
    method: str
    reason: str
    unit: str = "1"


@dataclass(frozen=True, slots=True)
class Certified:
    """The verdicts on all parts of a certificate, in the layout of `memplan.verified/1`."""

    schema: ClassVar[str] = "memplan.verified/1"
    json_keys: ClassVar[Keys] = ("schema", "passed", "parts")

    parts: tuple[PartVerdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every bound of the plan was shown."""
        return all(part.status == VERIFIED for part in self.parts)
