"""What a process is made of, as a finding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from memplan_cli.core.serialization import SORTED, sparse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.amounts import BoundDim
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.serialization import Keys
    from memplan_cli.runtime.process.parts import Part


@dataclass(frozen=True, slots=True)
class ProcessStory:
    """A model's process, predicted, and its parts, largest first."""

    json_keys: ClassVar[Keys] = (
        "model",
        "runtime",
        "process",
        "parts",
        *sparse("bindings", form=SORTED),
    )

    model: str
    runtime: str
    process: ProcessBytes
    parts: tuple[Part, ...]
    bindings: Mapping[str, BoundDim] = field(default_factory=dict)
    """The number of each dim that it is predicted at, and who said it."""

    @property
    def assumed(self) -> dict[str, int]:
        """Return the numbers that nobody said."""
        return {n: dim.value for n, dim in self.bindings.items() if dim.source == "assumed"}
