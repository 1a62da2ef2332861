"""Job: run a decode loop, prefill and steps, and save or compare the outputs of each step."""

from __future__ import annotations

import dataclasses
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from memplan_cli.onnx_io.types import container_and_tensor_type
from memplan_cli.runtime.decoding import Decoder
from memplan_cli.runtime.workers.inputs import draw_all
from memplan_cli.runtime.workers.ort_values import run_session
from memplan_cli.runtime.workers.outputs import compare_with_saved, save_values
from memplan_cli.runtime.workers.session import run_options
from memplan_cli.runtime.workers.spec import InputSet, SessionSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from memplan_cli.core.bindings import FeedSpec
    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.observations import Difference

_MAX_RULES = 400
"""How many assignments of rules to dims are tried."""

_UNEVEN_GROWTH = "its caches do not all grow by the same number of entries"

_START_SEED = 99
"""The seed of the cache entries with which a loop begins that cannot begin with empty caches."""

Rules = dict[str, str]
"""How the value of each dim follows from past and new entries: a key of `STEP_NUMBERS`."""


def run(job: Json) -> Json:
    """Job: run the decode loop of the original or of the written model.

    The original's outputs in each step, and its caches after the last step, are saved. Those of the
    written model are compared with the saved ones.

    Args:
        job: ``role``: ``original`` or ``written``; ``session``: of the model; ``inputs``: input
            values of the user; ``caches``: the `CacheSummary`; ``dims``: values of dims;
            ``lengths``: new entries of each step; ``folder``: for the outputs; ``tolerance``:
            ``[rtol, atol]``. The written model also needs ``original``, the original's file, and
            its ``rules`` and ``start``.

    Returns:
        Of the original, what `_OriginalLoop.observations` returns. Of the written model,
        ``differences`` of outputs, named ``name@step``, and of caches.
    """
    spec, folder = SessionSpec.of_job(job), Path(job["folder"])
    if job["role"] == "original":
        original = _OriginalLoop(spec, job)
        for values in _loop_values(original):
            target = folder / values.folder
            target.mkdir(exist_ok=True)
            save_values(target, list(values.arrays), values.arrays)
        return original.observations()
    tolerance = Tolerance(*map(float, job["tolerance"]))
    differences = [
        difference
        for values in _loop_values(_WrittenLoop(spec, job))
        for difference in _differences(values, folder, tolerance)
    ]
    return {"differences": to_json(differences)}


class _LoopValues(NamedTuple):
    """Values of a decode loop that are compared: the outputs of one step, or the caches after the last.

    Attributes:
        folder: the name of the folder for the original's values.
        suffix: what follows the name of a value in reports: ``@1`` after the first step; empty for
            caches.
        arrays: the values by name.
    """

    folder: str
    suffix: str
    arrays: Mapping[str, Any]


def _loop_values(loop: _OriginalLoop | _WrittenLoop) -> Iterator[_LoopValues]:
    """Run a decode loop, and yield the values to compare."""
    for index, new_entries in enumerate(loop.lengths):
        outputs = loop.step(loop.feed(new_entries, index))
        yield _LoopValues(f"{index}", f"@{index + 1}", outputs)
    yield _LoopValues("caches", "", loop.cache_entries())


def _differences(
    values: _LoopValues, folder: Path, tolerance: Tolerance
) -> Iterator[Difference]:
    """Yield how values of the written model's loop differ from those in ``folder``."""
    differences = compare_with_saved(
        folder / values.folder, list(values.arrays), values.arrays, tolerance
    )
    for difference in differences:
        name = f"{difference.output}{values.suffix}"
        yield dataclasses.replace(difference, output=name)


class _OriginalLoop:
    """The decode loop of the original: the outputs of its growing caches are fed back.

    The loop begins with empty caches if the model runs with them, else with one entry.

    Attributes:
        rules: how the value of each dim follows from past and new entries.
        lengths: new entries of each step: those of the job that the capacity has room for, or ones
            if the model runs with no more.
        position: valid entries of the growing caches; each step adds its own.
        state: the caches after the last step, by input name.
        shapes_of_steps: the shapes of the inputs of each step that ran, by name.
        growth_of_steps: the entries that each step that ran added to the caches.
    """

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        """Create the session of the original model, and find out by trial runs which steps it can run.

        A step reads the past entries of the caches and adds new ones. Keys of ``job``:

        - ``caches``: the `CacheSummary`.
        - ``lengths``: the requested number of new entries in each step.
        - ``inputs`` and ``dims``: values of the user, in place of random ones.

        Raises:
            RuntimeUnavailableError: no step runs.
        """
        self.spec, self.session = spec, spec.create()
        self.names = [output.name for output in self.session.get_outputs()]
        self.caches = from_json(CacheSummary, job["caches"], "the job")
        self.inputs = _StepInputs(spec.model, self.caches, job)
        # Trial runs, which use the attributes above: how does each dim follow from past and new entries?
        self.rules, takes_several_entries = self._find_rules()
        requested: list[int] = job["lengths"]
        lengths = requested if takes_several_entries else [1] * len(requested)
        # With these rules: can the first step begin with empty caches (position 0)?
        self.position, self.state = self._start(new_entries=lengths[0])
        self.lengths = _lengths_with_room(lengths, self.caches.capacity - self.position)
        # For each step that `step` runs: the shapes of its inputs, and by how many entries the caches grew.
        self.shapes_of_steps: list[dict[str, list[int]]] = []
        self.growth_of_steps: list[int] = []

    def _find_rules(self) -> tuple[Rules, bool]:
        """Return the first candidate rules with which steps run, and whether a step can have several new entries.

        Raises:
            RuntimeUnavailableError: no step runs.
        """
        reasons: list[str] = []
        # Steps with one new entry are tried only if none with two runs.
        for new in (2, 1):
            for rules in islice(self.inputs.candidate_rules(), _MAX_RULES):
                # Wrong rules may run by chance: with 3 past and 2 new entries, the rules ``total`` and
                # ``five`` both give 5. So a second step with other numbers must run too.
                reason = self._trial_failure(rules, past=3, new=new)
                reason = reason or self._trial_failure(rules, past=5, new=1)
                if not reason:
                    return rules, new > 1
                reasons.append(reason)
        # One reason is reported; there is at least one candidate. Rules with which a step ran, though its
        # caches grew unevenly, are more likely right than rules with which the runtime failed.
        reason = _UNEVEN_GROWTH if _UNEVEN_GROWTH in reasons else reasons[0]
        raise RuntimeUnavailableError(f"no decoding step of the model runs: {reason[:400]}")

    def _trial_failure(self, rules: Rules, past: int, new: int) -> str:
        """Return why a step with random inputs fails; empty if it extends all caches equally."""
        try:
            outputs = self._run(self.inputs.draw(rules, past, new))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime raises errors of many types
            return " ".join(f"{error}".split())
        return "" if self._growth(outputs, past) else _UNEVEN_GROWTH

    def _start(self, new_entries: int) -> tuple[int, dict[str, Any]]:
        """Return the number of entries before the first step, 0 or 1, and the caches that hold them.

        The number is 0 if a step of ``new_entries`` runs with empty caches. Then no caches are returned:
        `feed` draws inputs that are missing, and a cache without entries has no values. Else the caches
        hold one random entry.
        """
        failure = self._trial_failure(self.rules, past=0, new=new_entries)
        # A step whose caches grew unevenly did run. `step` reports this error.
        runs_with_empty_caches = failure in ("", _UNEVEN_GROWTH)
        if runs_with_empty_caches:
            return 0, {}
        drawn = self.inputs.draw(self.rules, past=1, new=new_entries, seed=_START_SEED)
        return 1, {cache.input: drawn[cache.input] for cache in self.caches.growing}

    def _growth(self, outputs: Mapping[str, Any], past: int) -> int:
        """Return by how many entries all caches grew; 0 if the numbers differ."""
        growths = {
            np.shape(outputs[cache.output])[cache.axis] - past for cache in self.caches.growing
        }
        return growths.pop() if len(growths) == 1 else 0

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
        """Return what the loop of the written model needs to repeat these steps, and how the caches grew."""
        token_axis = self._token_axis()
        return {
            # How the value of each dim follows from the numbers of past and new entries.
            "rules": self.rules,
            # Entries in the caches before the first step.
            "start": self.position - sum(self.growth_of_steps),
            "steps": self.growth_of_steps,  # by how many entries the caches grew in each step
            "lengths": self.lengths,  # how many new entries each step was run with
            # A list of one pair, the input of tokens and its token axis; empty if there is none.
            "tokens": [list(token_axis)] if token_axis else [],
        }

    def _token_axis(self) -> tuple[str, int] | None:
        """Return the input of tokens, and its axis whose length is the number of new entries in every step.

        None if no input has such an axis.
        """
        caches = {cache.input for cache in self.caches.buffers}
        first_shapes = self.shapes_of_steps[0] if self.shapes_of_steps else {}
        for name, shape in first_shapes.items():
            if name in caches:
                continue
            for axis in range(1, len(shape)):  # axis 0 is the batch
                lengths = [shapes[name][axis] for shapes in self.shapes_of_steps]
                # If all steps added one entry, this may be another axis that always has length 1. That does no
                # harm: its length is right for any further step of one entry.
                if lengths == self.growth_of_steps:
                    return name, axis
        return None


def _lengths_with_room(lengths: Sequence[int], room: int) -> list[int]:
    """Return the lengths that fit one after the other into a room of ``room`` entries.

    A length that does not fit is left out; a shorter one after it may still fit: 4, 2, 1 -> 4, 1 in 5.
    """
    fitting = []
    for length in lengths:
        if length <= room:
            fitting.append(length)
            room -= length
    return fitting


class _WrittenLoop:
    """The decode loop of the written model: a `Decoder` keeps its caches in buffers.

    It is fed by the ``rules`` and ``lengths`` of the original's loop, with the same random values.
    """

    def __init__(self, spec: SessionSpec, job: Json) -> None:
        """Create the session of the written model, and fill its caches for the first step.

        ``job`` describes the steps of the original model, which are repeated here:

        - ``original``: its file; ``dims`` and ``inputs``: values that the user gave.
        - ``rules``: how each dim follows from the numbers of past and new entries.
        - ``lengths``: the number of new entries in each step.
        - ``start``: the number of entries, with random values, in the caches before the first step.
        - ``caches``: the `CacheSummary` of the written model.
        """
        self.caches = from_json(CacheSummary, job["caches"], "the job")
        # Both models are fed alike, so the inputs are drawn as the original declares them.
        self.inputs = _StepInputs(Path(job["original"]), self.caches, job)
        self.rules: Rules = dict(job["rules"])
        self.lengths: list[int] = list(job["lengths"])
        session = spec.create()
        # The decoder needs the dims of its buffers besides the capacity, such as the batch. These are
        # the same in every step, with any numbers of past and new entries.
        dims = self.inputs.dim_values(self.rules, past=1, new=1)
        self.decoder = Decoder(session, self.caches, dims, run_options(spec.settings))
        if job["start"]:
            drawn = self.inputs.draw(self.rules, past=job["start"], new=1, seed=_START_SEED)
            self.decoder.load(
                {cache.input: drawn[cache.input] for cache in self.caches.growing}
            )

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


class _StepInputs:
    """Draws the inputs of the original's steps.

    The value of a dim in a step is known if the user gave it, or if caches grow along the dim: then it is the
    number of past entries. Each other dim is *free*, and its value follows from the step by a rule, a key of
    `STEP_NUMBERS`. Dims are named; one that the file fixes has a text like "64", which names no free dim.

    Attributes:
        fixed_dims: the values that the user gave.
        past_dims: the dims along which caches grow.
        rules_to_try: for each free dim, the rules by which its value may follow, the likeliest first.
        masks_must_be_ones: whether masks are drawn as ones, not at random.
        _user_specs: inputs that the user gave, by name.
    """

    def __init__(self, model: Path, caches: CacheSummary, job: Json) -> None:
        """Load the original, and find the dims along which caches grow (`past_dims`) and the *free* dims.

        A dim is free if caches do not grow along it and the user gave no value for it in ``job``.
        """
        original = load_model(model)
        self.fixed_dims: dict[str, int] = dict(job["dims"])
        self._user_specs = {spec.name: spec for spec in InputSet.of_job(job).specs}
        self._feeder = Feeder(original)
        # A nameless dim gets a name of its own, from its input and axis: ``x_dim0``.
        model_names = names_taken(original)
        dims_of: dict[str, list[str]] = {}  # input -> its dims by axis
        for value in fed_inputs(original):
            _, tensor_type = container_and_tensor_type(value)
            dims_of[value.name] = list(map(str, tensor_dims(value, tensor_type, model_names)))
        # `growing` caches are those that steps extend; `buffers` are these and the constant ones.
        self.past_dims = {dims_of[cache.input][cache.axis] for cache in caches.growing}
        # Free dim -> the rules for its value that are tried, the likeliest first: "new" is the number of new
        # entries, "total" that of past and new ones. The `form` of a cache tells how the graph extends it.
        self.rules_to_try: dict[str, tuple[str, ...]] = {}
        for dim in free_dims(original):
            if dim not in self.past_dims and dim not in self.fixed_dims:
                forms = {cache.form for cache in caches.buffers if dim in dims_of[cache.input]}
                self.rules_to_try[dim] = _rules_to_try(forms)
        # A GroupQueryAttention, the operator of ``shared`` caches, takes the sum of a mask for the number of valid
        # entries. A random mask with zeros would let it write new entries over old ones, so it gets only ones.
        self.masks_must_be_ones = any(cache.form == "shared" for cache in caches.buffers)

    def candidate_rules(self) -> Iterator[Rules]:
        """Yield assignments of rules to the free dims, the likely ones first."""
        for rules in product(*self.rules_to_try.values()):
            yield dict(zip(self.rules_to_try, rules, strict=True))

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
        """Return the inputs of a step by name, random or the user's; inputs in ``without`` are left out.

        The caches hold ``past`` entries before the step, which adds ``new`` ones. ``rules`` say how the
        dims follow from these two numbers.
        """
        random_specs = self._feeder.specs(self.dim_values(rules, past, new))
        # Some inputs get the user's value, or ones, in place of random numbers.
        specs = [self._adapted(spec) for spec in random_specs if spec.name not in without]
        return draw_all(specs, seed=seed)

    def _adapted(self, spec: FeedSpec) -> FeedSpec:
        """Return the user's value for a random input, if its shape fits, or ones for a mask that needs them.

        Returns ``spec`` itself for any other input.
        """
        user_spec = self._user_specs.get(spec.name)
        if user_spec is not None and user_spec.shape == spec.shape:
            return user_spec
        if self.masks_must_be_ones and spec.kind == "mask":
            return dataclasses.replace(spec, kind="values", values=(1,))
        return spec


def _rules_to_try(forms: Collection[str]) -> tuple[str, ...]:
    """Return the rules (keys of `STEP_NUMBERS`) that may give a dim's length, the likeliest first.

    ``forms`` are the forms of the caches that have this dim.
    """
    if not forms:  # such as the length of token ids (``new``) or of a mask (``total``)
        return ("new", "total", "one", "past")
    # Other dims of caches have one length in all steps: 1, or any above 1, for which five stands.
    if forms == {"constant"}:  # such as the length of an encoder's output
        return ("five", "one")
    return ("one", "five")  # such as the batch
