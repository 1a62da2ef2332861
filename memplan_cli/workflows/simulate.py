"""Dynamic allocators simulated on the real shapes of a run, beside the static plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.request import FilePath


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
    model: FilePath,
    settings: Settings,
    allocators: Sequence[str],
    timeout: float = DEFAULT_TIMEOUT,
) -> AllocatorComparison:
    """Return what dynamic allocators need for one real run, beside the static plan.

    Of the settings, what binds dims and inputs counts. The run is given up after ``timeout``
    seconds.

    Raises:
        MemplanError: the model cannot be read or run.
    """
    from memplan_cli.core.bindings import Binding
    from memplan_cli.runtime.observed import observe
    from memplan_cli.runtime.run.spec import RunConditions
    from memplan_cli.runtime.simulate.allocators import AllocatorComparison
    from memplan_cli.runtime.simulate.allocators import simulate as simulated
    from memplan_cli.runtime.simulate.predict import Executed, needs_run
    from memplan_cli.runtime.workers.session import resolve_provider
    from memplan_cli.workflows.files.assuming import settle_in_numbers
    from memplan_cli.workflows.files.binding import assumed_in, binding_alone, refuse_run
    from memplan_cli.workflows.files.model_file import plan_settled, read_model

    path = Path(model)
    file = read_model(path)
    found = settle_in_numbers(file.lazy, path, binding_alone(settings))
    loaded, bound = found.loaded, found.settings
    dims, feeds = bound.dims, bound.inputs.feeds or {}
    executed = Executed(loaded.program, dims)
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
