"""``memplan settings``: the runtime options with which a model needs the least memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from memplan_cli.api.models.binding import (
    assumption_notes,
    binding_of,
    require_runs,
    sizes_and_inputs_only,
)
from memplan_cli.api.models.model_file import bind_all_dims, read_model
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import RUN_SETTINGS, accepts_option_names
from memplan_cli.api.request import settings_of
from memplan_cli.core.binding_options import bounds_options
from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import CPU, PROVIDERS, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.core.check import Check
    from memplan_cli.core.progress import Progress
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings
    from memplan_cli.runtime.settings_search.predicted import SettingsChoice
    from memplan_cli.runtime.simulate.predict import ExecutedGraph
    from memplan_cli.settings.settings import Settings

ProviderChoice = Literal["auto", "cpu", "cuda"]
"""A provider for which settings are predicted; ``auto`` is the CPU, so that no session is created."""

_NEVER_MEASURED = (
    "for CUDA, from ONNX Runtime's sources and never measured: the graph is the one before the device's own "
    "fusions, inputs are copied to the device, and each kernel allocates its outputs"
)


# ``measure=True`` stands for a ``check`` that confirms by a run, ``tune=True`` for a search by measuring.
@accepts_option_names(
    settings=RUN_SETTINGS, measure={"check": {}}, tune={"check": {"search": "measured"}}
)
def settings(
    model: ModelSource,
    given: Settings | None = None,
    check: Check | None = None,
    progress: Progress | None = None,
    *,
    provider: ProviderChoice = "auto",
    config: FilePath | None = None,
    **options: object,
) -> SettingsChoice:
    """Return the runtime options with which a model, unchanged, needs the least memory.

    Args:
        model: Its weights must exist, because ONNX Runtime loads it to find the graph it would run.
        given: Settings of memplan, not of ONNX Runtime. Only dims, shapes, inputs and ``run`` have
            an effect.
        check: Confirm by a run on its provider, or search by measuring; None predicts only.
        progress: Called with the name of each stage.
        provider: The provider of the predicted session; ``auto`` is the CPU, and ``cuda`` need not work
            here. Without effect with ``check``, which has a provider of its own.
        config: A settings file, in place of ``given``.
        options: Settings by name, in place of ``given``: ``dims={"batch": 8}``.

    Raises:
        MemplanError: the model does not load, or has no dim of a name.
    """
    from memplan_cli.onnx_io.metadata import metadata_of
    from memplan_cli.onnx_io.settings_metadata import recorded_settings
    from memplan_cli.runtime.settings_search.predicted import released_between_runs

    with model_paths(model) as files:
        given = settings_of(files.path, given, config, options)
        if check is not None:
            require_runs(given, "--measure")
        file = read_model(files.path)
        # The other settings decide a plan, and this model is not planned.
        bound_settings = bind_all_dims(file, sizes_and_inputs_only(given))
        # A file that memplan wrote contains settings. These are kept: no optimization, with it the memory pattern
        # (`_usual_settings`), ``run_config`` and ``io_binding``.
        recorded = recorded_settings(metadata_of(file.model))
        in_file = recorded.settings if recorded else RuntimeSettings()
        fixed = recorded if in_file.is_unoptimized else None  # None: it may be optimized
        # memplan records only the entry that releases the arena
        releases_arena = bool(in_file.run_config)
        if check is None:
            predicted_provider = PROVIDERS["cpu" if provider == "auto" else provider]
            choice = _predicted_choice(file, bound_settings, fixed, predicted_provider)
            if releases_arena:
                choice = released_between_runs(choice)
        else:
            # The arena of the measured session is released or kept between runs as in the file.
            check = replace(check, idle="release" if releases_arena else "keep")
            choice = _confirmed_choice(file, bound_settings, check, fixed, progress or silent)
        # No choice has bindings of its own.
        chosen = replace(choice.settings, io_binding=in_file.io_binding)
        notes = (*choice.notes, *_size_notes(bound_settings))
        return files.without_temporary_folder(replace(choice, settings=chosen, notes=notes))


def _size_notes(bound_settings: Settings) -> tuple[str, ...]:
    """Return the notes that dims are assumed, and that settings are for these dims only; empty if none are."""
    assumed = sorted(binding_of(bound_settings).assumed)
    if not assumed:
        return ()
    hint = f"{bounds_options(assumed)} finds those for a range"
    one_size = f"these settings are for one size of requests; {hint}"
    return (*assumption_notes(bound_settings), one_size)


def _predicted_choice(
    file: ModelFile, bound_settings: Settings, fixed: RecordedSettings | None, provider: str
) -> SettingsChoice:
    """Return the settings with the least predicted memory. The model is loaded on the CPU, and not run.

    Args:
        file: the model.
        bound_settings: the sizes and inputs of a run. Dims that the user gave no number have an assumed one.
        fixed: the settings in the file's metadata if its graph must run as it is. None: ONNX Runtime may
            optimize the graph.
        provider: ONNX Runtime's name of the execution provider; not used with ``fixed``, which has its own.
    """
    from memplan_cli.runtime.graph.offline import offline_program
    from memplan_cli.runtime.settings_search.predicted import (
        predict_settings,
        with_limit,
        without_pattern_if_assumed,
    )
    from memplan_cli.runtime.simulate.predict import ExecutedGraph

    binding = binding_of(bound_settings)
    if fixed is None:
        executed = _optimized_graph(file.path, binding.dims, provider)
    else:
        program = offline_program(file.path, binding.dims, fixed.provider)
        executed = ExecutedGraph(program, binding.dims, provider=fixed.provider)
    # With assumed dims, later runs may have other dims, at which a memory pattern wastes memory.
    base = without_pattern_if_assumed(_usual_settings(fixed), binding.assumed)
    choice = predict_settings(executed, base)
    if choice.provider == CPU:
        return choice  # no note: predictions for the CPU, unlike those for a device, were measured
    # Only the arena of a device may get a limit. Later runs with other assumed dims might exceed it.
    if not binding.assumed:
        choice = with_limit(choice, executed)
    return replace(choice, notes=(*choice.notes, _NEVER_MEASURED))


def _optimized_graph(path: Path, dims: Mapping[str, int], provider: str) -> ExecutedGraph:
    """Return the graph that ONNX Runtime makes of a model on the CPU, in place of that for ``provider``.

    For another provider than the CPU, the graph has only the optimizations that all providers share (the level
    "basic"): what a device fuses cannot be known without the device.
    """
    from memplan_cli.runtime.graph.dumps import executed_graph

    level = "ORT_ENABLE_ALL" if provider == CPU else "ORT_ENABLE_BASIC"
    settings = RuntimeSettings(session={"graph_optimization_level": level})
    return replace(executed_graph(path, settings, dims), provider=provider)


def _usual_settings(fixed: RecordedSettings | None) -> RuntimeSettings:
    """Return the settings of a usual session: ONNX Runtime's defaults, or the fixed ones of a file.

    With fixed settings, the graph is not optimized, and the memory pattern is off if the file records that.
    """
    from memplan_cli.runtime.run.baseline import DEFAULTS
    from memplan_cli.runtime.settings_search.predicted import without_pattern_if_recorded
    from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN

    if fixed is None:
        return DEFAULTS
    return without_pattern_if_recorded(RUN_AS_WRITTEN, fixed.settings)


def _confirmed_choice(
    file: ModelFile,
    bound_settings: Settings,
    check: Check,
    fixed: RecordedSettings | None,
    progress: Progress,
) -> SettingsChoice:
    """Return the settings with the least predicted memory that a run of the model confirms.

    The baseline is a run under the usual settings. `choose_settings` runs the model under the best predicted
    settings, and under the next ones until outputs are those of the baseline and runs are not far slower.
    ``fixed`` are the settings in a file whose graph must run as it is; None: ONNX Runtime may optimize the graph.
    """
    from memplan_cli.api.models.resolve_sizes import resolve_to_numbers
    from memplan_cli.runtime.graph.offline import offline_program
    from memplan_cli.runtime.run.baseline import BaselineRun
    from memplan_cli.runtime.settings_search.written_model import (
        WrittenModel,
        read_baseline_graph,
    )
    from memplan_cli.runtime.verification.verify import choose_settings

    path, binding, usual = file.path, binding_of(bound_settings), _usual_settings(fixed)
    # Assumed dims are those whose values the user did not give. For them a baseline would run at a second size too,
    # which only the comparison with a rewritten graph needs. `choose_settings` needs to know them: it turns
    # ``enable_mem_pattern`` off, because later runs may have other dims.
    without_assumed_dims = replace(binding, assumed=frozenset())
    with BaselineRun(path, file.model, check, without_assumed_dims, usual) as run:
        baseline = replace(run.result(), binding=binding)
        if fixed is None:
            program = resolve_to_numbers(file.lazy, path, bound_settings).loaded.program
            model = WrittenModel(path, program)
        else:
            # A graph that ONNX Runtime optimized may have operators whose shapes only ONNX Runtime knows.
            program = offline_program(path, binding.dims, baseline.provider)
            model = WrittenModel(
                path, program, optimized_offline=True, unoptimized_settings=usual
            )
        return choose_settings(baseline, read_baseline_graph(baseline), model, progress)
