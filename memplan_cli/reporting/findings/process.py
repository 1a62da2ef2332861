"""What a process is made of, as a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from memplan_cli.core.results.observations import ProcessBytes
    from memplan_cli.core.serialization import Keys
    from memplan_cli.runtime.process.parts import Part


@dataclass(frozen=True, slots=True)
class ProcessStory:
    """A model's process, predicted, and its parts, largest first."""

    json_keys: ClassVar[Keys] = ("model", "runtime", "process", "parts")

    model: str
    runtime: str
    process: ProcessBytes
    parts: tuple[Part, ...]
