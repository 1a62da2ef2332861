"""Two steps in which each new value is written over the old one, compared bit for bit.

The original takes two steps with buffers of its own for everything; the written model takes
two with each donated pair bound to one buffer, as its settings tell the user to do. The
second step reads what the first has written, so an output that was written while somebody
still read the input shows in the first step, and one that came out wrong in the second.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, UNOPTIMISED, Difference
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.prepared_models import random_ops, seeded_twins
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.run.compare import widened
from memplan_cli.runtime.run.run_model import differences_in, require_weights
from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN
from memplan_cli.runtime.workers.session import resolve_provider
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.core.check import Check
    from memplan_cli.core.results.observations import RuntimeSettings

Pairs = tuple[tuple[str, str], ...]
"""``(input, output)``, by name."""

STATE_SCALE = 0.05
"""Of drawn parameters: with larger ones a second step soon is infinite."""

RATE_SCALE = 0.01
"""Of a drawn number that is alone in its tensor, such as a learning rate."""


@dataclass(frozen=True, slots=True)
class DonatedSteps:
    """What became of two steps with shared buffers."""

    differences: tuple[Difference, ...] = ()
    """Outputs that are not those of two steps without, as ``name@step``."""
    failure: str = ""
    """Why the written model did not run; empty if it did."""
    not_finite: tuple[str, ...] = ()
    """Outputs of the original with infinities or NaN: they show little."""

    @property
    def passed(self) -> bool:
        """Whether every output of both steps is what it should be."""
        return not self.failure and not any(item.beyond for item in self.differences)


def donated_steps(
    models: tuple[Path, Path],
    pairs: Pairs,
    check: Check,
    binding: Binding,
    original_settings: RuntimeSettings = UNOPTIMISED,
) -> DonatedSteps:
    """Take two steps with each model and compare every output of both steps.

    Where the original draws random numbers, copies with the same seeds take the steps.

    Args:
        models: the original, which runs with new values fed back, and the written model, which
            runs with each pair bound to one buffer.
        pairs: inputs, and the outputs that are written over them.
        check: where both run, and what counts as equal.
        binding: numbers for dims, and inputs that were given.
        original_settings: of the original's session.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, an input cannot be
            bound, or the original does not run.
    """
    for path in models:
        require_weights(path)
    original, written = models
    check = dataclasses.replace(check, provider=resolve_provider(check.provider))
    inputs = InputSet(step_specs(original, binding, pairs))
    with tempfile.TemporaryDirectory(prefix="memplan-steps-") as name:
        folder = Path(name)
        (folder / "steps").mkdir()
        run = models
        if random_ops(load_model(original)):
            run = seeded_twins(original, written, folder) or models
        sessions = tuple(
            SessionSpec(path, check.provider, settings).deterministic()
            for path, settings in zip(run, (original_settings, RUN_AS_WRITTEN), strict=True)
        )
        job = {
            "inputs": to_json(inputs),
            "pairs": to_json(pairs),
            "tolerance": [check.rtol, check.atol],
            "folder": str(folder / "steps"),
        }
        fed = {**job, "session": to_json(sessions[0]), "way": "fed"}
        first = run_job(
            "donated", {**fed, "then": "save"}, timeout=check.timeout, about=original
        ).require(f"{run[0]} takes no two steps")
        tolerance = check.tolerance
        if check.provider != CPU:
            again = run_job(
                "donated", {**fed, "then": "against"}, timeout=check.timeout, about=original
            )
            tolerance = widened(tolerance, differences_in(again.result))
        donated = {**job, "session": to_json(sessions[1]), "way": "donated", "then": "against"}
        second = run_job(
            "donated",
            {**donated, "tolerance": [tolerance.rtol, tolerance.atol]},
            timeout=check.timeout,
            about=written,
        )
    return DonatedSteps(
        differences_in(second.result),
        second.reason,
        tuple(first["not_finite"]),  # type: ignore[arg-type]
    )


def step_specs(model: Path, binding: Binding, pairs: Pairs) -> tuple[FeedSpec, ...]:
    """Say how to draw the inputs of a step so that the one after it is finite too."""
    state = {given for given, _ in pairs}
    return tuple(
        _scaled(spec, state)
        for spec in feed_specs(load_model(model), binding.dims, binding.feeds)
    )


def _scaled(spec: FeedSpec, state: Collection[str]) -> FeedSpec:
    alone = all(dim == 1 for dim in spec.shape)
    if spec.kind == "mask" and alone:
        # A number of steps: what is divided by 1 - beta ** 0 is no number.
        return dataclasses.replace(spec, kind="values", values=(1,))
    if spec.kind not in ("normal", "positive"):
        return spec
    if spec.name in state:
        return dataclasses.replace(spec, scale=STATE_SCALE)
    return dataclasses.replace(spec, scale=RATE_SCALE) if alone else spec
