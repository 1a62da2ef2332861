"""Job: run a decode loop, prefill and steps, and save or compare the outputs of each step."""

from __future__ import annotations

import dataclasses
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.core.check import Tolerance
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.rewrites import CacheSummary, step_dims
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.interface import (
    fed_inputs,
    free_dims,
    names_taken,
    tensor_dims,
)
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import Feeder
from memplan_cli.onnx_io.types import tensor_type
from memplan_cli.runtime.decoding import Decoder
from memplan_cli.runtime.workers.inputs import draw_all
from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.outputs import compare_with_saved, save_values
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.observations import Difference

_MAX_RULES = 400
"""How many assignments of rules to dims are tried."""

_TRIAL_STEPS: tuple[tuple[int, int], ...] = ((3, 2), (3, 1), (2, 1))
"""Past and new entries of the steps that are tried, to find the rules of the dims."""

_START_SEED = 99
"""The seed of the cache entries with which a loop begins that cannot begin with empty caches."""

Rules = dict[str, str]
"""How the value of each dim follows from past and new entries: a key of `STEP_NUMBERS`."""


def run(job: Json) -> Json:
    """Job: run the decode loop of the original or of the written model.

    The original's outputs, and its caches after the last step, are saved. Those of the written
    model are compared with them.

    Args:
        job: ``role``: ``original`` or ``written``; ``session``: of the model; ``inputs``: input
            values of the user; ``caches``: the `CacheSummary`; ``dims``: values of dims;
            ``lengths``: new entries of each step; ``folder``: for the outputs; ``tolerance``:
            ``[rtol, atol]``. The written model also needs ``original``, the original's file, and
            its ``rules`` and ``start``.

    Returns:
        ``differences`` of outputs, named ``name@step``, and of caches. Of the original, also what
        `_OriginalLoop.observations` returns.
    """
    spec = SessionSpec.of_job(job)
    is_original = job["role"] == "original"
    loop = _OriginalLoop(spec, job) if is_original else _WrittenLoop(spec, job)
    tolerance = Tolerance(*map(float, job["tolerance"]))
    differences: list[Difference] = []

    def save_or_compare(folder: Path, values: Mapping[str, Any], step: str = "") -> None:
        """Save the original's outputs, or add the differences of the written model's to the list."""
        names, arrays = list(values), list(values.values())
        if is_original:
            folder.mkdir(exist_ok=True)
            save_values(folder, names, names, arrays)
            return
        for difference in compare_with_saved(folder, names, names, arrays, tolerance):
            name = f"{difference.output}{step}"
            differences.append(dataclasses.replace(difference, output=name))

    folder = Path(job["folder"])
    for index, new_entries in enumerate(loop.step_lengths()):
        outputs = loop.step(loop.feed(new_entries, index))
        save_or_compare(folder / f"{index}", outputs, f"@{index + 1}")
    save_or_compare(folder / "caches", loop.cache_entries())
    return {"differences": to_json(differences), **loop.observations()}


class _OriginalLoop:
    """The decode loop of the original: the outputs of its growing caches are fed back.

    Attributes:
        requested_lengths: new entries of each step, from the job.
        rules: how the value of each dim follows from past and new entries; found by `step_lengths`.
        state: the caches after the last step, by input name.
        position: valid entries of the growing caches; `step_lengths` sets those of the start, and
            each step adds its own.
        shapes_of_steps: the shapes of the inputs of each step that ran, by name.
        growth_of_steps: the entries that each step that ran added to the caches.
        planned_lengths: ``requested_lengths`` without the steps that the capacity has no room for; ones,
            if the model runs with no more. Set by `step_lengths`.
    """

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        """Create the session of the original for a job of `run`; no step runs yet."""
        self.spec = spec
        self.caches = from_json(CacheSummary, job["caches"], "the job")
        self.requested_lengths: list[int] = list(job["lengths"])
        self.inputs = _StepInputs(spec.model, self.caches, job)
        self.session = spec.create()
        self.names = [output.name for output in self.session.get_outputs()]
        self.rules: Rules = {}
        self.state: dict[str, Any] = {}
        self.position = 0
        self.shapes_of_steps: list[dict[str, list[int]]] = []
        self.growth_of_steps: list[int] = []
        self.planned_lengths: list[int] = []

    def step_lengths(self) -> list[int]:
        """Find out how a step is fed, and return the new entries of each step.

        The loop begins with empty caches if the model runs with them, else with one entry. Steps
        that the capacity has no room for are left out. Steps have one entry each if the model
        runs with no more. Sets `rules`, `position`, `state` and `planned_lengths`.

        Raises:
            RuntimeUnavailableError: no step runs.
        """
        self.rules, trial_length = self._find_rules()
        has_single_entries = trial_length == 1
        first_length = 1 if has_single_entries else 2  # a prefill of several entries
        outputs, _ = self._try_step(self.rules, past=0, new=first_length)
        if outputs is None:  # the model does not run with empty caches
            self.position = 1
            drawn = self.inputs.draw(self.rules, 1, 1, seed=_START_SEED)
            self.state = {cache.input: drawn[cache.input] for cache in self.caches.growing}
        room = self.caches.capacity - self.position
        lengths = self.requested_lengths
        if has_single_entries:
            lengths = [1] * len(lengths)
        for length in lengths:
            if length <= room:
                room -= length
                self.planned_lengths.append(length)
        return self.planned_lengths

    def _find_rules(self) -> tuple[Rules, int]:
        """Return rules with which steps run, and the new entries of the step that found them.

        Raises:
            RuntimeUnavailableError: no step runs.
        """
        reason = ""
        for past, new in _TRIAL_STEPS:
            for rules in islice(self.inputs.candidate_rules(), _MAX_RULES):
                outputs, error = self._try_step(rules, past, new)
                if outputs is None:
                    reason = reason or error
                    continue
                if self._growth(outputs, past):
                    # Another past too: "five" or "one" may be right by accident for a single one.
                    outputs, _ = self._try_step(rules, past=5, new=1)
                    if outputs is not None and self._growth(outputs, past=5):
                        return rules, new
                reason = "its caches do not all grow by the same number of entries"
        raise RuntimeUnavailableError(f"no decoding step of the model runs: {reason[:400]}")

    def _growth(self, outputs: Mapping[str, Any], past: int) -> int:
        """Return by how many entries all caches grew; 0 if the numbers differ."""
        growths = {
            np.shape(outputs[cache.output])[cache.axis] - past for cache in self.caches.growing
        }
        return growths.pop() if len(growths) == 1 else 0

    def _try_step(
        self, rules: Rules, past: int, new: int
    ) -> tuple[dict[str, Any] | None, str]:
        """Return the outputs of a step with random inputs, or None and the error."""
        try:
            return self._run(self.inputs.draw(rules, past, new)), ""
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises errors of many types
            return None, " ".join(f"{error}".split())

    def _run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run the session, and return all outputs by name."""
        options = run_options(self.spec.settings)
        values = run_session(self.session, self.names, feed, options)
        return dict(zip(self.names, values, strict=True))

    def feed(self, new_entries: int, index: int) -> dict[str, Any]:
        """Return the inputs of a step; those that are no caches are drawn anew."""
        drawn = self.inputs.draw(
            self.rules, self.position, new_entries, seed=index, without=self.state.keys()
        )
        return {**drawn, **self.state}

    def step(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, keep the caches for the next step, and return the other outputs.

        The growth and the shapes of the inputs are recorded, for `observations`.

        Raises:
            RuntimeUnavailableError: the caches grew by different numbers of entries.
        """
        outputs = self._run(feed)
        growth = self._growth(outputs, self.position)
        if not growth:
            raise RuntimeUnavailableError(
                "the model's caches do not all grow by the same number of entries"
            )
        self.growth_of_steps.append(growth)
        self.shapes_of_steps.append(
            {name: list(np.shape(value)) for name, value in feed.items()}
        )
        self.position += growth
        self.state = {cache.input: outputs[cache.output] for cache in self.caches.buffers}
        cache_outputs = {cache.output for cache in self.caches.buffers}
        return {name: value for name, value in outputs.items() if name not in cache_outputs}

    def cache_entries(self) -> dict[str, Any]:
        """Return the entries of the growing caches after the last step."""
        return {cache.input: self.state[cache.input] for cache in self.caches.growing}

    def observations(self) -> Json:
        """Return how steps are fed, and how many entries they added.

        Returns:
            ``rules``; ``start``: entries before the first step; ``steps``: entries that each step
            added; ``lengths``: new entries that each step was asked for; ``tokens``: an input and
            its axis that is as long as the new entries, in a list; empty if there is none.
        """
        tokens = self._token_axis()
        return {
            "rules": self.rules,
            "start": self.position - sum(self.growth_of_steps),
            "steps": self.growth_of_steps,
            "lengths": self.planned_lengths,
            "tokens": [list(tokens)] if tokens else [],
        }

    def _token_axis(self) -> tuple[str, int] | None:
        """Return an input, no cache, and its axis that had the new entries in every step.

        None if there is none. Axis 0 is the batch, and cannot be it.
        """
        caches = {cache.input for cache in self.caches.buffers}
        first_shapes = self.shapes_of_steps[0] if self.shapes_of_steps else {}
        for name, shape in first_shapes.items():
            for axis in range(1, len(shape) if name not in caches else 0):
                lengths = [shapes[name][axis] for shapes in self.shapes_of_steps]
                if lengths == self.growth_of_steps:
                    return name, axis
        return None


class _WrittenLoop:
    """The decode loop of the written model: a `Decoder` keeps its caches in buffers.

    It is fed by the rules of the original's loop, with the same random values, and begins with the same
    entries.
    """

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        """Create the session of the written model for a job of `run`; no step runs yet."""
        self.caches = from_json(CacheSummary, job["caches"], "the job")
        self.inputs = _StepInputs(Path(job["original"]), self.caches, job)
        self.rules: Rules = dict(job["rules"])
        self.lengths: list[int] = list(job["lengths"])
        session = spec.create()
        # For dims that only caches have; such a dim does not depend on past and new entries.
        dims = self.inputs.dim_values(self.rules, 1, 1)
        self.decoder = Decoder(session, self.caches, dims, run_options(spec.settings))
        if job["start"]:
            drawn = self.inputs.draw(self.rules, job["start"], 1, seed=_START_SEED)
            self.decoder.load(
                {cache.input: drawn[cache.input] for cache in self.caches.growing}
            )

    def step_lengths(self) -> list[int]:
        """Return the new entries of each step."""
        return self.lengths

    def feed(self, new_entries: int, index: int) -> dict[str, Any]:
        """Return the inputs of a step; constant caches are inputs of the first step only."""
        caches = self.caches.buffers if index else self.caches.growing
        without = {cache.input for cache in caches}
        position = self.decoder.position
        return self.inputs.draw(self.rules, position, new_entries, seed=index, without=without)

    def step(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Run once, and return the outputs that are no caches."""
        return self.decoder.step(feed)

    def cache_entries(self) -> dict[str, Any]:
        """Return the entries of the growing caches after the last step."""
        return {cache.input: self.decoder.valid(cache.input) for cache in self.caches.growing}

    def observations(self) -> Json:
        """Return nothing more: only the original's loop finds out how steps are fed."""
        return {}


class _StepInputs:
    """Draws the inputs of the original's steps, given rules for the values of its dims.

    Attributes:
        fixed_dims: values of dims that the user gave.
        past_dims: dims along which caches grow.
        free_dims: dims that need a rule.
        has_ones_masks: whether masks are all ones, because fused attention reads the sum of a
            mask as the number of entries.
        _user_specs: inputs that the user gave, by name.
        _cache_dims: other dims of growing caches, such as the batch.
        _constant_dims: dims of constant caches only, such as the length of an encoder's output.
    """

    def __init__(self, model: Path, caches: CacheSummary, job: Json) -> None:
        original = load_model(model)
        self.fixed_dims: dict[str, int] = dict(job["dims"])
        self._user_specs = {spec.name: spec for spec in InputSet.of_job(job).specs}
        self._feeder = Feeder(original)
        taken_names = names_taken(original)
        dims = {
            value.name: tensor_dims(value, tensor_type(value)[1], taken_names)
            for value in fed_inputs(original)
        }
        self.past_dims = {str(dims[cache.input][cache.axis]) for cache in caches.growing}
        self._cache_dims = {
            str(dim) for cache in caches.growing for dim in dims[cache.input]
        } - self.past_dims
        self._constant_dims = {
            str(dim)
            for cache in caches.buffers
            if cache.form == "constant"
            for dim in dims[cache.input]
        } - self._cache_dims
        known_dims = self.past_dims | self.fixed_dims.keys()
        self.free_dims = [name for name in free_dims(original) if name not in known_dims]
        self.has_ones_masks = any(cache.form == "shared" for cache in caches.buffers)

    def candidate_rules(self) -> Iterator[Rules]:
        """Yield assignments of rules to the free dims, the likely ones first.

        The length of a constant cache is likely to be independent of a step, a batch to be 1, and
        any other dim to follow from the entries.
        """
        choices: list[tuple[str, ...]] = []
        for name in self.free_dims:
            if name in self._constant_dims:
                choices.append(("five", "one"))
            elif name in self._cache_dims:
                choices.append(("one", "five"))
            else:
                choices.append(("new", "total", "one", "past"))
        for rules in product(*choices):
            yield dict(zip(self.free_dims, rules, strict=True))

    def dim_values(self, rules: Rules, past: int, new: int) -> dict[str, int]:
        """Return the value of each dim in a step with past and new entries."""
        past_dims = dict.fromkeys(self.past_dims, past)
        return {**step_dims(rules, past, new), **past_dims, **self.fixed_dims}

    def draw(
        self,
        rules: Rules,
        past: int,
        new: int,
        seed: int = 0,
        without: Collection[str] = (),
    ) -> dict[str, Any]:
        """Return random inputs of a step, by name; inputs in ``without`` are left out.

        The caches hold ``past`` entries before the step, which adds ``new`` ones. ``rules`` say how the
        dims follow from these two numbers.
        """
        defaults = self._feeder.specs(self.dim_values(rules, past, new))
        specs = [self._spec_in_step(spec) for spec in defaults if spec.name not in without]
        return draw_all(specs, seed=seed)

    def _spec_in_step(self, spec: FeedSpec) -> FeedSpec:
        """Return how an input is drawn in a step: by ``spec``, with two exceptions.

        The user's value is taken if its shape fits. Else a mask is all ones if `has_ones_masks`.
        """
        user_spec = self._user_specs.get(spec.name)
        if user_spec is not None and user_spec.shape == spec.shape:
            return user_spec
        if self.has_ones_masks and spec.kind == "mask":
            return dataclasses.replace(spec, kind="values", values=(1,))
        return spec
