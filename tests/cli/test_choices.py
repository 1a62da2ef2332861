"""Options whose choices stand in the code, so that help needs no renderer, have all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from memplan_cli.api.schema import SCHEMA_NAMES
from memplan_cli.cli import main
from memplan_cli.features.training.losses import LOSSES
from memplan_cli.features.training.optimizers import OPTIMIZERS
from memplan_cli.reporting.commands import (
    diff,
    doctor,
    fit,
    gate_report,
    settings,
    simulate,
    sweep,
    validate,
    why,
)
from memplan_cli.reporting.formats import FORMATS
from memplan_cli.runtime.simulate.allocators import ALLOCATORS, RUNTIME

if TYPE_CHECKING:
    from collections.abc import Iterable


def choices(command: str, option: str) -> set[str]:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    (kind,) = (param.type for param in found.params if param.name == option)
    assert isinstance(kind, click.Choice)
    return set(kind.choices)


@pytest.mark.parametrize(
    ("command", "table"),
    [
        ("report", FORMATS),
        ("gate", gate_report.RENDERERS),
        ("diff", diff.RENDERERS),
        ("why", why.PEAK_RENDERERS),
        ("why", why.TENSOR_RENDERERS),
        ("sweep", sweep.SWEEP),
        ("fit", fit.FIT),
        ("settings", settings.SETTINGS),
        ("simulate", simulate.SIMULATE),
        ("validate", validate.VALIDATE),
        ("doctor", doctor.DOCTOR),
    ],
)
def test_every_format_that_there_is_can_be_asked_for(
    command: str, table: Iterable[str]
) -> None:
    assert choices(command, "form") == set(table)


def test_every_loss_and_update_rule_can_be_asked_for() -> None:
    assert choices("train-step", "loss_fn") == set(LOSSES)
    assert choices("train-step", "optimizer") == set(OPTIMIZERS)


def test_help_of_schema_lists_every_schema() -> None:
    command = main.get_command(click.Context(main), "schema")
    assert command is not None
    assert set(SCHEMA_NAMES) <= set(
        str(command.help).replace(",", " ").replace(";", " ").split()
    )


def test_every_allocator_can_be_simulated() -> None:
    assert choices("simulate", "allocators") == {*ALLOCATORS, RUNTIME}
