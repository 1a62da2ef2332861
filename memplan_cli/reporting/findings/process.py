"""The predicted memory of a process, divided by purpose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.memory import BoundDim  # noqa: TC001 - a type to read by
from memplan_cli.core.results.observations import ProcessBytes  # noqa: TC001 - a type to read by
from memplan_cli.core.serialization import SORTED, SPARSE
from memplan_cli.runtime.process.parts import Part  # noqa: TC001 - a type to read by

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ProcessStory:
    """The predicted process of a model.

    Attributes:
        model: the model's file.
        runtime: the runtime and its version.
        process: the bytes of the process.
        parts: the bytes by purpose, largest first.
        bindings: the numbers of dimensions that the prediction holds for.
    """

    model: str
    runtime: str
    process: ProcessBytes
    parts: tuple[Part, ...]
    bindings: Mapping[str, BoundDim] = field(
        default_factory=dict, metadata={**SPARSE, **SORTED}
    )

    @property
    def assumed(self) -> dict[str, int]:
        """Return the dimensions whose numbers are assumed."""
        return {n: dim.value for n, dim in self.bindings.items() if dim.source == "assumed"}
