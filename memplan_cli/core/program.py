"""Programs: vars, ops and blocks, and nothing of any file format.

The order of the ops in a block is the schedule. Blocks nest: If, Loop, Scan and
SequenceMap contain the blocks they run. Ids are unique over the whole program, so a table from
id to anything needs no scopes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, NewType

from memplan_cli.core.operators import is_random, lookup

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    def reads(self) -> tuple[VarId, ...]:
        """The vars that the op reads, once each: inputs, then captures of its subgraphs."""
        if not self.bodies:
            inputs = self.inputs
            if len(set(inputs)) == len(inputs) and "" not in inputs:  # nearly always
                return inputs
            return tuple(dict.fromkeys(filter(None, inputs)))
        captured = (var for body in self.bodies for var in captures(body))
        return tuple(dict.fromkeys((*filter(None, self.inputs), *captured)))

    @property
    def is_random(self) -> bool:
        """Whether two runs of this op may give different values for the same inputs."""
        return is_random(self) or any(op.is_random for body in self.bodies for op in body.ops)


@dataclass(frozen=True)
class Dataflow:
    """The edges between the ops of one block. Each op is named by its index in the block.

    An op with subgraphs is one node that also reads the captures of its subgraphs.
    """

    ops: tuple[Op, ...]

    @cached_property
    def reads(self) -> tuple[tuple[VarId, ...], ...]:
        """The vars that each op reads, once each."""
        return tuple([op.reads for op in self.ops])

    @cached_property
    def producer(self) -> Mapping[VarId, int]:
        """The op that produces each var."""
        return {var: at for at, op in enumerate(self.ops) for var in op.outputs if var}

    @cached_property
    def consumers(self) -> Mapping[VarId, Sequence[int]]:
        """The ops that read each var, in order. Vars that no op reads are missing."""
        found: dict[VarId, list[int]] = {}
        for at, variables in enumerate(self.reads):
            for var in variables:
                found.setdefault(var, []).append(at)
        return found

    def ancestors(self, targets: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that the targets depend on."""
        reads, producer = self.reads, self.producer
        stack = [producer[var] for var in targets if var in producer]
        found = set(stack)
        while stack:
            for var in reads[stack.pop()]:
                above = producer.get(var, -1)
                if above >= 0 and above not in found:
                    found.add(above)
                    stack.append(above)
        return frozenset(found)

    def descendants(self, sources: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that depend on one of the sources."""
        stack = list(sources)
        found: set[int] = set()
        while stack:
            for consumer in self.consumers.get(stack.pop(), ()):
                if consumer not in found:
                    found.add(consumer)
                    stack.extend(self.ops[consumer].outputs)
        return frozenset(found)


@dataclass(frozen=True)
class Block:
    """Ops in the order in which they run, with the inputs and outputs of the block.

    ``path`` is ``""`` at the top, else ``<path of the op's block>/<op's label>.<attribute>``.
    """

    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    ops: tuple[Op, ...]
    path: str = ""

    @cached_property
    def dataflow(self) -> Dataflow:
        """The producer and the consumers of each var, found once for a block."""
        return Dataflow(self.ops)


@dataclass(frozen=True, slots=True)
class Program:
    """A model: its top block and one flat table of every var in it."""

    name: str
    body: Block
    vars: Mapping[VarId, Var]
    overridable: frozenset[VarId] = frozenset()
    """Weights that are inputs of the graph too: defaults, which a caller may replace."""

    @property
    def dataflow(self) -> Dataflow:
        """The producer and the consumers of each var of the top block."""
        return self.body.dataflow

    def with_ops(self, ops: Iterable[Op], vars_: Mapping[VarId, Var] | None = None) -> Program:
        """Return the program with other ops in its top block, and perhaps another var table."""
        body = replace(self.body, ops=tuple(ops))
        return replace(self, body=body, vars=self.vars if vars_ is None else vars_)


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
