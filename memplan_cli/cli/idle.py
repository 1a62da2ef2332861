"""Which options were given where nothing takes them up? One that does nothing is a trap."""

from __future__ import annotations

import click
from click.core import ParameterSource

from memplan_cli.errors import SettingsError


def is_given(name: str) -> bool:
    """Whether the running command's option was given, whatever its value."""
    source = click.get_current_context().get_parameter_source(name)
    return source not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)


def refuse_idle(names: tuple[str, ...], why: str, hint: str) -> None:
    """Refuse options of the running command that nothing would take up.

    Args:
        names: the parameters' names.
        why: follows the option's name: ``needs the models to be run``.
        hint: what to do.

    Raises:
        SettingsError: one of them was given.
    """
    for param in click.get_current_context().command.params:
        if param.name in names and is_given(param.name or ""):
            option = max(param.opts, key=len)
            raise SettingsError(f"{option} {why}", hint=hint)
