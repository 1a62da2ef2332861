"""Programs: a model as vars, ops and blocks, independent of any file format.

The order of the ops in a block is the schedule. Blocks nest: If, Loop, Scan and SequenceMap contain
the blocks that they run. Ids of vars are unique in the whole program, so one flat table can map
every var to a property.
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
"""Unique in a program: the ONNX name in the main graph, ``<block path>/<name>`` in a subgraph.

If that is taken, ``'`` is appended.
"""


def var_id(block: str, name: str) -> VarId:
    """Return the id of a var by the path of its block (empty: the main graph) and its ONNX name."""
    return VarId(f"{block}/{name}" if block else name)


Dim = int | str | None
"""A number, an expression over symbols (``batch``, ``2*seq``), or None: unknown."""

Shape = tuple[Dim, ...]

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class Origin(Enum):
    """Where the value of a var comes from."""

    INPUT = "input"
    """A graph input that is not an initializer."""
    WEIGHT = "weight"
    """An initializer or a Constant's output: stored in the model, never planned."""
    OP = "op"
    """An output of an op, in any block."""
    BODY_INPUT = "body input"
    """An input of a subgraph, which its op provides: a trip count, a carried value, a slice."""


# Vars and ops are named tuples, because a large model has tens of thousands of them: creating a
# named tuple takes a third of the time of a frozen dataclass.


class Var(NamedTuple):
    """A value of the graph, defined once.

    Attributes:
        dtype: the numpy name of the element type; for a value that is not a dense tensor a text
            such as ``sequence(float32)``.
        shape: None if the rank is unknown.
        name: the ONNX name.
        block: the path of the block that defines it; empty: the main graph.
    """

    id: VarId
    dtype: str
    shape: Shape | None
    origin: Origin
    name: str = ""
    block: str = ""


_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def own_name(name: str) -> str:
    """Return the name of a node, or ``""`` if it looks like the index of a nameless node: ``#7``."""
    return "" if name[:1] == "#" and name[1:].isdecimal() else name


def label(name: str, kind: str, source: int) -> str:
    """Return the name of a node, or ``Type#index`` if it has none."""
    return own_name(name) or f"{kind}#{source}"


class Op(NamedTuple):
    """A node.

    Attributes:
        inputs, outputs: in the positions of the ONNX node; an omitted one is ``""``.
        bodies: its subgraphs.
        source: the index of the ONNX node in its graph; -1: no node of the file. Copies of an op
            for recomputation have the same source.
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
        """The name of the node for messages, or ``Type#index`` if it has none."""
        return label(self.name, self.type, self.source)

    @property
    def reads(self) -> tuple[VarId, ...]:
        """The vars that the op reads, once each: inputs, then captures of its subgraphs."""
        if not self.bodies:
            inputs = self.inputs
            if len(set(inputs)) == len(inputs) and "" not in inputs:  # the usual case, fast
                return inputs
            return tuple(dict.fromkeys(filter(None, inputs)))
        captured = (var for body in self.bodies for var in captures(body))
        return tuple(dict.fromkeys((*filter(None, self.inputs), *captured)))

    @property
    def is_random(self) -> bool:
        """Whether two runs of this op may give different values for the same inputs.

        An op with subgraphs is random if any op in them is.
        """
        return is_random(self) or any(op.is_random for body in self.bodies for op in body.ops)


@dataclass(frozen=True)
class Dataflow:
    """The edges between the ops of one block. Ops are denoted by their index in the block.

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
        return {var: index for index, op in enumerate(self.ops) for var in op.outputs if var}

    @cached_property
    def consumers(self) -> Mapping[VarId, Sequence[int]]:
        """The ops that read each var, in order. Vars that no op reads are missing."""
        consumers: dict[VarId, list[int]] = {}
        for index, variables in enumerate(self.reads):
            for var in variables:
                consumers.setdefault(var, []).append(index)
        return consumers

    def ancestors(self, targets: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that the targets depend on, directly or not."""
        reads, producer = self.reads, self.producer
        stack = [producer[var] for var in targets if var in producer]
        ancestors = set(stack)
        while stack:
            for var in reads[stack.pop()]:
                index = producer.get(var)
                if index is not None and index not in ancestors:
                    ancestors.add(index)
                    stack.append(index)
        return frozenset(ancestors)

    def descendants(self, sources: Iterable[VarId]) -> frozenset[int]:
        """Return the ops that depend on one of the sources, directly or not."""
        stack = list(sources)
        descendants: set[int] = set()
        while stack:
            for consumer in self.consumers.get(stack.pop(), ()):
                if consumer not in descendants:
                    descendants.add(consumer)
                    stack.extend(self.ops[consumer].outputs)
        return frozenset(descendants)


@dataclass(frozen=True)
class Block:
    """The main graph or a subgraph.

    Attributes:
        inputs, outputs: the vars that it gets and returns.
        ops: in the order in which they run.
        path: empty for the main graph, otherwise ``<path of the outer block>/<label of the op>.<attribute>``.
    """

    inputs: tuple[VarId, ...]
    outputs: tuple[VarId, ...]
    ops: tuple[Op, ...]
    path: str = ""

    @cached_property
    def dataflow(self) -> Dataflow:
        """The producer and the consumers of each var, computed once for a block."""
        return Dataflow(self.ops)


@dataclass(frozen=True, slots=True)
class Program:
    """A model.

    Attributes:
        body: the main graph.
        vars: every var of every block, by its id.
        overridable: initializers that are graph inputs too, so that a caller may replace them.
    """

    name: str
    body: Block
    vars: Mapping[VarId, Var]
    overridable: frozenset[VarId] = frozenset()

    @property
    def dataflow(self) -> Dataflow:
        """The producer and the consumers of each var of the main graph."""
        return self.body.dataflow

    def with_ops(self, ops: Iterable[Op], vars_: Mapping[VarId, Var] | None = None) -> Program:
        """Return the program with other ops in its main graph. ``vars_`` None: the same vars."""
        body = replace(self.body, ops=tuple(ops))
        return replace(self, body=body, vars=self.vars if vars_ is None else vars_)


def walk(block: Block) -> Iterator[tuple[Block, Op]]:
    """Yield every op with its block, in order of execution, the ops of subgraphs after their op."""
    stack = [
        iter([(block, op) for op in block.ops])
    ]  # a stack, because blocks may nest deeply
    while stack:
        block_and_op = next(stack[-1], None)
        if block_and_op is None:
            stack.pop()
            continue
        yield block_and_op
        bodies = block_and_op[1].bodies
        stack.extend(iter([(body, op) for op in body.ops]) for body in reversed(bodies))


def blocks(block: Block) -> Iterator[Block]:
    """Yield a block and all blocks nested in it, outer ones first."""
    stack = [block]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(body for op in reversed(current.ops) for body in reversed(op.bodies))


def captures(block: Block) -> tuple[VarId, ...]:
    """Return the vars of outer blocks that a block, or a block nested in it, reads.

    They are in the order of `blocks`: those that a block reads come before those of the blocks in it.
    Outputs that are vars of outer blocks count as reads.
    """
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
    """Return the intermediates: all vars that ops of any block produce, except graph outputs.

    Inputs of subgraphs (a carried value, a slice) are intermediates too, because they need memory
    that no caller provides.
    """
    results = frozenset(program.body.outputs)
    produced, body_input = Origin.OP, Origin.BODY_INPUT
    return tuple(
        [
            identity
            for identity, var in program.vars.items()
            if (var.origin is produced or var.origin is body_input) and identity not in results
        ]
    )
