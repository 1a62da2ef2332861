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

from memplan_cli.core.results.observations import CPU, Difference
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.onnx_io.runs.runnable import random_ops
from memplan_cli.onnx_io.runs.seeding import seeded_twins
from memplan_cli.runtime.proofs.compare import require_weights
from memplan_cli.runtime.workers.bits import differences, widened
from memplan_cli.runtime.workers.session_job import SessionJob
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Collection

    from memplan_cli.core.bindings import Binding, FeedSpec
    from memplan_cli.core.results.observations import RuntimeSettings
    from memplan_cli.runtime.proofs.compare import Comparison
    from memplan_cli.runtime.workers.worker import Json

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
    original: Path, written: Path, pairs: Pairs, how: Comparison
) -> DonatedSteps:
    """Take two steps with each model and compare every output of both steps.

    Where the original draws random numbers, copies with the same seeds take the steps.

    Args:
        original: Runs as it is, new values fed back by hand.
        written: Runs with each pair bound to one buffer on the provider.
        pairs: Inputs, and the outputs that are written over them.
        how: Both models' settings, the tolerance, the inputs.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, an input cannot be
            bound, or the original does not run.
    """
    for path in (original, written):
        require_weights(path)
    whose = original, written
    if not random_ops(load_model(original)):
        return _steps(whose, whose, pairs, how)
    with tempfile.TemporaryDirectory(prefix="memplan-seeded-") as folder:
        twins = seeded_twins(original, written, Path(folder))
        return _steps(twins or whose, whose, pairs, how)


def _steps(
    models: tuple[Path, Path], whose: tuple[Path, Path], pairs: Pairs, how: Comparison
) -> DonatedSteps:
    """Take the steps with two models, which may be copies of two others."""
    original, written = models
    how = how.on_its_provider()
    provider, timeout, tolerance = how.check.provider, how.check.timeout, how.check.tolerance
    if how.specs is None:
        specs = step_specs(original, how.binding, pairs)
        how = dataclasses.replace(how, specs=specs)
    with tempfile.TemporaryDirectory(prefix="memplan-steps-") as folder:
        job = _job(original, how.original_settings, how, pairs)
        first = run_job(
            "donated",
            {**job, "way": "fed", "then": "save", "folder": folder},
            timeout=timeout,
            about=whose[0],
        ).require(f"{original} takes no two steps")
        if provider != CPU:
            again = {**job, "way": "fed", "then": "against", "folder": folder}
            found = run_job("donated", again, timeout=timeout, about=whose[0])
            noise = differences(found.result)
            tolerance = widened(tolerance, noise)
        job = _job(written, how.rewritten_settings, how, pairs)
        second = run_job(
            "donated",
            {
                **job,
                "way": "donated",
                "then": "against",
                "folder": folder,
                "tolerance": [tolerance.rtol, tolerance.atol],
            },
            timeout=timeout,
            about=whose[1],
        )
    return DonatedSteps(
        differences(second.result),
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


def _job(model: Path, settings: RuntimeSettings, how: Comparison, pairs: Pairs) -> Json:
    assert how.specs is not None  # noqa: S101 - both callers fill it in
    session = SessionJob(model, how.check.provider, how.specs, settings).exact()
    tolerance = [how.check.rtol, how.check.atol]
    return {"session": to_json(session), "pairs": to_json(pairs), "tolerance": tolerance}
