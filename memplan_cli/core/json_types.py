"""Types of JSON values that hold more than a Python type says: ranges and enumerations.

They annotate the fields of records: ``level: Annotated[int, one_of(0, 1, 2)]``. `deserialization`
refuses other values, and `json_schema` publishes what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Json = dict[str, Any]
"""A JSON object."""

Kind = Any
"""A type annotation, for which `typing` has no type of its own."""

MAX_BYTES = 1 << 62
"""Sizes and offsets are below this number."""


@dataclass(frozen=True, slots=True)
class Range:
    """The smallest and, if there is one, the largest value of a whole number."""

    low: int
    high: int | None = None

    @property
    def words(self) -> str:
        """Return the range in the words of an error message."""
        return f"a whole number from {self.low}" + (
            "" if self.high is None else f" to {self.high}"
        )

    @property
    def schema(self) -> Json:
        """Return the range as keywords of a JSON schema."""
        limits = {"minimum": self.low, "maximum": self.high}
        return {word: limit for word, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on a value beyond its type.

    Attributes:
        words: the values that are allowed, in the words of an error message.
        holds: whether a value is allowed.
        schema: the condition as keywords of a JSON schema.
    """

    words: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)


def one_of(*values: object) -> Check:
    """Return the condition that a value is one of these."""
    words = f"one of {', '.join(map(str, values))}"
    return Check(words, values.__contains__, {"enum": list(values)})


Count = Annotated[int, Range(0)]
"""A whole number without an upper limit, such as a sum of sizes."""

Natural = Annotated[int, Range(0, MAX_BYTES - 1)]
Positive = Annotated[int, Range(1, MAX_BYTES - 1)]
Share = Annotated[
    float,
    Check("a share from 0 to 1", lambda value: 0 <= value <= 1, {"minimum": 0, "maximum": 1}),
]
NotNegative = Annotated[
    float, Check("a number from 0", lambda value: value >= 0, {"minimum": 0})
]
Sha256 = Annotated[
    str,
    Check(
        "a SHA-256 in hexadecimal",
        lambda text: len(text) == 64 and not set(text) - set("0123456789abcdef"),
        {"pattern": "^[0-9a-f]{64}$"},
    ),
]
