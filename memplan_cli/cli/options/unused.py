"""Options given where nothing uses them: rejected, for one without effect is a trap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection


def given(names: Collection[str]) -> tuple[str, ...]:
    """Return the options of the running command that were given, of the parameters named."""
    context = click.get_current_context()
    return tuple(
        max(param.opts, key=len)
        for param in context.command.params
        if param.name in names
        and context.get_parameter_source(param.name)
        not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    )


def reject_unused(names: Collection[str], why: str, hint: str) -> None:
    """Refuse options of the running command that nothing would take up.

    Args:
        names: the parameters' names.
        why: follows the option's name: ``needs the models to be run``.
        hint: what to do.

    Raises:
        SettingsError: one of them was given.
    """
    for option in given(names):
        raise SettingsError(f"{option} {why}", hint=hint)
