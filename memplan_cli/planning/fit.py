"""The largest value of a dim that fits a memory size, searched by the need of each value.

Nothing here plans: `NeedAt` returns the bytes that a value needs. The need is assumed to grow
with the dim. The answer names the need of the next value, so that anyone can check the step that
decides.

`Growth` finds needs by running the model. A run of thousands of examples takes minutes, and
more memory than the limit. So the values 1, 2, 4, ... are run until they need `MAX_ADDED_BYTES`
more than the first one, and larger values are extrapolated by a power of the dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import SPARSE, Keys
from memplan_cli.core.symbolic.dims import binding_text
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.errors import SettingsError
from memplan_cli.planning.totals import LARGEST_DIM

MAX_ADDED_BYTES = 128 << 20
"""Values are run until a run needs so many bytes more than the first one."""

_MIN_SAMPLES, _MAX_SAMPLES = 3, 5
"""Runs from which growth is extrapolated."""

_MAX_POWER = 3.0
"""No part of a model's memory is taken to grow faster than with the cube of a dim."""

_POWER_TOLERANCE = 0.1
"""A power so near to a whole number is rounded: the rest is padding and whole arena regions."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one value of the dim needs.

    Attributes:
        weights, inputs, outputs, planned: as in a report.
        process: the most bytes that a session and its runs add to a process, without inputs: weights,
            intermediates, and the outputs of two runs. None: the search counts tensors.
    """

    json_keys: ClassVar[Keys] = (
        "weights",
        "inputs",
        "outputs",
        "planned",
        "process",
        "total",
    )

    weights: int
    inputs: int
    outputs: int
    planned: int
    process: int | None = field(default=None, metadata=SPARSE)

    @property
    def total(self) -> int:
        """Return the bytes that have to fit."""
        if self.process is not None:
            return self.process + self.inputs
        return self.weights + self.inputs + self.outputs + self.planned


NeedAt = Callable[[int], Need | None]
"""Returns the bytes that a value of the dim needs; None: more than any machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Need):
    """The bytes that a model needs with the largest value of a dim that fits.

    Attributes:
        dims: the dim with this value.
        beyond: the bytes needed with the next value, to compare with the memory size: unlike all
            other fields, they include the overhead of `Fit`. None: more than any machine has.
    """

    json_keys: ClassVar[Keys] = ("dims", *Need.json_keys, "beyond")

    dims: Mapping[str, int]
    beyond: int | None

    @classmethod
    def of(
        cls, need: Need, dims: Mapping[str, int], next_need: Need | None, overhead: int
    ) -> Point:
        """Return the point of the largest value of a dim with which a model fits: ``need`` is its need there.

        ``dims`` has the dim with this value. ``next_need`` is the need with the next value; None: it is more than
        any machine has. ``overhead`` is the bytes of the interpreter and its imports, which no need includes.
        """
        # Users compare ``beyond`` with the memory size, which has to hold the interpreter too.
        beyond = None if next_need is None else next_need.total + overhead
        return cls(
            weights=need.weights,
            inputs=need.inputs,
            outputs=need.outputs,
            planned=need.planned,
            process=need.process,
            dims=dims,
            beyond=beyond,
        )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The bytes that a run with a binding took from the system.

    Attributes:
        taken: the highest resident bytes of the process, or, if these are unknown, the bytes
            that the arena reserved, with the weights in it.
        of: ``process`` or ``arena``: whose bytes ``taken`` are.
        runs: how many values were run until this one.
        total: the bytes to compare with the memory size: taken, inputs and overhead.
    """

    dims: Mapping[str, int]
    provider: str
    taken: int
    inputs: int
    of: str
    runs: int
    total: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest value of a dimension that fits a memory size.

    Attributes:
        overhead: bytes that the search adds to every need: of a process, the interpreter, the runtime
            and ``other_imports``.
        other_imports: bytes kept for what else the process imports.
        margin: the largest relative error of a predicted process; None: tensors are counted.
        dim: the dimension that was searched for.
        dims: the numbers of the others.
        point: the value that fits; None: not even 1 fits.
        least: the bytes that the value 1 needs.
        expressions: the need of one plan for all values, by unit; empty: there is none.
        plans: the number of exact plans that the search made.
        confirmed: the last run that was made to confirm the answer; None: nothing was run.
        of: ``process`` if the predicted process has to fit, ``tensors`` if what is planned.
    """

    json_keys: ClassVar[Keys] = (
        "model",
        "memory",
        "overhead",
        "other_imports",
        "margin",
        "of",
        "unknown",
        "dims",
        "passed",
        "points",
        "least",
        "expressions",
        "plans",
        "confirmed",
        "warnings",
    )

    model: str
    memory: int
    overhead: int
    other_imports: int
    margin: float | None
    dim: str
    dims: Mapping[str, int]
    point: Point | None
    least: Need | None
    expressions: Mapping[str, int] = field(default_factory=dict)
    plans: int = 0
    confirmed: Confirmation | None = None
    of: str = "tensors"
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return one line such as ``<Fit of 'a.onnx' in 8.00 GiB (process): batch=32, confirmed by a run>``.

        In parentheses is whose bytes fit: those of the process, or of the planned tensors.
        """
        if self.point is None:
            answer = f"not even {self.dim}=1 fits"
        else:
            answer = binding_text(self.point.dims)
        if self.point and self.confirmed:  # the record of a run
            answer += ", confirmed by a run" if self.passed else ", which did not fit in a run"
        return f"<Fit of {self.model!r} in {format_size(self.memory)} ({self.of}): {answer}>"

    @property
    def unknown(self) -> tuple[str, ...]:
        """The dimension as a list of one, which the JSON has."""
        return (self.dim,)

    @property
    def points(self) -> tuple[Point, ...]:
        """The point as a list of one or none, which the JSON has."""
        return (self.point,) if self.point else ()

    @property
    def passed(self) -> bool:
        """Whether a value fits, and did so when it was run."""
        if self.point is None:
            return False
        return self.confirmed is None or self.confirmed.total <= self.memory


@dataclass(frozen=True, slots=True)
class Question:
    """The search for the largest value of one dim.

    Attributes:
        memory: the memory size in bytes.
        overhead: bytes of the process that no need includes.
    """

    dim: str
    memory: int
    overhead: int = 0

    @property
    def limit(self) -> int:
        """The bytes that a need, which has no overhead, may have."""
        return self.memory - self.overhead


def largest(need_at: NeedAt, question: Question, guess: int = 1) -> Point | None:
    """Return the largest value of a dim that fits; None if 1 does not fit.

    The need is assumed to grow with the value. So an interval around the guess is widened until it
    holds the answer, and then halved: the number of needs that are computed grows with the logarithm
    of the distance between the guess and the answer.

    Raises:
        SettingsError: the need does not depend on the dim.
    """

    def fits(value: int) -> bool:
        need = need_at(value)
        return need is not None and need.total <= question.limit

    low, high = _bracket(fits, max(1, min(guess, LARGEST_DIM)))
    if not low:
        return None
    if low >= LARGEST_DIM:
        raise SettingsError(
            f"what the model needs does not depend on {question.dim!r}",
            hint="`memplan report MODEL` shows the symbols of its sizes",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    need = need_at(low)
    assert need is not None  # noqa: S101 - it fits
    return Point.of(need, {question.dim: low}, need_at(high), question.overhead)


def _bracket(fits: Callable[[int], bool], guess: int) -> tuple[int, int]:
    """Return a value that fits (0: none does) and a larger one that does not.

    From the guess, values are tried in steps that double. If every value up to `LARGEST_DIM`
    fits, both are `LARGEST_DIM`.
    """
    if fits(guess):
        low, step = guess, 1
        while low < LARGEST_DIM:
            high = min(low + step, LARGEST_DIM)
            if not fits(high):
                return low, high
            low, step = high, step * 2
        return low, low
    high, step = guess, 1
    while high > 1:
        low = max(high - step, 1)
        if fits(low):
            return low, high
        high, step = low, step * 2
    return 0, 1


def guess_from_totals(totals: Mapping[str, int], question: Question) -> int:
    """Return a guess of the largest value of a dim that fits, from the totals of one plan with symbolic sizes.

    The caller's search with an exact plan for each value starts at the guess. ``totals`` has the bytes of the
    plan by unit: ``{"1": 64, "batch": 4096}`` is 64 bytes and 4096 for each of the batch.
    """

    def total_at(value: int) -> Need:
        dims = {question.dim: value}
        total = sum(factor * unit_value(unit, dims) for unit, factor in totals.items())
        # Only the total of a need is compared, so all bytes are put into one of its four parts.
        return Need(weights=0, inputs=0, outputs=0, planned=total)

    try:
        point = largest(total_at, question)
    except (SettingsError, ValueError):  # no total has the dim, or one has another dim too
        return 1
    return 1 if point is None else point.dims[question.dim]  # None: not even 1 fits


@dataclass(slots=True)
class Growth:
    """The bytes that a model needs with each value of a dim, from runs with small values.

    The bytes of larger values are extrapolated. Each run is made once and stored here.

    Attributes:
        run: Runs the model with a value of the dim and returns the bytes; None if it does not run. With
            the value 1 it runs.
        samples: The bytes with the values 1, 2, 4, ...
        needs: The bytes of all runs by value; None for one that failed.
    """

    run: NeedAt
    samples: list[Need] = field(default_factory=list)
    needs: dict[int, Need | None] = field(default_factory=dict)

    def need(self, value: int) -> Need | None:
        """Return the bytes that the model needs with a value of the dim: run, or extrapolated.

        First the model is run with 1, 2, 4, ... up to the value, until there are enough ``samples`` to
        extrapolate from. None: it does not run with the value, or with one of these smaller ones.
        """
        while self._needs_more_samples:
            next_value = 1 << len(self.samples)
            if next_value > value:
                break
            need = self._run_once(next_value)
            if need is None:
                return None
            self.samples.append(need)
        if self.is_extrapolated(value):
            return _extrapolate(self.samples, value / self.largest_sample)
        return self._run_once(value)

    @property
    def largest_sample(self) -> int:
        """The value of the last sample."""
        return 1 << (len(self.samples) - 1)

    def is_extrapolated(self, value: int) -> bool:
        """Whether a value is not run itself: it is above the samples, and these are enough."""
        return not self._needs_more_samples and value > self.largest_sample

    @property
    def _needs_more_samples(self) -> bool:
        """Whether more values must be run before larger ones can be extrapolated.

        More are needed with few samples, and while the last one needs hardly more than the first.
        """
        if len(self.samples) < _MIN_SAMPLES:
            return True
        return self.samples[-1].total - self.samples[0].total <= MAX_ADDED_BYTES

    def _run_once(self, value: int) -> Need | None:
        """Return the need of a value by its run, which is made only once."""
        if value not in self.needs:
            self.needs[value] = self.run(value)
        return self.needs[value]


def _extrapolate(samples: Sequence[Need], ratio: float) -> Need:
    """Return the need of a value above all samples, ``ratio`` times that of the last sample.

    Samples are runs at values that double. Weights, inputs, outputs, planned bytes and process memory are
    extrapolated separately, from the last `_MAX_SAMPLES` samples. The process memory is None unless all of
    these have one.
    """
    needs = samples[-_MAX_SAMPLES:]
    weights = _extend([need.weights for need in needs], ratio)
    inputs = _extend([need.inputs for need in needs], ratio)
    outputs = _extend([need.outputs for need in needs], ratio)
    planned = _extend([need.planned for need in needs], ratio)
    processes = [need.process for need in needs if need.process is not None]
    process = _extend(processes, ratio) if len(processes) == len(needs) else None
    return Need(weights, inputs, outputs, planned, process)


def _extend(numbers: list[int], ratio: float) -> int:
    """Extrapolate a sequence of byte counts, measured at dims that double, to a larger dim.

    The model is ``c + k * v**p``. For example, 10, 12 and 16 bytes at the dims 1, 2 and 4 are ``8 + 2 * v``, so
    they become 24 at the dim 8, a ratio of 2. The power comes from the first and the last step, and ``k`` from
    the sum of all steps, because a single step may jump: an arena grows by whole regions.

    Args:
        numbers: Byte counts at dims ``v, 2v, 4v, ...``, two or more.
        ratio: The dim to extrapolate to, as a multiple of the last measured one.
    """
    steps = [after - before for before, after in pairwise(numbers)]
    if min(steps) <= 0:  # no power fits steps without growth: take the last one, as linear
        steps = steps[-1:]
    if steps[-1] <= 0:  # it does not grow
        return numbers[-1]
    power = 1.0
    if len(steps) > 1:
        # Each step is ``2**power`` times the one before.
        power = math.log2(steps[-1] / steps[0]) / (len(steps) - 1)
    if abs(power - round(power)) < _POWER_TOLERANCE:
        power = round(power)
    power = min(max(power, 1.0), _MAX_POWER)
    # The first number is at ``L / 2**n``, the last one at L. So the n steps sum up to
    # ``k * L**p - k * (L / 2**n)**p``, which is ``k * L**p * (1 - 2**(-p * n))``.
    # Solved for ``scale = k * L**p``, the part of the last number that grows.
    scale = sum(steps) / (1 - 2 ** (-power * len(steps)))
    return numbers[-1] + math.ceil(scale * (math.pow(ratio, power) - 1))
