"""Dynamic allocators simulated on the real shapes of a run, beside the static plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.api.files.sources import on_files
from memplan_cli.api.request import settings_of
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from memplan_cli.api.files.sources import ModelSource
    from memplan_cli.api.request import FilePath
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.settings.settings import Settings


def checked_allocators(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the allocators to simulate, each once; all of them where none are named.

    Raises:
        SettingsError: there is none of a name.
    """
    from memplan_cli.runtime.simulate.allocators import ALLOCATORS, RUNTIME

    known = (*ALLOCATORS, RUNTIME)
    wrong = next((name for name in names or () if name not in known), None)
    if wrong is not None:
        raise SettingsError(
            f"there is no allocator {wrong!r}", hint=f"the allocators are {', '.join(known)}"
        )
    return tuple(dict.fromkeys(names or known))


def simulate(
    model: ModelSource,
    settings: Settings | None = None,
    allocators: Sequence[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    *,
    config: FilePath | None = None,
    **options: object,
) -> AllocatorComparison:
    """Return what dynamic allocators need for one real run, beside the static plan.

    Args:
        model: A model, as a file or in memory.
        settings: What binds dims and inputs in it counts.
        allocators: Which; None: all.
        timeout: Seconds after which the run is given up.
        config: A settings file, in place of ``settings``.
        options: Settings by name, in place of ``settings``.

    Raises:
        MemplanError: the model cannot be read or run, or there is no such allocator.
    """
    wanted = checked_allocators(allocators)

    def work(path: Path) -> AllocatorComparison:
        return _simulate(path, settings_of(path, settings, config, options), wanted, timeout)

    return on_files((model,), work)


def _simulate(
    path: Path, settings: Settings, allocators: Sequence[str], timeout: float
) -> AllocatorComparison:
    from memplan_cli.api.files.assuming import settle_in_numbers
    from memplan_cli.api.files.binding import assumed_in, binding_alone, refuse_run
    from memplan_cli.api.files.model_file import plan_settled, read_model
    from memplan_cli.core.bindings import Binding
    from memplan_cli.runtime.run.observe import observe
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.runtime.simulate.allocators import simulate as simulated
    from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_run
    from memplan_cli.runtime.workers.session import resolve_provider
    from memplan_cli.runtime.workers.spec import RunConditions

    file = read_model(path)
    found = settle_in_numbers(file.lazy, path, binding_alone(settings))
    loaded, bound = found.loaded, found.settings
    dims, feeds = bound.dims, bound.inputs.feeds or {}
    executed = ExecutedGraph(loaded.program, dims)
    if needs_run(executed):
        refuse_run(settings, "simulating what data decides")
        provider = resolve_provider("auto")
        conditions = RunConditions(provider, Binding(dims, feeds), timeout)
        seen = observe(path, loaded.program, conditions)
        executed = replace(executed, observed=seen)
    simulations = tuple(simulated(executed, name) for name in allocators)
    plan = plan_settled(file, found).plan
    notes = (*loaded.warnings, *assumed_in(bound))
    return AllocatorComparison(plan.report.memory.planned, simulations, notes)
