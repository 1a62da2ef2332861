"""A request to a workflow: the settings that were given, and who hears what is being done."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.settings.settings import Settings

FilePath = Path | str
"""Where a file is, as a path or as text."""


@dataclass(frozen=True, slots=True)
class Request:
    """Settings that are not tied to one model yet, and listeners.

    Attributes:
        config: a settings file.
        overrides: settings on top of those of the files.
        progress: told what is being done.
        warn: told what plans warn of.
    """

    config: FilePath | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    progress: Progress = silent
    warn: Progress = silent

    @property
    def config_file(self) -> Path | None:
        """The settings file as a path."""
        return None if self.config is None else Path(self.config)

    def load(self, model: Path) -> Settings:
        """Return the settings for a model, from files and overrides together."""
        from memplan_cli.settings.sources import load_settings

        return load_settings(model, self.config_file, self.overrides)
