"""``memplan simulate``: dynamic allocators on the real shapes of a run, beside the static plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.api.models.binding import (
    assumption_notes,
    require_runs,
    sizes_and_inputs_only,
)
from memplan_cli.api.models.model_file import plan_resolved, read_model
from memplan_cli.api.models.sources import model_paths
from memplan_cli.api.option_names import RUN_SETTINGS, accepts_option_names
from memplan_cli.api.request import settings_of
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.api.models.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.settings.settings import Settings


@accepts_option_names(settings=RUN_SETTINGS)
def simulate(
    model: ModelSource,
    settings: Settings | None = None,
    allocators: Sequence[str] | str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    *,
    config: FilePath | None = None,
    **options: object,
) -> AllocatorComparison:
    """Return what dynamic allocators need for one execution of a model, beside the static plan.

    The execution is simulated, with a number for each dim. The model is run only if data decides sizes.

    Args:
        model: A model, as a file or in memory.
        settings: Only dims, shapes, inputs and ``run`` have an effect; the static plan is the default one.
        allocators: The names of allocators; None: all.
        timeout: Seconds for the run.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``.

    Raises:
        MemplanError: the model cannot be read or run, or there is no such allocator.
    """
    from memplan_cli.api.models.resolve_sizes import resolve_to_numbers
    from memplan_cli.core.bindings import Binding
    from memplan_cli.runtime.run.observe import observe
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.runtime.simulate.allocators import simulate as simulate_allocator
    from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_observation
    from memplan_cli.runtime.workers.session import resolve_provider
    from memplan_cli.runtime.workers.spec import RunConditions

    names = _known_allocators(allocators)
    with model_paths(model) as files:
        path = files.path
        settings = settings_of(path, settings, config, options)
        file = read_model(path)
        resolved = resolve_to_numbers(file.lazy, path, sizes_and_inputs_only(settings))
        loaded, bound_settings = resolved.loaded, resolved.settings
        executed = ExecutedGraph(loaded.program, bound_settings.dims)
        if needs_observation(executed):
            require_runs(settings, "simulating what data decides")
            binding = Binding(bound_settings.dims, bound_settings.inputs.feeds or {})
            # The run is made for its sizes only, which are the same on every provider.
            conditions = RunConditions(resolve_provider("auto"), binding, timeout)
            observed = observe(path, loaded.program, conditions)
            executed = replace(executed, observed=observed)
        simulations = tuple(simulate_allocator(executed, name) for name in names)
        planned = plan_resolved(file, resolved).plan.report.memory.planned
        notes = (*loaded.warnings, *assumption_notes(bound_settings))
        return files.without_temporary_folder(AllocatorComparison(planned, simulations, notes))


def _known_allocators(names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return allocator names, each once; all allocators if no names are given.

    Raises:
        SettingsError: there is no allocator of a name.
    """
    from memplan_cli.runtime.simulate.allocators import ALLOCATORS, RUNTIME

    known = (*ALLOCATORS, RUNTIME)
    names = (names,) if isinstance(names, str) else names
    wrong = next((name for name in names or () if name not in known), None)
    if wrong is not None:
        raise SettingsError(
            f"there is no allocator {wrong!r}", hint=f"the allocators are {', '.join(known)}"
        )
    return tuple(dict.fromkeys(names or known))
