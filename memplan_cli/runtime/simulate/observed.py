"""Branches, iterations and sizes that data decides, as one run of a model shows them.

Each op of a block runs once in every frame of that block, so the n-th event of a node
belongs to the n-th frame of its block, in whatever order the ops of a frame ran.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, VarId, walk
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.simulate.trace import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Op, Program


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """The bytes that an op wrote into a variable, and the exclusive or of their dims.

    The runtime keys its memory patterns by the exclusive or of the dims of all feeds.
    """

    bytes: int
    key: int


@dataclass(frozen=True, slots=True)
class Observed:
    """One run, for the feeds that it was given.

    Attributes:
        written: for each var, one entry for each frame of its block, in order.
        turns: for each subgraph, by path, how often it ran each time its control-flow node did.
        packed: weights that no kernel was handed, as all had packed them for themselves.
    """

    written: Mapping[VarId, tuple[WrittenTensor, ...]] = field(default_factory=dict)
    turns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    packed: frozenset[VarId] = frozenset()


Tensors = Sequence[tuple[str, Sequence[int]]]
"""Type and dims of each."""


@dataclass(frozen=True, slots=True)
class Event:
    """A kernel that was done: what its node writes; the tensors it was handed and wrote."""

    writes: tuple[str, ...]
    read: Tensors
    wrote: Tensors


def sorted_out(program: Program, events: Iterable[Event]) -> Observed:
    """Return what the events of one run say of a program.

    They come in the order in which the kernels were done: a subgraph's before
    those of its control-flow node.
    """
    producer = {var: op for _, op in walk(program.body) for var in op.outputs if var}
    first = {
        var: body.path
        for _, op in walk(program.body)
        for body in op.bodies
        for var in _first_written(body.ops)
    }
    runs: dict[str, int] = defaultdict(int)
    counted: dict[str, int] = defaultdict(int)
    written: dict[VarId, list[WrittenTensor]] = defaultdict(list)
    turns: dict[str, list[int]] = defaultdict(list)
    packed: set[VarId] = set()
    for event in events:
        op = producer.get(VarId(event.writes[0])) if event.writes else None
        if op is None:
            continue
        _note(program, op, event.wrote, written)
        packed.update(_packed(program, op, event.read))
        for body in op.bodies:
            turns[body.path].append(runs[body.path] - counted[body.path])
            counted[body.path] = runs[body.path]
        if (path := first.get(VarId(event.writes[0]))) is not None:
            runs[path] += 1
    return Observed(
        {var: tuple(entries) for var, entries in written.items()},
        {path: tuple(counts) for path, counts in turns.items()},
        frozenset(packed),
    )


def _first_written(ops: Sequence[Op]) -> tuple[VarId, ...]:
    """Return a var whose writes tell how often a subgraph ran; none of an empty subgraph."""
    return next(((var,) for op in ops for var in op.outputs if var), ())


def _note(
    program: Program,
    op: Op,
    wrote: Tensors,
    written: dict[VarId, list[WrittenTensor]],
) -> None:
    """Write down the tensors of one event; sequences have none, and are left out."""
    names = [var for var in op.outputs if var and _is_tensor(program, var)]
    if len(names) != len(wrote):
        return
    for var, (kind, shape) in zip(names, wrote, strict=True):
        size = bytes_of(dtype_of(kind), tuple(shape), {})
        if size is not None:
            found, before = WrittenTensor(size, reduce(xor, shape, 0)), written[var][-1:]
            # Long loops write the same again and again: one object tells that soonest.
            written[var].append(before[0] if before == [found] else found)


def _packed(program: Program, op: Op, read: Tensors) -> Iterator[VarId]:
    """Yield the weights among an op's inputs that are missing from what it was handed."""
    left = [tuple(shape) for _, shape in read]
    names = [var for var in op.inputs if var and _is_tensor(program, var)]
    if op.bodies or len(names) <= len(left):
        return
    for var in names:
        facts = program.vars[var]
        if facts.origin is not Origin.WEIGHT or (left and left[0] == facts.shape):
            left = left[1:]
        else:
            yield var


def _is_tensor(program: Program, var: VarId) -> bool:
    return not program.vars[var].dtype.startswith(("sequence", "optional", "map"))
