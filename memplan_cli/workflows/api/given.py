"""Settings as a caller gives them: an object, a file, or keywords as in a settings file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan_cli.core.progress import Progress, silent
from memplan_cli.errors import SettingsError
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.request import Request

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.workflows.request import FilePath


def request(
    config: FilePath | None, options: Mapping[str, object], progress: Progress | None = None
) -> Request:
    """Return a request of the keywords of a call; a value that stands alone is a list of one."""
    given = dict(options)
    inputs = given.pop("inputs", None)
    if isinstance(inputs, Mapping):
        given["input"] = inputs
    elif inputs is not None:
        given["inputs"] = _several(inputs)
    for name in ("exclude", "checkpoints"):
        if name in given:
            given[name] = _several(given[name])
    return Request(config, given, progress or silent)


def _several(value: object) -> object:
    return [value] if isinstance(value, str) else value


def settings_of(
    model: Path,
    settings: Settings | None,
    config: FilePath | None,
    options: Mapping[str, object],
) -> Settings:
    """Return the settings of a call; with a file or keywords, those that a command would have.

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
    return request(config, options).load(model)
