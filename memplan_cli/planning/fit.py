"""The largest value of a dim that fits a memory size, searched by the need of each value.

Nothing here plans: `Evaluate` returns the bytes that a binding needs. The need is assumed to grow
with the dim. The answer names the need of the next value, so that anyone can check the step that
decides.

`Growth` evaluates bindings by running the model. A run of thousands of examples takes minutes, and
more memory than the limit. So the values 1, 2, 4, ... are run until they need `MAX_ADDED_BYTES`
more than the first one, and larger values are extrapolated by a power of the dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar, NamedTuple

from memplan_cli.core.quantities import format_size
from memplan_cli.core.serialization import SPARSE, Keys
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
    """Bytes that one binding needs.

    Attributes:
        weights, inputs, outputs, planned: as in a report.
        process: the highest resident bytes of a process with a session, with weights, the outputs
            of a run and those of the run before; None: the search is for tensors, not for the process.
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


Evaluate = Callable[[Mapping[str, int]], Need | None]
"""Returns the bytes that a binding needs; None: more than any machine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Need):
    """The need of a binding that fits, while one with the searched dim larger by 1 does not.

    Attributes:
        beyond: the bytes of that larger binding, to compare with the memory size: unlike all other
            fields, it includes the overhead of `Fit`. None: more than any machine has.
    """

    json_keys: ClassVar[Keys] = ("dims", *Need.json_keys, "beyond")

    dims: Mapping[str, int]
    beyond: int | None

    @classmethod
    def of(
        cls, need: Need, dims: Mapping[str, int], next_need: Need | None, overhead: int
    ) -> Point:
        """Return the point of a binding, from its need and that of the larger one that does not fit.

        ``next_need`` is None if the larger one needs more than any machine has. Only ``beyond`` gets the
        ``overhead``: a `Need` never includes it.
        """
        return cls(
            weights=need.weights,
            inputs=need.inputs,
            outputs=need.outputs,
            planned=need.planned,
            process=need.process,
            dims=dims,
            beyond=None if next_need is None else next_need.total + overhead,
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
    """The largest values of dimensions that fit a memory size.

    Attributes:
        overhead: bytes that the search adds to every need: of a process, the interpreter, the runtime
            and ``other_imports``.
        other_imports: bytes kept for what else the process imports.
        margin: the largest relative error of a predicted process; None: tensors are counted.
        unknown: the dimensions that were searched for.
        dims: the numbers of the others.
        points: the bindings that fit; empty: not even 1 fits.
        least: the bytes that the smallest binding needs.
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
    unknown: tuple[str, ...]
    dims: Mapping[str, int]
    points: tuple[Point, ...]
    least: Need | None
    expressions: Mapping[str, int] = field(default_factory=dict)
    plans: int = 0
    confirmed: Confirmation | None = None
    of: str = "tensors"
    warnings: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return one line with the memory size and the first binding that fits."""
        dims = self.points[0].dims if self.points else dict.fromkeys(self.unknown, 1)
        answer = ", ".join(f"{name}={value}" for name, value in dims.items())
        if not self.points:
            answer = f"not even {answer} fits"
        elif self.confirmed is not None:
            answer += ", confirmed by a run" if self.passed else ", which did not fit in a run"
        return f"<Fit of {self.model!r} in {format_size(self.memory)} ({self.of}): {answer}>"

    @property
    def passed(self) -> bool:
        """Whether a binding fits, and did so when it was run."""
        if not self.points:
            return False
        return self.confirmed is None or self.confirmed.total <= self.memory


@dataclass(frozen=True, slots=True)
class Question:
    """The search for the largest value of one symbol.

    Attributes:
        others: the values of the other dims.
        memory: the memory size in bytes.
        overhead: bytes of the process that no need includes.
    """

    symbol: str
    others: Mapping[str, int]
    memory: int
    overhead: int = 0

    @property
    def limit(self) -> int:
        """The bytes that a need, which has no overhead, may have."""
        return self.memory - self.overhead


def largest(evaluate: Evaluate, question: Question, guess: int = 1) -> Point | None:
    """Return the largest value of a symbol that fits; None if 1 does not fit.

    The need is assumed to grow with the value. So an interval around the guess is widened until it
    holds the answer, and then halved: the number of needs that are evaluated grows with the logarithm
    of the distance between the guess and the answer.

    Raises:
        SettingsError: the need does not depend on the symbol.
    """

    def need_of(value: int) -> Need | None:
        return evaluate({**question.others, question.symbol: value})

    def fits(value: int) -> bool:
        need = need_of(value)
        return need is not None and need.total <= question.limit

    low, high = _bracket(fits, max(1, min(guess, LARGEST_DIM)))
    if not low:
        return None
    if low >= LARGEST_DIM:
        raise SettingsError(
            f"what the model needs does not depend on {question.symbol!r}",
            hint="`memplan report MODEL` shows the symbols of its sizes",
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    need = need_of(low)
    assert need is not None  # noqa: S101 - it fits
    dims = {**question.others, question.symbol: low}
    return Point.of(need, dims, need_of(high), question.overhead)


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


def frontier(
    evaluate: Evaluate,
    question: Question,
    other_symbols: tuple[str, ...],
    guess: Callable[[Question], int],
) -> Iterator[Point]:
    """Yield the largest value of a symbol for each power of two of other symbols that fits.

    The first of the other symbols takes the values 1, 2, 4, ... until nothing fits, since needs grow; for each
    of them the function calls itself with the rest.

    Without other symbols there is one point. ``guess`` returns a value near the answer.
    """
    if not other_symbols:
        point = largest(evaluate, question, guess(question))
        if point is not None:
            yield point
        return
    first, *rest = other_symbols
    value = 1
    while value <= LARGEST_DIM:
        inner = replace(question, others={**question.others, first: value})
        points = tuple(frontier(evaluate, inner, tuple(rest), guess))
        if not points:
            return
        yield from points
        value *= 2


def guess_from_totals(totals: Mapping[str, int], question: Question) -> int:
    """Return the largest value for which a symbolic plan fits: the guess that `largest` starts from.

    ``totals`` are the bytes of one plan for all values of the symbols, by unit.

    Returns:
        The value; 0 if 1 does not fit. If the totals cannot be evaluated, or do not depend on the
        symbol, 1: a search may start from any value.
    """

    def need(dims: Mapping[str, int]) -> Need:
        total = sum(factor * unit_value(unit, dims) for unit, factor in totals.items())
        # Only the sum of the four parts is compared, so all bytes are put into one of them.
        return Need(weights=0, inputs=0, outputs=0, planned=total)

    try:
        point = largest(need, question)
    except (SettingsError, ValueError):
        return 1
    return 0 if point is None else point.dims[question.symbol]


DimValues = tuple[tuple[str, int], ...]
"""Names and values of dims, by name."""


class Sample(NamedTuple):
    """The need that a run at one value of the dim has shown."""

    value: int
    need: Need


Samples = list[Sample]
"""Samples at values of which each is twice the one before."""


@dataclass(slots=True)
class Growth:
    """The needs of bindings, from runs with small values of one dim.

    Values above those of the runs are extrapolated. Each run is made once and stored here.

    Attributes:
        run: Returns the need of a binding by running it; None if it does not run.
        symbol: The dim with small values in runs.
        samples: The runs at its values 1, 2, 4, ..., by the values of the other dims.
        needs: All runs by binding; None for one that does not run.
    """

    run: Evaluate
    symbol: str
    samples: dict[DimValues, Samples] = field(default_factory=dict)
    needs: dict[DimValues, Need | None] = field(default_factory=dict)

    def need(self, dims: Mapping[str, int]) -> Need | None:
        """Return the need of a binding, by its own run or extrapolated from smaller values.

        Runs with smaller values that are missing are made and stored first. None: the binding does
        not run, or a smaller value is too large already.
        """
        samples = self._samples(dims)
        if not self._add_samples(samples, dims):
            return None
        if _is_extrapolated(dims[self.symbol], samples):
            return _extrapolate(samples, dims[self.symbol])
        return self._run_once(dims)

    def _add_samples(self, samples: Samples, dims: Mapping[str, int]) -> bool:
        """Run the next values 1, 2, 4, ... up to that of a binding, until there are enough samples.

        Values too small to run, such as a width below a kernel's, are left out. Returns False at a
        value that does not run although a smaller one did: it is taken to be too large.
        """
        value = 2 * samples[-1].value if samples else 1
        while value <= dims[self.symbol] and _need_more_runs(samples):
            need = self._run_once({**dims, self.symbol: value})
            if need is not None:
                samples.append(Sample(value, need))
            elif samples:
                return False
            value *= 2
        return True

    def _run_once(self, dims: Mapping[str, int]) -> Need | None:
        """Return the need of a binding by its run, which is made only once."""
        key = tuple(sorted(dims.items()))
        if key not in self.needs:
            self.needs[key] = self.run(dims)
        return self.needs[key]

    def extrapolation_notes(self, points: Iterable[Point]) -> tuple[str, ...]:
        """Return a sentence for each point whose need is extrapolated, naming the largest run."""
        notes = []
        for point in points:
            value, samples = point.dims[self.symbol], self._samples(point.dims)
            if _is_extrapolated(value, samples):
                notes.append(
                    f"{self.symbol}={value} was not run: its need is extrapolated from runs at up to"
                    f" {samples[-1].value}; --confirm runs it"
                )
        return tuple(notes)

    def _samples(self, dims: Mapping[str, int]) -> Samples:
        """Return the samples that have the other dims of a binding, a list to be extended."""
        others = {name: value for name, value in dims.items() if name != self.symbol}
        return self.samples.setdefault(tuple(sorted(others.items())), [])


def _need_more_runs(samples: Samples) -> bool:
    """Whether more values must be run before larger ones can be extrapolated.

    More are needed with few samples, and while the last one needs hardly more than the first.
    """
    if len(samples) < _MIN_SAMPLES:
        return True
    return samples[-1].need.total - samples[0].need.total <= MAX_ADDED_BYTES


def _is_extrapolated(value: int, samples: Samples) -> bool:
    """Whether a value is not run itself: it is above all that were, and these are enough."""
    return not _need_more_runs(samples) and value > samples[-1].value


def _extrapolate(samples: Samples, value: int) -> Need:
    """Return the need at a value of a dim that is above the values of all samples.

    Samples are runs at values that double. Weights, inputs, outputs, planned bytes and process memory are
    extrapolated separately, from the last `_MAX_SAMPLES` samples. The process memory is None unless all of
    these have one.
    """
    needs = [sample.need for sample in samples[-_MAX_SAMPLES:]]
    parts = (
        [need.weights for need in needs],
        [need.inputs for need in needs],
        [need.outputs for need in needs],
        [need.planned for need in needs],
    )
    ratio = value / samples[-1].value
    weights, inputs, outputs, planned = (_extend(part, ratio) for part in parts)
    processes = [need.process for need in needs if need.process is not None]
    process = _extend(processes, ratio) if len(processes) == len(needs) else None
    return Need(weights, inputs, outputs, planned, process)


def _extend(numbers: list[int], ratio: float) -> int:
    """Extrapolate a sequence of byte counts, measured at dims that double, to a larger dim.

    The model is ``c + k * v**p``: ``p`` is the power by which the differences of neighbors
    grow, and ``k`` is fitted to all differences together, because one difference alone may
    contain whole regions of an arena.

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
    # With n steps up to the last dim L, they sum up to ``k * L**p * (1 - 2**(-p * n))``. Solved for
    # ``scale = k * L**p``, the part of the last number that grows.
    scale = sum(steps) / (1 - 2 ** (-power * len(steps)))
    return numbers[-1] + math.ceil(scale * (math.pow(ratio, power) - 1))
