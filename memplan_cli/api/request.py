"""The settings of a call: an object, a settings file, or keywords; and the callbacks of a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memplan_cli.core.progress import Progress, silent
from memplan_cli.errors import SettingsError
from memplan_cli.settings.settings import Settings

FilePath = Path | str
"""The path of a file."""


@dataclass(frozen=True, slots=True)
class Request:
    """Settings that are not yet for one model, and the callbacks of a call.

    Attributes:
        config: a settings file.
        overrides: settings on top of those of the files.
        progress: called with the name of each stage.
        warn: called with each warning of a plan.
    """

    config: FilePath | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)
    progress: Progress = silent
    warn: Progress = silent

    @property
    def config_file(self) -> Path | None:
        """The settings file as a path."""
        return None if self.config is None else Path(self.config)

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options of these settings on a command line, for errors; empty settings have none.

        A flag that is off, ``skip_grads=False``, is the option ``--no-skip-grads``.
        """
        from memplan_cli.settings.sources import option_name

        names = [] if self.config is None else ["--config"]
        for setting, value in self.overrides.items():
            if value not in (None, (), [], {}):
                option = option_name(setting)
                names.append(option.replace("--", "--no-", 1) if value is False else option)
        return tuple(names)

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
    """Return a request from the keywords of a call. A single text or path counts as a list of one.

    The keyword ``inputs`` has files or a mapping of names to tensors. Overrides, like the options of
    commands, have the key ``inputs`` for files only, and ``input`` for tensors by name.
    """
    overrides = dict(options)
    if isinstance(overrides.get("inputs"), Mapping):
        overrides["input"] = overrides.pop("inputs")
    for name in ("inputs", "exclude", "checkpoints"):
        if isinstance(overrides.get(name), str | Path):
            overrides[name] = [overrides[name]]
    return Request(config, overrides, progress or silent, warn or silent)


def settings_of(
    model: Path,
    settings: Settings | None,
    config: FilePath | None,
    options: Mapping[str, object],
) -> Settings:
    """Return the settings of a call for a model.

    Settings files are searched in the model's folder and above if ``config`` or options are
    given. Without any settings, all have their defaults.

    Raises:
        SettingsError: settings are given as an object and in another form, or one is wrong.
    """
    if not options and config is None:
        return settings or Settings()
    if settings is not None:
        name = next(iter(options), "config")
        raise SettingsError(
            f"settings are given as an object and as {name}=", hint="give one of them"
        )
    return request_of(config, options).load(model)
