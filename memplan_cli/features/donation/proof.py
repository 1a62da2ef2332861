"""Comparison of two training steps with and without donated buffers, bit for bit.

The original takes two steps with separate buffers, and new values are fed back as inputs. The
written model takes two steps with one buffer per donated pair, as its settings tell the user to
do. The second step reads what the first has written: a value that is overwritten too early
shows in the first step, a new value that is wrong in the second.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.results.observations import CPU, UNOPTIMIZED, Difference, RuntimeSettings
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
    from memplan_cli.core.check import Check, Tolerance
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.observations import Validation
    from memplan_cli.core.results.report import RuntimeSummary
    from memplan_cli.runtime.workers.worker import Outcome

_STEPS_JOB = "memplan_cli.features.donation.proof_job:run"

Pairs = tuple[tuple[str, str], ...]
"""Names of graph inputs and of the outputs that are written over them."""

STATE_SCALE = 0.05
"""Scale of random parameters. With larger ones, the second step overflows in many models."""

RATE_SCALE = 0.01
"""Scale of a random tensor with one element, such as a learning rate."""


@dataclass(frozen=True, slots=True)
class DonatedSteps:
    """The comparison of two steps with donated buffers and two steps without.

    Attributes:
        differences: Outputs that differ, as ``name@step``.
        failure: Why the written model did not run; empty if it did.
        not_finite: Outputs of the original with infinities or NaN, whose comparison shows
            little.
    """

    differences: tuple[Difference, ...] = ()
    failure: str = ""
    not_finite: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether both steps ran and no output differs by more than the tolerance."""
        return not self.failure and not any(item.beyond for item in self.differences)


def donated_steps(
    models: tuple[Path, Path],
    pairs: Pairs,
    check: Check,
    binding: Binding,
) -> DonatedSteps:
    """Run two steps of each model, and compare every output of both steps.

    If the original has random ops, copies of both models with equal seeds run.

    Args:
        models: the original, and the written model.
        pairs: inputs, and the outputs that are written over them.
        check: the provider, the tolerance, and whether the original runs without optimization.
        binding: numbers of dims, and inputs of the user.

    Raises:
        RuntimeUnavailableError: weights or the provider are missing, an input cannot be
            bound, or the original does not run.
    """
    for path in models:
        require_weights(path)
    provider = resolve_provider(check.provider)
    inputs = InputSet(step_specs(models[0], binding, pairs))
    with tempfile.TemporaryDirectory(prefix="memplan-steps-") as name:
        folder = Path(name)
        (folder / "steps").mkdir()
        original, written = _seeded(models, folder)
        settings = UNOPTIMIZED if check.reference == "unoptimized" else RuntimeSettings()
        original_session = SessionSpec(original, provider, settings).deterministic()
        written_session = SessionSpec(written, provider, RUN_AS_WRITTEN).deterministic()
        job = {
            "inputs": to_json(inputs),
            "pairs": to_json(pairs),
            "folder": str(folder / "steps"),
        }
        original_job = {**job, "session": to_json(original_session), "buffers": "separate"}
        written_job = {**job, "session": to_json(written_session), "buffers": "donated"}
        baseline = _run_steps(original_job, "save", check.tolerance, check.timeout).require(
            f"{original} takes no two steps"
        )
        tolerance = check.tolerance
        if provider != CPU:
            # Two runs of the original may differ there: these differences are tolerated.
            repetition = _run_steps(original_job, "compare", tolerance, check.timeout)
            tolerance = widened(tolerance, differences_in(repetition.result))
        outcome = _run_steps(written_job, "compare", tolerance, check.timeout)
    return DonatedSteps(
        differences_in(outcome.result),
        outcome.reason,
        tuple(baseline["not_finite"]),
    )


def _seeded(models: tuple[Path, Path], folder: Path) -> tuple[Path, Path]:
    """Return copies of two models in a folder, with equal seeds, if they have random ops.

    Without random ops, or if both models differ in them so that no seeds can be paired, these are
    the models themselves.
    """
    if not random_ops(load_model(models[0])):
        return models
    return seeded_twins(*models, folder) or models


def _run_steps(job: Json, task: str, tolerance: Tolerance, timeout: float) -> Outcome:
    """Run the steps of a job in a worker process; ``task`` is to ``save`` or ``compare`` outputs."""
    limits = [tolerance.rtol, tolerance.atol]
    return run_job(_STEPS_JOB, {**job, "task": task, "tolerance": limits}, timeout=timeout)


def with_donated_steps(verdict: Validation, steps: DonatedSteps) -> Validation:
    """Add the result of two steps with donated buffers to the verdict on one run of the outputs.

    ``status`` and ``max_abs_diff`` stay those of the one run. `Validation.passed` needs ``donated`` too.
    """
    notes = []
    if steps.failure:
        notes.append(f"two steps with donated buffers fail: {steps.failure}")
    if steps.not_finite:
        notes.append(
            f"{len(steps.not_finite)} outputs of the original are not finite in two steps, "
            f"which shows little: {steps.not_finite[0]}"
        )
    return dataclasses.replace(
        verdict,
        donated="passed" if steps.passed else "failed",
        bit_identical=bool(verdict.bit_identical) and steps.passed and not steps.differences,
        differences=(*verdict.differences, *steps.differences),
        notes=(*verdict.notes, *notes),
    )


def with_donated_buffers(facts: RuntimeSummary, pairs: Pairs) -> RuntimeSummary:
    """Return facts whose settings bind each donated output to the buffer of its input.

    Without pairs, or without settings to extend, these are the facts themselves.
    """
    if not pairs or facts.settings is None:
        return facts
    io_binding = {output: input_ for input_, output in pairs}
    settings = dataclasses.replace(facts.settings, io_binding=io_binding)
    return dataclasses.replace(facts, settings=settings)


def step_specs(model: Path, binding: Binding, pairs: Pairs) -> tuple[FeedSpec, ...]:
    """Return how to draw the inputs of a training step so that two steps stay finite."""
    state = {input_name for input_name, _ in pairs}
    specs = feed_specs(load_model(model), binding.dims, binding.feeds)
    return tuple(_scaled(spec, state) for spec in specs)


def _scaled(spec: FeedSpec, state: Collection[str]) -> FeedSpec:
    """Return a spec whose values are small enough for two steps to stay finite.

    - A single integer is a step counter, and becomes 1.
    - Random floats are scaled by `STATE_SCALE` if the step replaces the input, such as a parameter:
      ``state`` has the names of these inputs.
    - Another single random float is a rate, and is scaled by `RATE_SCALE`.
    - Other inputs are drawn as they are.
    """
    has_one_element = all(dim == 1 for dim in spec.shape)
    if spec.kind in ("normal", "positive"):  # random floats
        if spec.name in state:
            return dataclasses.replace(spec, scale=STATE_SCALE)
        return dataclasses.replace(spec, scale=RATE_SCALE) if has_one_element else spec
    # Integers that no op restricts are drawn as a mask, of 0 and 1. Of a step counter of 0, Adam's bias
    # correction 1 / (1 - beta ** 0) is infinite.
    if spec.kind == "mask" and has_one_element:
        return dataclasses.replace(spec, kind="values", values=(1,))
    return spec
