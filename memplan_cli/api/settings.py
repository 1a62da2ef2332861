"""Runtime options that make a model need least memory, predicted or measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.api.files.binding import (
    assumed_in,
    binding_alone,
    binding_of,
    refuse_run,
)
from memplan_cli.api.files.model_file import bind_whole, read_model
from memplan_cli.api.files.sources import on_files
from memplan_cli.api.request import settings_of
from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.progress import silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings
    from memplan_cli.runtime.settings_search.choice import SettingsChoice
    from memplan_cli.settings.settings import Settings


def settings(
    model: ModelSource,
    given: Settings | None = None,
    check: Check | None = None,
    progress: Progress | None = None,
    *,
    config: FilePath | None = None,
    **options: object,
) -> SettingsChoice:
    """Return the runtime options that make a model, as it is, need least memory.

    Args:
        model: Its weights must be there: the runtime loads it to tell what it would run.
        given: What binds dims and inputs in it counts.
        check: Confirm by a run on its provider, or search by measuring; None predicts only.
        progress: Called with the name of each stage.
        config: A settings file, in place of ``given``.
        options: Settings by name, in place of ``given``: ``dims={"batch": 8}``.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """

    def work(path: Path) -> SettingsChoice:
        return _settings(path, settings_of(path, given, config, options), check, progress)

    return on_files((model,), work)


def _settings(
    path: Path, given: Settings, check: Check | None, progress: Progress | None
) -> SettingsChoice:
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings

    refuse_run(given, "--measure" if check else "")
    file = read_model(path)
    bound = bind_whole(file, binding_alone(given))
    recorded = recorded_settings(metadata_of(file.model))
    if recorded is not None and not runs_as_written(recorded.settings):
        recorded = None
    if check is None:
        found = _predicted(file, bound, recorded)
    else:
        found = _confirmed(file, bound, check, recorded, progress or silent)
    if recorded is not None:
        bindings = replace(found.settings, io_binding=recorded.settings.io_binding)
        found = replace(found, settings=bindings)
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


def _predicted(
    file: ModelFile, bound: Settings, recorded: RecordedSettings | None
) -> SettingsChoice:
    """Return the best settings by prediction; those of a file that runs as it stands keep that."""
    from memplan_cli.runtime.graph.dumps import executed_graph
    from memplan_cli.runtime.graph.offline import offline_program
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.settings_search.predicted import (
        predict_settings,
        settings_as_recorded,
        settings_for_sizes,
    )
    from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN, ExecutedGraph

    binding, path = binding_of(bound), file.path
    if recorded is None:
        executed, base = executed_graph(path, DEFAULTS, binding.dims), DEFAULTS
    else:
        program = offline_program(path, binding.dims, recorded.provider)
        executed = ExecutedGraph(program, binding.dims, provider=recorded.provider)
        base = settings_as_recorded(RUN_AS_WRITTEN, recorded.settings)
    return predict_settings(executed, settings_for_sizes(base, binding.assumed))


def _confirmed(
    file: ModelFile,
    bound: Settings,
    check: Check,
    recorded: RecordedSettings | None,
    progress: Progress,
) -> SettingsChoice:
    """Run the model under its usual settings, and under those that are found to be best."""
    from memplan_cli.api.files.assuming import settle_in_numbers
    from memplan_cli.runtime.graph.offline import offline_program
    from memplan_cli.runtime.run.baseline import DEFAULTS, BaselineRun
    from memplan_cli.runtime.settings_search.predicted import settings_as_recorded
    from memplan_cli.runtime.settings_search.written_model import (
        WrittenModel,
        read_baseline_graph,
    )
    from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN
    from memplan_cli.runtime.verification.verify import confirm_settings

    # Settings for one size are confirmed at that size alone.
    binding = replace(binding_of(bound), assumed=frozenset())
    base = DEFAULTS
    if recorded is not None:
        base = settings_as_recorded(RUN_AS_WRITTEN, recorded.settings)
    with BaselineRun(file.path, file.model, check, binding, base) as run:
        baseline = replace(run.result(), binding=binding_of(bound))
        if recorded is None:
            program = settle_in_numbers(file.lazy, file.path, bound).loaded.program
            model = WrittenModel(file.path, program)
        else:
            program = offline_program(file.path, binding.dims, baseline.provider)
            model = WrittenModel(file.path, program, as_written=True, offline=True, base=base)
        return confirm_settings(baseline, read_baseline_graph(baseline), model, progress)
