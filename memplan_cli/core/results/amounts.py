"""Total bytes of a model: for the plan of a report, and for each binding of dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

Json = dict[str, Any]
"""JSON's edge: what the contract lays out, as dictionaries."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as in `figures.DEFINITIONS`; None where some size is not a number."""

    weights: int
    inputs: int | None
    outputs: int | None
    naive: int | None
    live_peak: int | None
    planned: int | None
    total: int | None
    order_bound: int | None = None
    order_proved: bool = False

    def to_json(self) -> Json:
        """Return each number by its name."""
        return {name: getattr(self, name) for name in Memory.__slots__}


@dataclass(frozen=True, slots=True)
class Profile:
    """Total bytes of a plan for these dims alone, beside one plan that is valid for several."""

    dims: Mapping[str, int]
    memory: Memory

    def to_json(self) -> Json:
        """Return the dims by name, and the numbers."""
        return {"dims": dict(self.dims), "memory": self.memory.to_json()}

    @classmethod
    def from_json(cls, data: Json) -> Profile:
        """Read what `to_json` wrote."""
        return cls(data["dims"], Memory(**data["memory"]))
