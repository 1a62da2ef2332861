"""Settings as a caller gives them (an object, a file, keywords), and listeners of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memplan_cli.core.progress import Progress, silent
from memplan_cli.errors import SettingsError
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


def request_of(
    config: FilePath | None,
    options: Mapping[str, object],
    progress: Progress | None = None,
    warn: Progress | None = None,
) -> Request:
    """Return a request from the keywords of a call; a single text counts as a list of one."""
    overrides = dict(options)
    inputs = overrides.pop("inputs", None)
    if isinstance(inputs, Mapping):
        overrides["input"] = inputs
    elif inputs is not None:
        overrides["inputs"] = _as_list(inputs)
    for name in ("exclude", "checkpoints"):
        if name in overrides:
            overrides[name] = _as_list(overrides[name])
    return Request(config, overrides, progress or silent, warn or silent)


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def settings_of(
    model: Path,
    settings: Settings | None,
    config: FilePath | None,
    options: Mapping[str, object],
) -> Settings:
    """Return the settings of a call; a file and keywords are read as a command reads them.

    Raises:
        SettingsError: they are given as an object and otherwise too, or one is wrong.
    """
    if not options and config is None:
        return settings or Settings()
    if settings is not None:
        name = next(iter(options), "config")
        raise SettingsError(
            f"settings are given as an object and as {name}=",
            hint="give one of them",
        )
    return request_of(config, options).load(model)
