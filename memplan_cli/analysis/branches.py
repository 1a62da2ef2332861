"""Branches: the block in which each var is made, and the vars that exclude one another.

An If runs one of its subgraphs, and the value of its output *is* that subgraph's result. So
the result may be made where the output will be, and in the other subgraph likewise:

    then:  t  y1 --+
    else:  u  y2 --+--> z        y1, y2 and z may be one buffer: y1 excludes y2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.core.program import Block, Op, Program, VarId

Place = tuple[tuple[int, int], ...]
"""The way from the top to a block: each control-flow op's index, then which subgraph.

Subgraphs of which several may run are counted from -1 downwards.
"""


class Choice(NamedTuple):
    """An op that runs one of its subgraphs, and the place of each of them."""

    op: Op
    bodies: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything in a program is made.

    Attributes:
        of: the block of each var that an op makes or that a subgraph is given.
        choices: the ops that run one of their subgraphs, those inside of others first.
    """

    of: Mapping[VarId, Place]
    choices: tuple[Choice, ...]

    def is_inside(self, var: VarId, place: Place) -> bool:
        """Whether a var is made in a block, or below it."""
        return self.of[var][: len(place)] == place

    def are_exclusive(self, one: VarId, other: VarId) -> bool:
        """Whether two vars are made in different branches of one op."""
        for here, there in zip(self.of[one], self.of[other], strict=False):
            if here != there:
                return here[0] == there[0] and here[1] >= 0 and there[1] >= 0
        return False


def find_places(program: Program, runs_one: Callable[[Op], bool]) -> Places:
    """Return where everything is made; ``runs_one`` says of an op that one subgraph is run."""
    of: dict[VarId, Place] = {}
    choices: list[Choice] = []
    _collect(program.body, (), runs_one, of, choices)
    return Places(of, tuple(choices))


def _collect(
    block: Block,
    place: Place,
    runs_one: Callable[[Op], bool],
    of: dict[VarId, Place],
    choices: list[Choice],
) -> None:
    of.update(dict.fromkeys(block.inputs, place))
    for index, op in enumerate(block.ops):
        of.update(dict.fromkeys(op.outputs, place))
        if not op.bodies:
            continue
        one = runs_one(op)
        numbers = range(len(op.bodies)) if one else range(-1, -1 - len(op.bodies), -1)
        inner = tuple((*place, (index, number)) for number in numbers)
        for body, there in zip(op.bodies, inner, strict=True):
            _collect(body, there, runs_one, of, choices)
        if one:
            choices.append(Choice(op, inner))
