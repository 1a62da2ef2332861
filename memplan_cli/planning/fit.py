"""The largest value of a dim that fits a memory size, searched by what each value needs.

Nothing here plans: `Evaluate` says what a binding needs. The need is taken to grow with
the dim, as sizes do; the answer names what the next value would need, so that anyone can
check the one step that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from memplan_cli.core.serialization import SPARSE, Keys
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.errors import SettingsError

LARGEST_DIM = 2**31 - 1
"""What no dim of a real run is above; a need that fits up to here does not depend on it."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one binding needs.

    Attributes:
        weights, inputs, outputs, planned: as in a report.
        process: the highest resident bytes of a process with a session, with weights and
            outputs; None: tensors have to fit, not the process.
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
"""From a binding to the bytes that it needs; None: more than any machine has."""


@dataclass(frozen=True, slots=True)
class Point:
    """A binding that fits, while the next value of its first symbol does not.

    Attributes:
        dims: the binding.
        need: the bytes that it needs.
        beyond: the bytes that the next value needs; None: more than any machine has.
    """

    dims: Mapping[str, int]
    need: Need
    beyond: Need | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingPoint:
    """A binding that fits, while the next value of its first symbol does not, as it is written.

    Attributes:
        dims: the binding.
        weights, inputs, outputs, planned, process, total: the bytes that it needs.
        beyond: the bytes that the next value needs, with the overhead; null: more than any
            machine has.
    """

    dims: Mapping[str, int]
    weights: int
    inputs: int
    outputs: int
    planned: int
    process: int | None = field(default=None, metadata=SPARSE)
    total: int
    beyond: int | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The bytes that a run with a binding took from the system.

    Attributes:
        dims: the binding.
        provider: ONNX Runtime's name of the execution provider.
        taken: the highest resident bytes of the process, or, if these are unknown, the bytes
            that the arena reserved, with the weights in it.
        inputs: the bytes of the inputs.
        of: ``process`` or ``arena``: whose bytes ``taken`` are.
        runs: how many values were run until this one.
    """

    dims: Mapping[str, int]
    provider: str
    taken: int
    inputs: int
    of: str = "process"
    runs: int = 1

    def total(self, overhead: int) -> int:
        """Return the bytes to compare with the memory size."""
        return self.taken + self.inputs + overhead


@dataclass(frozen=True, slots=True)
class ConfirmedRun:
    """The bytes that a run with a binding took from the system, as they are written.

    Attributes:
        dims: the binding.
        provider: ONNX Runtime's name of the execution provider.
        taken: the bytes of the process or of the arena.
        inputs: the bytes of the inputs.
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
        model: the model's file.
        memory: the memory size.
        overhead: bytes of the process that the search adds to every need.
        unknown: the dimensions that were searched for.
        dims: the numbers of the others.
        points: the bindings that fit; empty: not even 1 fits.
        least: the bytes that the smallest binding needs.
        expressions: the need of one plan for all values, by unit; empty: there is none.
        plans: the number of exact plans that the search made.
        confirmed: the run of the answer, if it was run.
        of: ``process`` if the predicted process has to fit, ``tensors`` if what is planned.
        warnings: remarks for the user.
    """

    json_keys: ClassVar[Keys] = (
        "model",
        "memory",
        "overhead",
        "of",
        "unknown",
        "dims",
        "passed",
        ("points", "rows"),
        "least",
        "expressions",
        "plans",
        ("confirmed", "run"),
        "warnings",
    )

    model: str
    memory: int
    overhead: int
    unknown: tuple[str, ...]
    dims: Mapping[str, int]
    points: tuple[Point, ...]
    least: Need | None
    expressions: Mapping[str, int] = field(default_factory=dict)
    plans: int = 0
    confirmed: Confirmation | None = None
    of: str = "tensors"
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether a binding fits, and did so when it was run."""
        if not self.points:
            return False
        run = self.confirmed
        return run is None or run.total(self.overhead) <= self.memory

    @property
    def rows(self) -> tuple[FittingPoint, ...]:
        """Return the points as they are written."""
        return tuple(
            FittingPoint(
                dims=point.dims,
                weights=point.need.weights,
                inputs=point.need.inputs,
                outputs=point.need.outputs,
                planned=point.need.planned,
                process=point.need.process,
                total=point.need.total,
                beyond=None if point.beyond is None else point.beyond.total + self.overhead,
            )
            for point in self.points
        )

    @property
    def run(self) -> ConfirmedRun | None:
        """Return the confirmation as it is written."""
        run = self.confirmed
        if run is None:
            return None
        total = run.total(self.overhead)
        return ConfirmedRun(
            run.dims, run.provider, run.taken, run.inputs, run.of, run.runs, total
        )


@dataclass(frozen=True, slots=True)
class Question:
    """Which symbol is looked for, with which values for the others, in how many bytes."""

    symbol: str
    others: Mapping[str, int]
    limit: int


def largest(evaluate: Evaluate, question: Question, guess: int = 1) -> Point | None:
    """Return the largest value of a symbol that fits; None where 1 does not.

    Args:
        evaluate: What a binding needs.
        question: The symbol and the bytes.
        guess: A value near the answer: each factor of two that it is off costs a step.

    Raises:
        SettingsError: the need does not depend on the symbol.
    """

    def need(value: int) -> Need | None:
        return evaluate({**question.others, question.symbol: value})

    def fits(value: int) -> bool:
        found = need(value)
        return found is not None and found.total <= question.limit

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
    found = need(low)
    assert found is not None  # noqa: S101 - it fits
    return Point({**question.others, question.symbol: low}, found, need(high))


def _bracket(fits: Callable[[int], bool], guess: int) -> tuple[int, int]:
    """Return a value that fits (0: none does) and a larger one that does not."""
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
    evaluate: Evaluate, question: Question, more: tuple[str, ...], guess: Guess
) -> Iterator[Point]:
    """Yield the largest value of a symbol for powers of two of the others, while any fit.

    Args:
        evaluate: What a binding needs.
        question: The symbol looked for.
        more: The other symbols; with none there is one point.
        guess: A value near the answer for the others' values.
    """
    if not more:
        point = largest(evaluate, question, guess(question))
        if point is not None:
            yield point
        return
    first, *rest = more
    value = 1
    while value <= LARGEST_DIM:
        others = {**question.others, first: value}
        inner = Question(question.symbol, others, question.limit)
        points = tuple(frontier(evaluate, inner, tuple(rest), guess))
        if not points:
            return
        yield from points
        value *= 2


Guess = Callable[[Question], int]
"""A value near the answer."""


def on_expressions(totals: Mapping[str, int], question: Question) -> int:
    """Return the largest value for which a sum by unit fits: one plan for all values.

    0 where 1 does not fit; arithmetic only, no plan is made.
    """

    def need(dims: Mapping[str, int]) -> Need | None:
        return Need(0, 0, 0, sum(c * unit_value(unit, dims) for unit, c in totals.items()))

    try:
        point = largest(need, question)
    except (SettingsError, ValueError):
        return 1
    return 0 if point is None else point.dims[question.symbol]
