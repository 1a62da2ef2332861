"""What a process is told so that it can run a model, written and read back.

A job holds it under ``session``, beside keys of its own: what to save, how often to run.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path  # noqa: TC003 - a type to read by
from typing import TYPE_CHECKING, Any

from memplan_cli.core.bindings import FeedSpec  # noqa: TC001 - a type to read by
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import RuntimeSettings

if TYPE_CHECKING:
    from memplan_cli.runtime.workers.inputs import Feed
    from memplan_cli.runtime.workers.worker import Json


_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True, slots=True)
class SessionJob:
    """A model, how its session is set up, and what it is fed.

    Attributes:
        model: the file.
        provider: ONNX Runtime's name of it.
        specs: how to draw the inputs.
        settings: of the session and its runs.
        seed: of the inputs.
        as_loaded: whether the file is opened as `memplan_cli.load` opens those that memplan wrote.
    """

    model: Path
    provider: str
    specs: tuple[FeedSpec, ...]
    settings: RuntimeSettings = field(default_factory=RuntimeSettings)
    seed: int = 0
    as_loaded: bool = False

    @classmethod
    def of(cls, job: Json) -> SessionJob:
        """Return the part of a job that is about its session."""
        return from_json(cls, job["session"], "the job")

    @classmethod
    def of_sizes(cls, job: Json, sizes: Any) -> list[SessionJob]:  # noqa: ANN401 - JSON
        """Return the session of a job with the specs of each of several sizes."""
        session: Any = job["session"]
        return [cls.of({"session": {**session, "specs": specs}}) for specs in sizes]

    def session(self, more: RuntimeSettings | None = None) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Create the session, ``more`` on top of its settings; in a process of its own only.

        Raises:
            RuntimeUnavailableError: it is not on the provider asked for.
        """
        from memplan_cli.runtime.workers.process_memory import giving_back
        from memplan_cli.runtime.workers.session import make_session

        settings = self.settings.updated(more) if more else self.settings
        frees = giving_back(self.model.resolve().parent) if self.as_loaded else nullcontext()
        with frees:
            return make_session(self.model, settings, self.provider)

    def session_of(self, data: bytes, more: RuntimeSettings) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
        """Create the session of other bytes, whose external data lies where the model is.

        Raises:
            RuntimeUnavailableError: it is not on the provider asked for.
        """
        from memplan_cli.runtime.workers.session import make_session

        folder = RuntimeSettings(session_config={_DATA_FOLDER: str(self.model.parent)})
        settings = self.settings.updated(more).updated(folder)
        return make_session(data, settings, self.provider)

    def exact(self) -> SessionJob:
        """Return the same with what makes its provider deterministic."""
        from memplan_cli.runtime.workers.session import deterministic

        return replace(self, settings=self.settings.updated(deterministic(self.provider)))

    def feed(self) -> Feed:
        """Draw the inputs, by name."""
        from memplan_cli.runtime.workers.inputs import draw_all

        return draw_all(self.specs, seed=self.seed)
