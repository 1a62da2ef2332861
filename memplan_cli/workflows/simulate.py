"""What would a dynamic allocator do, on the real shapes of a run?"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import DEFAULT_TIMEOUT
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from memplan_cli.runtime.simulation.dynamic import Simulated


def simulate_model(
    path: Path,
    dims: Mapping[str, int],
    allocators: Sequence[str],
    timeout: float = DEFAULT_TIMEOUT,
) -> Simulated:
    """Run a model once, then let each allocator serve that run's requests.

    The run is given up after ``timeout`` seconds.

    Raises:
        MemplanError: the model cannot be read or run.
    """
    from memplan_cli.runtime.measuring.measure import Trial
    from memplan_cli.runtime.measuring.observed import observe
    from memplan_cli.runtime.simulation.dynamic import Simulated, simulate
    from memplan_cli.runtime.simulation.predict import Executed, needs_run
    from memplan_cli.runtime.workers.session import resolve_provider
    from memplan_cli.shapes.bindings import Bindings
    from memplan_cli.workflows.files.model_file import plan_model, read_model
    from memplan_cli.workflows.files.reading import read_observed

    file = read_model(path)
    loaded = read_observed(file.model, path, Bindings(dims, {}))
    executed = Executed(loaded.program, dims)
    if needs_run(executed):
        provider = resolve_provider("auto")
        trial = Trial(provider=provider, dims=dims, timeout=timeout)
        seen = observe(path, loaded.program, trial, provider)
        executed = replace(executed, observed=seen)
    found = tuple(simulate(executed, name) for name in allocators)
    settings = Settings(dims=dims, profile_shapes=True)
    plan = plan_model(file, settings).plan
    return Simulated(plan.report.memory.planned, found, loaded.warnings)
