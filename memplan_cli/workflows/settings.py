"""Runtime options that make a model need least memory, predicted or measured."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.files.binding import bind, binding_of
from memplan_cli.workflows.files.model_file import load_program, read_model

if TYPE_CHECKING:
    from memplan_cli.runtime.steer import Recommendation
    from memplan_cli.workflows.compare import Check
    from memplan_cli.workflows.files.model_file import ModelFile
    from memplan_cli.workflows.request import FilePath


def settings(model: FilePath, given: Settings, check: Check | None = None) -> Recommendation:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        given: What binds dims and inputs in it counts.
        check: Confirm by a run on its provider, or search by measuring; None predicts only.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.runtime.facts import best_settings
    from memplan_cli.runtime.measuring.measure import Trial

    model = Path(model)
    file = read_model(model)
    bound = bind(
        file.model, Settings(dims=given.dims, shapes=given.shapes, inputs=given.inputs)
    )
    if check is not None and check.search == "foreseen":
        return _confirmed(file, bound, check)
    trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
    return best_settings(model, binding_of(bound), trial)


def _confirmed(file: ModelFile, bound: Settings, check: Check) -> Recommendation:
    """Run the model under the defaults, and once under the settings foreseen on that run."""
    from memplan_cli.onnx_io.runs.feeds import default_dims
    from memplan_cli.runtime.account import account_before, own_settings
    from memplan_cli.runtime.proofs.original import Asked, run_original

    binding = binding_of(bound)
    dims = {**default_dims(file.model), **binding.dims}
    asked = Asked(check.provider, binding.dims, binding.feeds, check.timeout, dims_tried="one")
    program = load_program(file.lazy, file.path, bound).program
    with tempfile.TemporaryDirectory(prefix="memplan-proof-") as name:
        folder = Path(name)
        original = run_original(file.path, file.model, asked, dims, folder)
        return own_settings(original, account_before(original), folder, program)
