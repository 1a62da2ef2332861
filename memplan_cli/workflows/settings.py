"""Runtime options that make a model need least memory, predicted or measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.files.binding import assumed_in, binding_of, refuse_run
from memplan_cli.workflows.files.model_file import bind_whole, read_model

if TYPE_CHECKING:
    from memplan_cli.runtime.steer import Recommendation
    from memplan_cli.workflows.compare import Check
    from memplan_cli.workflows.request import FilePath


def settings(model: FilePath, given: Settings, check: Check | None = None) -> Recommendation:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        given: What binds dims and inputs in it counts.
        check: Measure on its provider; None predicts only.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.runtime.facts import best_settings
    from memplan_cli.runtime.measuring.measure import Trial

    model = Path(model)
    refuse_run(given, "--measure" if check else "")
    file = read_model(model)
    trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
    own = Settings(dims=given.dims, shapes=given.shapes, inputs=given.inputs, run=given.run)
    bound = bind_whole(file, own)
    found = best_settings(model, binding_of(bound), trial)
    return replace(found, notes=(*found.notes, *assumed_in(bound)))
