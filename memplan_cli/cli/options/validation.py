"""How far a written model is proved, and how its settings are found."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal

import click

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from memplan_cli.api import Check
    from memplan_cli.cli.common import Command

COST = (
    "--tune runs the models under many settings, some twenty processes instead of two or three"
)


@dataclass(frozen=True, slots=True)
class Validation:
    """What was asked for.

    Attributes:
        depth: what is looked at; None where nothing is run.
        search: how settings are found.
    """

    depth: Literal["outputs", "full"] | None
    search: Literal["foreseen", "measured"]

    def check(self, provider: str, timeout: float) -> Check | None:
        """Return how models are proved; None where they are not."""
        from memplan_cli.api import Check

        if self.depth is None:
            return None
        return Check(provider, timeout=timeout, depth=self.depth, search=self.search)


_DEPTHS: dict[str, Literal["outputs", "full"] | None] = {
    "outputs": "outputs",
    "full": "full",
    "none": None,
}


def validation_options(command: Command) -> Command:
    """Add ``--validate``, ``--no-validate`` and ``--tune``, as ``validation``."""

    @wraps(command)
    def run(
        *args: object, validate: str | None, no_validate: bool, tune: bool, **options: object
    ) -> Any:  # noqa: ANN401 - as the command
        return command(*args, validation=_chosen(validate, no_validate, tune), **options)

    for option in (tune_option, _no_validate, _validate):
        run = option(run)
    return run  # type: ignore[return-value]


_validate = click.option(
    "--validate",
    type=click.Choice(list(_DEPTHS)),
    help="Run both models: compare outputs, or their memory too.  [default: full]",
)

_no_validate = click.option(
    "--no-validate", is_flag=True, help="Run nothing: the same as --validate none."
)

tune_option = click.option(
    "--tune", is_flag=True, help="Search settings by measuring many; takes much longer."
)


def _chosen(validate: str | None, no_validate: bool, tune: bool) -> Validation:  # noqa: FBT001 - as click gives them
    """Return what three options say together.

    Raises:
        SettingsError: one contradicts another.
    """
    if no_validate and validate not in (None, "none"):
        raise SettingsError(
            f"--no-validate and --validate {validate} contradict each other",
            hint="leave one out",
        )
    depth = _DEPTHS["none" if no_validate else validate or "full"]
    if tune and depth != "full":
        raise SettingsError(
            "--tune measures both models' memory",
            hint="leave --no-validate and --validate out",
        )
    return Validation(depth, "measured" if tune else "foreseen")
