"""Runtime options that make a model need least memory, predicted or measured."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.check import Check
from memplan_cli.core.progress import silent
from memplan_cli.workflows.files.binding import (
    assumed_in,
    binding_alone,
    binding_of,
    refuse_run,
)
from memplan_cli.workflows.files.model_file import bind_whole, read_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.steer import Recommendation
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.model_file import ModelFile
    from memplan_cli.workflows.request import FilePath


def settings(
    model: FilePath,
    given: Settings,
    check: Check | None = None,
    progress: Progress | None = None,
) -> Recommendation:
    """Return the runtime options that make a model, as it is, need least memory.

    All words are those of `memplan_cli.runtime_settings`.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.recorded import recorded_settings
    from memplan_cli.runtime.candidates import as_recorded
    from memplan_cli.runtime.facts import best_settings, settings_as_written
    from memplan_cli.runtime.graph.offline import RUN_AS_WRITTEN
    from memplan_cli.runtime.measuring.measure import Trial

    model = Path(model)
    refuse_run(given, "--measure" if check else "")
    file = read_model(model)
    bound = bind_whole(file, binding_alone(given))
    recorded = recorded_settings(metadata_of(file.model))
    if recorded is not None and runs_as_written(recorded.settings):
        trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
        base = as_recorded(RUN_AS_WRITTEN, recorded.settings)
        found = settings_as_written(model, binding_of(bound), trial, recorded.provider, base)
        donated = replace(found.settings, io_binding=recorded.settings.io_binding)
        found = replace(found, settings=donated)
    elif check is not None and check.search == "foreseen":
        found = _confirmed(file, bound, check)
    else:
        trial = Trial(provider=check.provider, timeout=check.timeout) if check else None
        found = best_settings(model, binding_of(bound), trial, progress or silent)
    return replace(found, notes=(*found.notes, *assumed_in(bound), *_one_size(bound)))


def _one_size(bound: Settings) -> Iterator[str]:
    """Yield the line that says that other sizes may need other settings, and the option."""
    names = sorted(binding_of(bound).assumed)
    if names:
        options = bounds_options(names)
        yield f"these settings are for one size of requests; {options} finds those for a range"


def runs_as_written(settings: RuntimeSettings) -> bool:
    """Whether a file says of itself that optimisation must leave it as it stands."""
    return settings.session.get("graph_optimization_level") == "ORT_DISABLE_ALL"


def _confirmed(file: ModelFile, bound: Settings, check: Check) -> Recommendation:
    """Run the model under the defaults, and once under the settings foreseen on that run."""
    from memplan_cli.runtime.account import account_before, own_settings
    from memplan_cli.runtime.proofs.original import run_original
    from memplan_cli.workflows.files.assuming import settle_in_numbers

    binding = replace(binding_of(bound), assumed=frozenset())
    exact = Check(check.provider, timeout=check.timeout)
    program = settle_in_numbers(file.lazy, file.path, bound).loaded.program
    with tempfile.TemporaryDirectory(prefix="memplan-proof-") as name:
        folder = Path(name)
        original = run_original(file.path, file.model, exact, binding, folder)
        original = replace(original, binding=binding_of(bound))
        return own_settings(original, account_before(original), folder, program)
