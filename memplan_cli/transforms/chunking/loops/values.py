"""Nodes that work out expressions of the sizes of a request, each once: int64, of one element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Op, Origin, Var, VarId
from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import call_in, constant, formatted, names_in, total
from memplan_cli.transforms.chunking.loops.counts import as_terms
from memplan_cli.transforms.chunking.schedule import INSERTED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Attribute, Dim, Program, Shape
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.transforms.chunking.axes.terms import Dims
    from memplan_cli.transforms.chunking.loops.counts import Count


def sources(program: Program) -> dict[str, tuple[VarId, int]]:
    """Return the input and the axis that tell each symbol."""
    return {
        dim: (var, axis)
        for var in reversed(program.body.inputs)
        for axis, dim in enumerate(program.vars[var].shape or ())
        if isinstance(dim, str) and parse_dim(dim) == {(dim,): 1}
    }


class Values:
    """Writes the nodes, and the vars that they make, before all other ops of a program."""

    def __init__(self, program: Program, counts: Sequence[Count], target: int) -> None:
        self._sources = sources(program)
        self._counts = {count.rows: count for count in counts}
        self._counts |= {count.trips: count for count in counts}
        self._target = target
        self.ops: list[Op] = []
        self.vars: dict[VarId, Var] = dict(program.vars)
        self.constants: dict[VarId, Dims] = {}
        self._known: dict[str, VarId] = {}

    def of(self, terms: Polynomial) -> VarId:
        """Return the var that holds the value of an expression."""
        number = constant(terms)
        if number is not None:
            return self.constant((number,))
        text = formatted(terms)
        if text not in self._known:
            self._known[text] = self._written(terms)
        return self._known[text]

    def shape(self, dims: Sequence[Dim], name: VarId) -> None:
        """Write a shape into a var that is there already."""
        parts = tuple(
            self.constant((dim,)) if isinstance(dim, int) else self.of(parse_dim(dim or "?"))
            for dim in dims
        )
        self.ops.append(
            Op(f"{name}/shape", "Concat", parts, (name,), (), "", INSERTED, {"axis": 0})
        )

    def places(self, count: Count, name: VarId) -> None:
        """Write which rows each piece has: ``[trips, rows]``, the last one repeated."""
        trips, rows = (self.of({(each,): 1}) for each in (count.trips, count.rows))
        length = self._scalar(self._op("Mul", (trips, rows)))
        zero, one = (self._scalar(self.constant((each,))) for each in (0, 1))
        flat = as_dim(parse_dim(f"`{count.trips}`*`{count.rows}`"))
        every = self._op("Range", (zero, length, one), (flat,))
        last = self.of(total([as_terms(count.extent), {(): -1}]))
        there = self._op("Min", (every, last), (flat,))
        shape = self._op("Concat", (trips, rows), (2,), {"axis": 0})
        self.ops.append(
            Op(f"{name}/places", "Reshape", (there, shape), (name,), (), "", INSERTED)
        )

    def constant(self, values: Dims) -> VarId:
        """Return a weight of these numbers."""
        name = VarId(f"loop_{'_'.join(map(str, values)).replace('-', 'm') or 'scalar'}")
        while name in self.vars and name not in self.constants:
            name = VarId(f"{name}_")
        self.vars[name] = Var(name, "int64", (len(values),), Origin.WEIGHT, name)
        self.constants[name] = values
        return name

    def _written(self, terms: Polynomial) -> VarId:
        parts = []
        for monomial, factor in sorted(terms.items()):
            factors = [self._atom(atom) for atom in monomial]
            if factor != 1 or not factors:
                factors.append(self.constant((factor,)))
            parts.append(self._folded("Mul", factors))
        return self._folded("Add", parts)

    def _folded(self, kind: str, vars_: Sequence[VarId]) -> VarId:
        first, *others = vars_
        for other in others:
            first = self._op(kind, (first, other))
        return first

    def _atom(self, atom: str) -> VarId:
        if atom in self._known:
            return self._known[atom]
        call = call_in(atom)
        if atom in self._counts:
            self._count(self._counts[atom])
        elif call is not None:
            self._known[atom] = self._called(*call)
        else:
            self._known[atom] = self._dim(atom)
        return self._known[atom]

    def _count(self, count: Count) -> None:
        """Write the two numbers of a loop."""
        whole = self.of(as_terms(count.extent))
        allowed = self._op("Div", (self.constant((self._target,)), self.of(count.unit)))
        wide = self._op("Max", (allowed, self.constant((count.floor,))))
        most = self._op("Min", (whole, wide))
        trips = self._known[count.trips] = self._ceiling(whole, most)
        self._known[count.rows] = self._ceiling(whole, trips)

    def _called(self, name: str, arguments: Sequence[Polynomial]) -> VarId:
        each = [self.of(argument) for argument in arguments]
        if name == "ceiling":
            return self._ceiling(each[0], each[1])
        kinds = {"floor": "Div", "mod": "Mod", "min": "Min", "max": "Max"}
        return self._folded(kinds[name], each)

    def _ceiling(self, top: VarId, bottom: VarId) -> VarId:
        less = self._op("Sub", (bottom, self.constant((1,))))
        return self._op("Div", (self._op("Add", (top, less)), bottom))

    def _dim(self, symbol: str) -> VarId:
        var, axis = self._sources[symbol]
        rank = len(self.vars[var].shape or ())
        shape = self._op("Shape", (var,), (rank,))
        return self._op("Gather", (shape, self.constant((axis,))), (1,), {"axis": 0})

    def _scalar(self, var: VarId) -> VarId:
        return self._op("Reshape", (var, self.constant(())), ())

    def _op(
        self,
        kind: str,
        inputs: tuple[VarId, ...],
        shape: Shape = (1,),
        told: Mapping[str, Attribute] | None = None,
    ) -> VarId:
        name = VarId(f"loop_{kind.lower()}_{len(self.ops)}")
        while name in self.vars:
            name = VarId(f"{name}_")
        self.vars[name] = Var(name, "int64", shape, Origin.OP, name)
        self.ops.append(Op(f"{name}/op", kind, inputs, (name,), (), "", INSERTED, told or {}))
        return name


def is_told(dims: Sequence[Dim], told: Mapping[str, object]) -> bool:
    """Whether every symbol of a shape is one that is told."""
    return all(
        isinstance(dim, int) or (dim is not None and names_in(parse_dim(dim)) <= told.keys())
        for dim in dims
    )
