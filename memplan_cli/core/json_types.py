"""Types of record fields that restrict values in JSON: ranges, enumerations, digests.

They annotate the fields of records: ``level: Annotated[int, one_of(0, 1, 2)]``. `deserialization`
checks the conditions, and `json_schema` publishes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = dict[str, Any]
"""A JSON object."""

TypeHint = Any
"""A type annotation: a class, or a generic such as ``tuple[int, ...]``."""

MAX_BYTES = 1 << 62
"""Sizes and offsets are smaller than this number."""


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and the largest allowed integer, both included; ``high`` None: no limit."""

    low: int
    high: int | None = None

    @property
    def description(self) -> str:
        """The allowed values, for an error message."""
        return f"a whole number from {self.low}" + (
            "" if self.high is None else f" to {self.high}"
        )

    @property
    def schema(self) -> Json:
        """The range as keywords of a JSON schema."""
        limits = {"minimum": self.low, "maximum": self.high}
        return {keyword: limit for keyword, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a value of the right type.

    Attributes:
        description: the allowed values, for an error message.
        holds: returns whether a value is allowed.
        schema: the condition as keywords of a JSON schema, as far as they can express it.
    """

    description: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)


def one_of(*values: object) -> Condition:
    """Return the condition that a value is one of these."""
    description = f"one of {', '.join(map(str, values))}"
    return Condition(description, values.__contains__, {"enum": list(values)})


Count = Annotated[int, Range(0)]
"""An integer from 0 without an upper limit, such as a sum of sizes."""

Natural = Annotated[int, Range(0, MAX_BYTES - 1)]
Positive = Annotated[int, Range(1, MAX_BYTES - 1)]
Share = Annotated[
    float,
    Condition(
        "a share from 0 to 1",
        lambda value: 0 <= value <= 1,
        {"minimum": 0, "maximum": 1},
    ),
]
NotNegative = Annotated[
    float, Condition("a number from 0", lambda value: value >= 0, {"minimum": 0})
]
Sha256 = Annotated[
    str,
    Condition(
        "a SHA-256 in hexadecimal",
        lambda text: len(text) == 64 and not set(text) - set("0123456789abcdef"),
        {"pattern": "^[0-9a-f]{64}$"},
    ),
]
