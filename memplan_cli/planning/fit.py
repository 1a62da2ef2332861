"""The largest value of a dim that fits a memory size, searched by what each value needs.

Nothing here plans: `Evaluate` says what a binding needs. The need is taken to grow with
the dim, as sizes do; the answer names what the next value would need, so that anyone can
check the one step that matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from memplan_cli.core.serialization import Json, Key, Keys, sparse, to_json
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.errors import SettingsError

SCHEMA = "memplan.fit/1"

LARGEST_DIM = 2**31 - 1
"""What no dim of a real run is above; a need that fits up to here does not depend on it."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that one binding needs: what the contract calls weights, inputs, outputs, planned.

    ``process`` is the highest of a process with a session, weights and outputs included, where
    that is what has to fit.
    """

    json_keys: ClassVar[Keys] = (
        "weights",
        "inputs",
        "outputs",
        "planned",
        *sparse("process"),
        "total",
    )

    weights: int
    inputs: int
    outputs: int
    planned: int
    process: int | None = None

    @property
    def total(self) -> int:
        """All of it together."""
        if self.process is not None:
            return self.process + self.inputs
        return self.weights + self.inputs + self.outputs + self.planned


Evaluate = Callable[[Mapping[str, int]], Need | None]
"""What a binding needs; None where it is more than any machine has."""


@dataclass(frozen=True, slots=True)
class Point:
    """One answer: these values fit, and the next value of the first symbol does not.

    ``beyond`` is what that next value needs, None where no machine has it.
    """

    dims: Mapping[str, int]
    need: Need
    beyond: Need | None


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a run with these values really took from the system, in bytes.

    Attributes:
        dims: the values.
        provider: where it ran.
        taken: the highest of its process; ``of`` is ``process``. Where the system does not
            say that, what the arena reserved, weights in it included; ``of`` is ``arena``.
        inputs: what the caller holds.
        runs: how many values were run until this one.
    """

    dims: Mapping[str, int]
    provider: str
    taken: int
    inputs: int
    of: str = "process"
    runs: int = 1

    def total(self, overhead: int) -> int:
        """What to hold against the memory: what was taken, inputs, overhead."""
        return self.taken + self.inputs + overhead


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest values that fit a memory size; no points: not even 1 fits."""

    schema: ClassVar[str] = SCHEMA
    json_keys: ClassVar[Keys] = (
        "schema",
        "model",
        "memory",
        "overhead",
        "of",
        "unknown",
        "dims",
        "passed",
        Key("points", "rows"),
        "least",
        "expressions",
        "plans",
        Key("confirmed", "run"),
        "warnings",
    )

    model: str
    memory: int
    overhead: int
    unknown: tuple[str, ...]
    dims: Mapping[str, int]
    points: tuple[Point, ...]
    least: Need | None
    """What the smallest binding needs."""
    expressions: Mapping[str, int] = field(default_factory=dict)
    """The need as a sum by unit, of one plan for all values; empty where there is none."""
    plans: int = 0
    """How many exact plans the search made."""
    confirmed: Confirmation | None = None
    of: str = "tensors"
    """What has to fit: ``process`` as predicted, or ``tensors`` as planned."""
    warnings: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something fits, and, where it was run, really did."""
        if not self.points:
            return False
        seen = self.confirmed
        return seen is None or seen.total(self.overhead) <= self.memory

    @property
    def rows(self) -> tuple[Json, ...]:
        """Return the points as a file has them: what is beyond holds the overhead too."""
        return tuple(
            {
                "dims": point.dims,
                **to_json(point.need),
                "beyond": point.beyond and point.beyond.total + self.overhead,
            }
            for point in self.points
        )

    @property
    def run(self) -> Json | None:
        """Return what the run took, with the overhead as one number too."""
        seen = self.confirmed
        return None if seen is None else {**to_json(seen), "total": seen.total(self.overhead)}


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
