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

from memplan_cli.analysis.dataflow import op_reads
from memplan_cli.core.program import Op, Origin, Var, VarId
from memplan_cli.transforms.chunking.axes.table import operator
from memplan_cli.transforms.chunking.axes.terms import Role
from memplan_cli.transforms.chunking.schedule import INSERTED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memplan_cli.core.program import Attribute, Program
    from memplan_cli.transforms.chunking.axes.terms import Dims, Node
    from memplan_cli.transforms.chunking.graph import Graph

_PRODUCTS = frozenset({"MatMul", "Gemm", "com.microsoft:FusedMatMul"})

_SMALL = 4
"""What is so many times smaller than the tensor computed again stays as it is."""

_MOST_OPS = 32
"""Ops that are computed again for one product."""

_LARGE = 4
"""Tensors of less than the budget's part are no reason."""

_AXES_BY_INPUT = 18
"""The opset since which ReduceMax is given its axes as an input."""

_SIDES = frozenset({Role.ROWS, Role.COLUMNS})
"""What is split of one input of a product, the other being read whole."""

_SUFFIX = "__columns"


@dataclass(frozen=True, slots=True)
class Recomputed:
    """A program with copies of ops for products across, and values of their constants."""

    program: Program
    constants: Mapping[VarId, Dims] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Chain:
    """What a product reads, and the ops that make it from small tensors.

    Attributes:
        reader: The product.
        var: What it reads.
        axes: The axis along which each result is cut.
        ops: In their order.
        has_statistics: Whether some op mixes that axis, but for statistics of rows.
    """

    reader: int
    var: VarId
    axes: Mapping[VarId, int]
    ops: tuple[int, ...]
    has_statistics: bool


def by_columns(graph: Graph, budget: int) -> Recomputed | None:
    """Return a program whose products across read copies; None where there is none.

    Args:
        graph: The program as it is.
        budget: Bytes; a tensor far below is no reason to compute it again.
    """
    chains = [
        chain
        for at in range(len(graph.ops))
        for chain in _chains(graph, at, budget)
        if _is_crossed(graph, chain) and _frees(graph, chain)
    ]
    writer = _Writer(graph)
    for chain in sorted(chains, key=lambda each: (not each.has_statistics, each.reader)):
        writer.copy(chain)
    return writer.finished() if writer.copied else None


def _chains(graph: Graph, at: int, budget: int) -> Iterator[_Chain]:
    """Yield what a product's large inputs are made by, along the axis that is not summed."""
    op = graph.ops[at]
    if operator(op) not in _PRODUCTS:
        return
    for split in graph.splits(at):
        cut = [place for place in (0, 1) if split.inputs[place] is not None]
        if len(cut) != 1 or split.role not in _SIDES:
            continue
        var, part = op.inputs[cut[0]], split.inputs[cut[0]]
        if part is not None and graph.bytes(var) * _LARGE > budget:
            chain = _chain(graph, at, var, part.axis)
            if chain is not None:
                yield chain


def _chain(graph: Graph, reader: int, var: VarId, axis: int) -> _Chain | None:
    """Return the ops that make a tensor from small ones; None where some mixes the axis."""
    least = graph.bytes(var) // _SMALL
    axes: dict[VarId, int] = {}
    left = [(var, axis)]
    while left:
        wanted, along = left.pop()
        at = graph.flow.producer.get(wanted)
        if at is None or graph.bytes(wanted) < least:
            continue
        is_new = wanted not in axes
        if axes.setdefault(wanted, along) != along or len(axes) > _MOST_OPS:
            return None
        read = _read(graph, at, wanted, along)
        if read is None:
            return None
        left += read if is_new else ()
    ops = sorted({graph.flow.producer[each] for each in axes})
    mixed = (graph.flow.producer[each] for each, along in axes.items())
    nodes = [(graph.node(at), axis) for at, axis in zip(mixed, axes.values(), strict=True)]
    statistics = any(node is not None and _is_log_softmax(node, at) for node, at in nodes)
    return _Chain(reader, var, axes, tuple(ops), statistics) if axes else None


def _read(graph: Graph, at: int, var: VarId, axis: int) -> list[tuple[VarId, int]] | None:
    """Return what an op reads, along which axes, for a result along one; None where it mixes."""
    op, node = graph.ops[at], graph.node(at)
    if node is None or graph.program.vars[var].dtype != "float32":
        return None
    if _is_log_softmax(node, axis) or _puts_one(graph, node, axis):
        return [(op.inputs[0], axis)]
    for split in graph.splits(at):
        made = split.outputs[op.outputs.index(var)]
        if made is not None and made.axis == axis:
            pairs = zip(op.inputs, split.inputs, strict=True)
            return [(read, part.axis) for read, part in pairs if part is not None]
    return None


def _is_log_softmax(node: Node, axis: int) -> bool:
    return operator(node.op) == "LogSoftmax" and _own_axis(node, -1) == axis


def _puts_one(graph: Graph, node: Node, axis: int) -> bool:
    """Whether an op adds to one element of each row, rows being the last axis."""
    put, made = node.shape(1) or (), node.made
    return (
        operator(node.op) == "ScatterElements"
        and graph.program.vars[node.op.inputs[1]].dtype == "int64"
        and node.text("reduction", "none") == "add"
        and _own_axis(node, 0) == axis == len(made) - 1
        and put == (*made[:-1], 1)
    )


def _own_axis(node: Node, default: int) -> int:
    return node.integer("axis", default) % len(node.made)


def _is_crossed(graph: Graph, chain: _Chain) -> bool:
    """Whether an op that makes or reads one of the tensors cannot go along with the product."""
    return any(
        not _makes_so(graph, var, axis) or not all(_reads_so(graph, var, axis, chain.reader))
        for var, axis in chain.axes.items()
    )


def _frees(graph: Graph, chain: _Chain) -> bool:
    """Whether the others who read what the product reads can have it in pieces without it."""
    var, axis = chain.var, chain.axes[chain.var]
    others = (axes_read(graph, at, var) - {axis} for at in _left(graph, chain))
    return all(
        any(_chain(graph, chain.reader, var, other) for other in sorted(axes))
        for axes in others
    )


def _left(graph: Graph, chain: _Chain) -> list[int]:
    """Return who goes on reading what a product reads: all that can take it another way."""
    own = {chain.axes[chain.var]}
    readers = graph.readers(chain.var)
    return [
        at for at in readers if at != chain.reader and axes_read(graph, at, chain.var) != own
    ]


def _makes_so(graph: Graph, var: VarId, axis: int) -> bool:
    at = graph.flow.producer[var]
    place = graph.ops[at].outputs.index(var)
    parts = (split.outputs[place] for split in graph.splits(at))
    return any(part is not None and part.axis == axis for part in parts)


def _reads_so(graph: Graph, var: VarId, axis: int, but: int) -> Iterator[bool]:
    """Yield for each reader of a var, one left out, whether it may take it along an axis."""
    for at in graph.readers(var):
        if at != but:
            yield axis in axes_read(graph, at, var)


def axes_read(graph: Graph, at: int, var: VarId) -> frozenset[int]:
    """Return the axes along which an op may take a var."""
    return frozenset(
        part.axis
        for split in graph.splits(at)
        for read, part in zip(graph.ops[at].inputs, split.inputs, strict=True)
        if read == var and part is not None
    )


class _Writer:
    """Writes copies of ops before the products that read them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.copied: set[int] = set()
        self._vars = dict(graph.program.vars)
        self._before: dict[int, list[Op]] = {}
        self._after: dict[int, list[Op]] = {}
        self._inputs: dict[int, dict[VarId, VarId]] = {}
        self._statistics: dict[int, tuple[VarId, VarId]] = {}
        self._constants: dict[Dims, VarId] = {}

    def copy(self, chain: _Chain) -> None:
        """Write a chain again, unless a part of it is already; its readers read the copy."""
        if not self.copied.isdisjoint(chain.ops):
            return
        self.copied.update(chain.ops)
        # Who can take nothing but columns, as the sum over rows for a bias, reads them too.
        left = _left(self.graph, chain)
        readers = [at for at in self.graph.readers(chain.var) if at not in left]
        names: dict[VarId, VarId] = {}
        ops = self._before.setdefault(min(readers), [])
        for at in chain.ops:
            ops += self._copies(at, chain, names)
        for at in readers:
            self._inputs.setdefault(at, {})[chain.var] = names[chain.var]

    def _copies(self, at: int, chain: _Chain, names: dict[VarId, VarId]) -> list[Op]:
        """Return what stands for an op of a chain; its results have new names."""
        op, node = self.graph.ops[at], self.graph.node(at)
        made = [var for var in op.outputs if var in chain.axes]
        names |= {var: self._new(var, _SUFFIX) for var in made}
        axis = chain.axes[made[0]]
        if node is not None and _is_log_softmax(node, axis):
            return self._normalised(at, axis, names)
        if node is not None and _puts_one(self.graph, node, axis):
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
        shifted = self._new(op.outputs[0], f"{_SUFFIX}_shifted")
        return [
            _inserted("Sub", (names.get(op.inputs[0], op.inputs[0]), highest), shifted),
            _inserted("Add", (shifted, less), names[op.outputs[0]]),
        ]

    def _largest(self, var: VarId, at: int, axis: int, suffix: str) -> VarId:
        """Write a reduction behind an op, and return what it makes."""
        dims = list(self.graph.dims(var))
        dims[axis] = 1
        made = self._new(var, suffix, tuple(dims))
        told: Mapping[str, Attribute] = {"keepdims": 1}
        inputs: tuple[VarId, ...] = (var,)
        if self.graph.facts.opset < _AXES_BY_INPUT:
            told = {**told, "axes": (axis,)}
        else:
            inputs = (var, self._constant((axis,)))
        op = _inserted("ReduceMax", inputs, made)._replace(attributes=told)
        self._after.setdefault(at, []).append(op)
        return made

    def _put(self, op: Op, names: Mapping[VarId, VarId]) -> list[Op]:
        """Return ops that add to one element of each row by comparing places with its own."""
        data, index, added = (names.get(var, var) for var in op.inputs)
        whole, made = self.graph.dims(op.outputs[0]), names[op.outputs[0]]
        below, above, own = (self._new(index, f"{_SUFFIX}_{word}") for word in _PLACES)
        self._vars[below] = self._vars[below]._replace(dtype="bool")
        there = self._new(op.outputs[0], f"{_SUFFIX}_there")
        self._vars[there] = self._vars[there]._replace(dtype="bool")
        total = self._new(op.outputs[0], f"{_SUFFIX}_sum")
        return [
            _inserted("Less", (index, self._constant((0,))), below),
            _inserted("Add", (index, self._constant((whole[-1],))), above),
            _inserted("Where", (below, above, index), own),
            _inserted("Equal", (own, self._constant(tuple(range(whole[-1])))), there),
            _inserted("Add", (data, added), total),
            _inserted("Where", (there, total, data), made),
        ]

    def _new(self, var: VarId, suffix: str, dims: Dims | None = None) -> VarId:
        facts = self._vars[var]
        name = VarId(f"{var}{suffix}")
        while name in self._vars:
            name = VarId(f"{name}_")
        own = f"{facts.name}{name[len(var) :]}"
        shape = facts.shape if dims is None else dims
        self._vars[name] = facts._replace(id=name, shape=shape, origin=Origin.OP, name=own)
        return name

    def _constant(self, values: Dims) -> VarId:
        if values not in self._constants:
            told = f"{values[0]}_to_{values[-1]}" if len(values) > 1 else f"{values[0]}"
            name = VarId(f"columns_{told}")
            while name in self._vars:
                name = VarId(f"{name}_")
            self._vars[name] = Var(name, "int64", (len(values),), Origin.WEIGHT, name)
            self._constants[values] = name
        return self._constants[values]

    def finished(self) -> Recomputed:
        """Return the program with the copies, without ops that only products now copied for read."""
        program = self.graph.program
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
        vars_ = {var: facts for var, facts in self._vars.items() if var not in unread}
        body = replace(program.body, ops=tuple(ops))
        constants = {var: values for values, var in self._constants.items()}
        return Recomputed(replace(program, body=body, vars=vars_), constants)

    def _redirected(self, at: int) -> tuple[VarId, ...]:
        names = self._inputs.get(at, {})
        return tuple(names.get(var, var) for var in self.graph.ops[at].inputs)

    def _unread(self, ops: Sequence[Op]) -> frozenset[VarId]:
        """Return what copied ops make for nobody any more."""
        readers = Counter(var for op in ops for var in op_reads(op))
        readers.update(self.graph.results)
        gone: set[VarId] = set()
        for at in sorted(self.copied, reverse=True):
            made = [var for var in self.graph.ops[at].outputs if var]
            if not any(readers[var] for var in made):
                gone.update(made)
                readers.subtract(self.graph.flow.reads[at])
        return frozenset(gone)


_PLACES = ("below", "above", "own")


def _inserted(kind: str, inputs: tuple[VarId, ...], made: VarId) -> Op:
    return Op(f"{made}/{kind.lower()}", kind, inputs, (made,), (), "", INSERTED)
