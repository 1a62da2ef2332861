"""What a process is told so that it can run a model, written and read back.

Kinds of jobs add keys of their own to these: what to save, how often to run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.onnx_io.runs.feeds import FeedSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.worker import Json


@dataclass(frozen=True, slots=True)
class SessionJob:
    """A model, how its session is set up, and what it is fed.

    Attributes:
        model: the file.
        provider: ONNX Runtime's name of it.
        specs: how to draw the inputs.
        settings: of the session and its runs.
        seed: of the inputs.
    """

    model: Path
    provider: str
    specs: tuple[FeedSpec, ...]
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    seed: int = 0

    def to_json(self) -> Json:
        """Return the keys that every job with a session has."""
        return {
            "model": str(self.model),
            "provider": self.provider,
            "specs": [asdict(spec) for spec in self.specs],
            "settings": self.settings.to_json(),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, job: Mapping[str, Any]) -> SessionJob:
        """Read what `to_json` wrote, whatever else a job says."""
        specs = tuple(
            FeedSpec(
                **{**spec, "shape": tuple(spec["shape"]), "values": tuple(spec["values"])}
            )
            for spec in job["specs"]
        )
        settings = RuntimeSettings.from_json(job["settings"])
        return cls(Path(job["model"]), job["provider"], specs, settings, job["seed"])

    def session(self, more: RuntimeSettings | None = None) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Create the session, ``more`` on top of its settings; in a process of its own only.

        Raises:
            RuntimeUnavailableError: it is not on the provider asked for.
        """
        from memplan_cli.runtime.workers.session import make_session

        settings = self.settings.updated(more) if more else self.settings
        return make_session(self.model, settings, self.provider)

    def feed(self) -> Feed:
        """Draw the inputs, by name."""
        from memplan_cli.runtime.workers.inputs import draw_all

        return draw_all(self.specs, seed=self.seed)
