"""What two products read across each other, computed a second time along the other axis.

A training step reads the gradient of its logits twice: by rows for the gradient of what made
them, by columns for that of the weight. No axis suits both. The weight's product is given a
copy of the ops between, which can be put in pieces of columns, from statistics of rows:

    x ---- MatMul ---- LogSoftmax ---- ... ---- G ---- dX = G W'       by rows
            \\              | m, l                 \\
             \\             v                       X' G               sums over rows
              MatMul' ---- - m + l ---- ... ------ G' ---- dW = X' G'   by columns

``LogSoftmax(x)`` of ONNX Runtime is ``x - m - log(sum)``, in this order, with ``m`` the row's
maximum: at the maximum it is ``-log(sum)`` itself, its own largest element, so two reductions
that do not round give back what it subtracted, and the copy has its bits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Op, VarId
from memplan_cli.features.chunking.across import (
    crossed_chains,
    is_log_softmax,
    puts_one,
    staying,
)
from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.search import Found, search
from memplan_cli.features.chunking.state import sizes_with
from memplan_cli.features.chunking.writer import Writer, inserted_op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Attribute, Program
    from memplan_cli.features.chunking.across import Chain
    from memplan_cli.features.chunking.axes.terms import Dims
    from memplan_cli.ordering.terms import Terms

_AXES_BY_INPUT = 18
"""The opset since which ReduceMax is given its axes as an input."""

_SUFFIX = "__columns"


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A program with copies of ops for products across, and values of their constants."""

    program: Program
    constants: Mapping[VarId, Dims] = field(default_factory=dict)


def search_by_columns(graph: Graph, terms: Terms, found: Found, budget: int) -> Found:
    """Return what is found where products across read copies, if that comes nearer to a budget.

    Args:
        graph: The program as it is.
        terms: What is planned of it.
        found: What was found without copies.
        budget: Bytes.
    """
    copied = by_columns(graph, budget)
    if copied is None:
        return found
    program = copied.program
    sizes = sizes_with(program, graph.program, terms.sizes)
    facts = replace(graph.facts, constants={**graph.facts.constants, **copied.constants})
    own = Graph.of(program, facts, graph.kept)
    other = search(own, replace(terms, sizes=sizes), budget)
    if other.peak > budget:
        # One of the two passes may have stopped at what the other then has whole.
        tighter = search(own, replace(terms, sizes=sizes), budget // 2)
        other = min(other, tighter, key=lambda each: each.peak)
    if other.peak >= found.peak:
        return found
    kept = {
        var: each
        for var, each in copied.constants.items()
        if var in other.chunked.program.vars
    }
    chunked = replace(other.chunked, constants={**kept, **other.chunked.constants})
    work = (1 + other.extra) * other.work / found.work - 1 if found.work else 0.0
    return replace(other, chunked=chunked, before=found.before, extra=work, work=found.work)


def by_columns(graph: Graph, budget: int) -> Recomputed | None:
    """Return a program whose products across read copies; None where there is none.

    Args:
        graph: The program as it is.
        budget: Bytes; a tensor far below is no reason to compute it again.
    """
    writer = _CopyWriter(graph)
    for chain in crossed_chains(graph, budget):
        writer.copy(chain)
    return writer.finished() if writer.copied else None


class _CopyWriter:
    """Writes copies of ops before the products that read them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copied: set[int] = set()
        self._writer = Writer(graph, "columns")
        self._before: dict[int, list[Op]] = {}
        self._after: dict[int, list[Op]] = {}
        self._inputs: dict[int, dict[VarId, VarId]] = {}
        self._statistics: dict[int, tuple[VarId, VarId]] = {}

    def copy(self, chain: Chain) -> None:
        """Write a chain again, unless a part of it is already; its consumers read the copy."""
        if not self.copied.isdisjoint(chain.ops):
            return
        self.copied.update(chain.ops)
        # Who can take nothing but columns, as the sum over rows for a bias, reads them too.
        left = staying(self.graph, chain)
        consumers = [at for at in self.graph.consumers(chain.var) if at not in left]
        names: dict[VarId, VarId] = {}
        ops = self._before.setdefault(min(consumers), [])
        for at in chain.ops:
            ops += self._copies(at, chain, names)
        for at in consumers:
            self._inputs.setdefault(at, {})[chain.var] = names[chain.var]

    def _copies(self, at: int, chain: Chain, names: dict[VarId, VarId]) -> list[Op]:
        """Return what stands for an op of a chain; its results have new names."""
        op, node = self.graph.ops[at], self.graph.node(at)
        made = [var for var in op.outputs if var in chain.axes]
        names |= {var: self._writer.made(var, _SUFFIX) for var in made}
        axis = chain.axes[made[0]]
        if node is not None and is_log_softmax(node, axis):
            return self._normalised(at, axis, names)
        if node is not None and puts_one(self.graph, node, axis):
            return self._put(op, names)
        inputs = tuple(names.get(var, var) for var in op.inputs)
        outputs = tuple(names[var] if var in made else VarId("") for var in op.outputs)
        return [op._replace(name=f"{op.label}{_SUFFIX}", inputs=inputs, outputs=outputs)]

    def _normalised(self, at: int, axis: int, names: Mapping[VarId, VarId]) -> list[Op]:
        """Return ops that make a LogSoftmax of statistics of its rows, which are computed once."""
        op = self.graph.ops[at]
        if at not in self._statistics:
            highest = self._largest(op.inputs[0], at, axis, "_max")
            self._statistics[at] = highest, self._largest(op.outputs[0], at, axis, "_log")
        highest, less = self._statistics[at]
        shifted = self._writer.made(op.outputs[0], f"{_SUFFIX}_shifted")
        return [
            _inserted("Sub", (names.get(op.inputs[0], op.inputs[0]), highest), shifted),
            _inserted("Add", (shifted, less), names[op.outputs[0]]),
        ]

    def _largest(self, var: VarId, at: int, axis: int, suffix: str) -> VarId:
        """Write a reduction behind an op, and return what it makes."""
        dims = list(self.graph.dims(var))
        dims[axis] = 1
        made = self._writer.made(var, suffix, tuple(dims))
        told: Mapping[str, Attribute] = {"keepdims": 1}
        inputs: tuple[VarId, ...] = (var,)
        if self.graph.facts.opset < _AXES_BY_INPUT:
            told = {**told, "axes": (axis,)}
        else:
            inputs = (var, self._writer.constant((axis,)))
        op = _inserted("ReduceMax", inputs, made, told)
        self._after.setdefault(at, []).append(op)
        return made

    def _put(self, op: Op, names: Mapping[VarId, VarId]) -> list[Op]:
        """Return ops that add to one element of each row by comparing places with its own."""
        data, index, added = (names.get(var, var) for var in op.inputs)
        whole, made = self.graph.dims(op.outputs[0]), names[op.outputs[0]]
        below = self._writer.made(index, f"{_SUFFIX}_below", dtype="bool")
        above, own = (
            self._writer.made(index, f"{_SUFFIX}_{word}") for word in ("above", "own")
        )
        there = self._writer.made(op.outputs[0], f"{_SUFFIX}_there", dtype="bool")
        total = self._writer.made(op.outputs[0], f"{_SUFFIX}_sum")
        return [
            _inserted("Less", (index, self._writer.constant((0,))), below),
            _inserted("Add", (index, self._writer.constant((whole[-1],))), above),
            _inserted("Where", (below, above, index), own),
            _inserted("Equal", (own, self._writer.constant(tuple(range(whole[-1])))), there),
            _inserted("Add", (data, added), total),
            _inserted("Where", (there, total, data), made),
        ]

    def finished(self) -> Recomputed:
        """Return the program with the copies, without ops that only products now copied for read."""
        ops = [
            each
            for at, op in enumerate(self.graph.ops)
            for each in (
                *self._before.get(at, ()),
                op._replace(inputs=self._redirected(at)),
                *self._after.get(at, ()),
            )
        ]
        unread = self._unread(ops)
        ops = [op for op in ops if unread.isdisjoint(op.outputs)]
        vars_ = {var: facts for var, facts in self._writer.vars.items() if var not in unread}
        constants = {var: values for values, var in self._writer.constants.items()}
        return Recomputed(self.graph.program.with_ops(ops, vars_), constants)

    def _redirected(self, at: int) -> tuple[VarId, ...]:
        names = self._inputs.get(at, {})
        return tuple(names.get(var, var) for var in self.graph.ops[at].inputs)

    def _unread(self, ops: Sequence[Op]) -> frozenset[VarId]:
        """Return what copied ops make for nobody any more."""
        consumers = Counter(var for op in ops for var in op.reads)
        consumers.update(self.graph.results)
        gone: set[VarId] = set()
        for at in sorted(self.copied, reverse=True):
            made = [var for var in self.graph.ops[at].outputs if var]
            if not any(consumers[var] for var in made):
                gone.update(made)
                consumers.subtract(self.graph.flow.reads[at])
        return frozenset(gone)


def _inserted(
    kind: str,
    inputs: tuple[VarId, ...],
    output: VarId,
    attributes: Mapping[str, Attribute] | None = None,
) -> Op:
    """Return an added op that is named after its output."""
    return inserted_op(f"{output}/{kind.lower()}", kind, inputs, output, attributes)
