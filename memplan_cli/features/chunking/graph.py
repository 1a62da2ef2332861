"""A program's top block as chunking sees it: its edges, its bytes, the splits of its ops."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from memplan_cli.core.operators import NCHWC
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.chunking.axes.table import splits
from memplan_cli.features.chunking.axes.terms import Facts, Node, Role, node_of
from memplan_cli.features.chunking.axes.windows import ROWS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    import numpy as np

    from memplan_cli.core.program import Dataflow, Op, Program, VarId
    from memplan_cli.features.chunking.axes.terms import Split

    Array = np.ndarray[Any, np.dtype[np.int64]]

_FEW_ROWS = 8
"""Rows below which no two pieces of them keep the bits."""


@dataclass(frozen=True)
class Graph:
    """What growing and rewriting regions ask of a program; ops are their indices.

    Attributes:
        kept: Vars that stay one tensor: excluded ones, the loss.
        blocked: Vars whose channels lie in blocks behind the columns, whatever their dims say.
    """

    program: Program
    facts: Facts
    kept: frozenset[VarId]
    results: frozenset[VarId]
    weights: frozenset[VarId]
    blocked: frozenset[VarId]
    _nodes: dict[int, Node | None] = field(default_factory=dict, repr=False)
    _splits: dict[int, tuple[Split, ...]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        program: Program,
        facts: Facts,
        kept: Collection[VarId] = (),
    ) -> Graph:
        """Return the graph of a program."""
        weights = {v.id for v in program.vars.values() if v.origin is Origin.WEIGHT}
        results = frozenset(program.body.outputs)
        blocked = frozenset(_blocked(program.body.ops))
        return cls(
            program,
            facts,
            frozenset(kept),
            results,
            frozenset(weights),
            blocked,
        )

    @property
    def flow(self) -> Dataflow:
        """The producers and consumers of the top block."""
        return self.program.dataflow

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops of the top block."""
        return self.program.body.ops

    def node(self, at: int) -> Node | None:
        """Return an op with its shapes; None where some dim is not a number."""
        if at not in self._nodes:
            self._nodes[at] = node_of(self.ops[at], self.program, self.facts)
        return self._nodes[at]

    def splits(self, at: int) -> tuple[Split, ...]:
        """Return the ways to compute an op in pieces; none for what has to stay whole."""
        if at not in self._splits:
            node = self.node(at)
            stays = any(var in self.kept for var in self.ops[at].outputs)
            found = () if node is None or stays else splits(node)
            self._splits[at] = tuple(
                each
                for each in found
                if self._leaves_weights(at, each) and self._keeps_blocks(at, each)
            )
        return self._splits[at]

    def _keeps_blocks(self, at: int, split: Split) -> bool:
        """Whether only samples and rows are cut of what has its channels in blocks."""
        op, block = self.ops[at], self.facts.block
        pairs = (
            *zip(op.inputs, split.inputs, strict=True),
            *zip(op.outputs, split.outputs, strict=True),
        )
        cut = [
            (var, part.axis) for var, part in pairs if part is not None and var in self.blocked
        ]
        return all(
            axis == 0 or (axis == ROWS and block > 0 and self.dims(var)[1] % block == 0)
            for var, axis in cut
        )

    def _leaves_weights(self, at: int, split: Split) -> bool:
        """Whether weights are not copied: masks may be sliced, columns are cut in the file."""
        op = self.ops[at]
        made = sum(self.bytes(var) for var in op.outputs if var)
        cut = [
            var
            for var, part in zip(op.inputs, split.inputs, strict=True)
            if part is not None and var in self.weights
        ]
        if split.role is Role.FREE:
            return all(self.bytes(var) <= made for var in cut)
        return not cut or (
            self._has_few_rows(at) and all(self._is_own(at, var) for var in cut)
        )

    def _has_few_rows(self, at: int) -> bool:
        """Whether a product has too few rows to be cut along them."""
        dims = self.dims(self.ops[at].outputs[0])
        return prod(dims[:-1]) < _FEW_ROWS

    def _is_own(self, at: int, var: VarId) -> bool:
        """Whether a weight of the file's is read by one op alone, so that it is kept once."""
        program, reads = self.program, self.ops[at].inputs
        return (
            program.vars[var].dtype == "float32"
            and self.consumers(var) == (at,)
            and reads.count(var) == 1
            and var not in program.overridable
            and var not in self.results
            and var not in self.flow.producer
        )

    def bytes(self, var: VarId) -> int:
        """Return how many bytes a var has; 0 where that is no number."""
        facts = self.program.vars[var]
        size = size_of(facts.shape, facts.dtype)
        return 0 if size is None or size.symbols else size.coefficient

    @cached_property
    def _spans(self) -> tuple[Mapping[VarId, int], Array, Array, Array]:
        """The vars that ops make: which comes where, who makes them, who reads last, bytes."""
        import numpy as np

        vars_ = {var: at for at, var in enumerate(self.flow.producer)}
        starts = np.array([self.flow.producer[var] for var in vars_], np.int64)
        stops = np.array([self._last(var) for var in vars_], np.int64)
        sizes = np.array([self.bytes(var) for var in vars_], np.int64)
        return vars_, starts, stops, sizes

    def _last(self, var: VarId) -> int:
        return len(self.ops) if var in self.results else max(self.consumers(var), default=-1)

    def passing(self, first: int, last: int, counted: Collection[VarId]) -> int:
        """Return the bytes made before some ops and read behind them, but for some vars."""
        places, starts, stops, sizes = self._spans
        there = (starts < first) & (stops > last)
        known = [places[var] for var in counted if var in places]
        return int(sizes[there].sum()) - int(sizes[known][there[known]].sum())

    def dims(self, var: VarId) -> tuple[int, ...]:
        """Return the shape of a var whose dims are numbers."""
        return tuple(dim for dim in self.program.vars[var].shape or () if isinstance(dim, int))

    def above(self, at: int) -> Iterator[int]:
        """Yield the ops that make what an op reads."""
        for var in self.flow.reads[at]:
            if var in self.flow.producer:
                yield self.flow.producer[var]

    def consumers(self, var: VarId) -> tuple[int, ...]:
        """Return the ops that read a var, subgraphs' captures included."""
        return tuple(self.flow.consumers.get(var, ()))


def _blocked(ops: Iterable[Op]) -> set[VarId]:
    """Return the vars in blocks of channels: operators of one element keep what they are given."""
    found: set[VarId] = set()
    for op in ops:
        if op.domain == NCHWC:
            found.update(() if op.type == "ReorderOutput" else op.outputs)
        elif not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


def outside(
    graph: Graph, ops: Mapping[int, Split], copied: Collection[int] = ()
) -> tuple[list[VarId], list[VarId]]:
    """Return what ops read from others, and what they make for others, in order.

    Weights are left out: they are there anyway. Copied ops make nothing for others, who read
    what the op itself has made.
    """
    made = {var for at in ops for var in graph.ops[at].outputs if var}
    order = sorted(ops)
    reads = dict.fromkeys(var for at in order for var in graph.flow.reads[at])
    given = [var for var in reads if var not in made and var not in graph.weights]
    results = [
        var
        for at in order
        if at not in copied
        for var in graph.ops[at].outputs
        if var and (var in graph.results or any(r not in ops for r in graph.consumers(var)))
    ]
    return given, results
