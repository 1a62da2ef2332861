"""Programs: vars, ops and blocks, and nothing of any file format.

The order of the ops in a block is the schedule. Blocks nest: If, Loop, Scan and
SequenceMap contain the blocks they run. Ids are unique over the whole program, so a table from
id to anything needs no scopes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, NewType

from memplan_cli.core.operators import is_random, lookup

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VarId = NewType("VarId", str)


def var_id(block: str, name: str) -> VarId:
    """Return ``block/name``, or the name at the top: a var by its block's path and its name."""
    return VarId(f"{block}/{name}" if block else name)


"""Unique in a program: the ONNX name at the top, ``<block path>/<name>`` in a subgraph."""

Dim = int | str | None
"""A number, an expression over named symbols (``batch``, ``2*seq``), or unknown."""

Shape = tuple[Dim, ...]

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Origin(Enum):
    """Where a var's value comes from."""

    INPUT = "input"
    """A graph input that is no initializer."""
    WEIGHT = "weight"
    """An initializer or a Constant's output: its data is in the model; never planned."""
    OP = "op"
    """The result of an op, in any block."""
    BODY_INPUT = "body input"
    """Given to a subgraph by its control-flow op: a trip count, a carried value, a slice."""


# A large model has tens of thousands of vars and ops: named tuples are made in a third of the
# time that frozen dataclasses take.


class Var(NamedTuple):
    """A tensor value, defined once.

    ``dtype`` is the numpy name, or a type in words (``sequence(float32)``) for what is no
    dense tensor. ``shape`` is None when even the rank is not known.
    """

    id: VarId
    dtype: str
    shape: Shape | None
    origin: Origin
    name: str = ""
    block: str = ""


_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def own_name(name: str) -> str:
    """Return a node's name, ``""`` where it is like an index: ``#7`` is the seventh node."""
    return "" if name[:1] == "#" and name[1:].isdecimal() else name


def label(name: str, kind: str, source: int) -> str:
    """Return what a node is called: its name, or its type and index where it has none."""
    return own_name(name) or f"{kind}#{source}"


class Op(NamedTuple):
    """A node. ``inputs`` and ``outputs`` keep their positions; an omitted one is ``""``.

    ``source`` is the index, in the file's block, of the node it stands for: a recomputed
    copy shares it with its twin.
    """

    name: str
    type: str
    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    bodies: tuple[Block, ...] = ()
    domain: str = ""
    source: int = -1
    attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES

    @property
    def repeats(self) -> bool:
        """Whether the subgraphs may run more than once."""
        return bool(self.bodies) and lookup(self.domain, self.type).repeats_body

    @property
    def label(self) -> str:
        """The name to show: the node's, or its type and index where it has none."""
        return label(self.name, self.type, self.source)

    @property
    def is_random(self) -> bool:
        """Whether two runs of this op may give different values for the same inputs."""
        return is_random(self) or any(op.is_random for body in self.bodies for op in body.ops)


@dataclass(frozen=True, slots=True)
class Block:
    """Ops in the order in which they run, with what the block is given and gives.

    ``path`` is ``""`` at the top, else ``<path of the op's block>/<op's label>.<attribute>``.
    """

    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    ops: tuple[Op, ...]
    path: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """A model: its top block and one flat table of every var in it."""

    name: str
    body: Block
    vars: Mapping[VarId, Var]
    overridable: frozenset[VarId] = frozenset()
    """Weights that are inputs of the graph too: defaults, which a caller may replace."""


def walk(block: Block) -> Iterator[tuple[Block, Op]]:
    """Yield every op with its block, subgraphs after their op, in order of execution."""
    stack = [iter([(block, op) for op in block.ops])]
    while stack:
        step = next(stack[-1], None)
        if step is None:
            stack.pop()
            continue
        yield step
        stack.extend(
            iter([(body, op) for op in body.ops]) for body in reversed(step[1].bodies)
        )


def blocks(block: Block) -> Iterator[Block]:
    """Yield this block and every block below it, outer ones first."""
    stack = [block]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(body for op in reversed(current.ops) for body in reversed(op.bodies))


def captures(block: Block) -> tuple[VarId, ...]:
    """Return what a block, or any block below it, reads from outside of it, in order."""
    defined: set[VarId] = set()
    read: dict[VarId, None] = {}
    for inner in blocks(block):
        defined.update(inner.inputs)
        for op in inner.ops:
            defined.update(op.outputs)
            read.update(dict.fromkeys(op.inputs))
        read.update(dict.fromkeys(inner.outputs))
    return tuple(var for var in read if var and var not in defined)


def intermediates(program: Program) -> tuple[VarId, ...]:
    """Return the vars that ops produce, in any block, less the graph's outputs.

    What an op gives to its subgraph (a carried value, a slice) is one too: it needs memory
    that nobody outside the model gives.
    """
    results = frozenset(program.body.outputs)
    made, given = Origin.OP, Origin.BODY_INPUT
    return tuple(
        [
            identity
            for identity, var in program.vars.items()
            if (var.origin is made or var.origin is given) and identity not in results
        ]
    )
