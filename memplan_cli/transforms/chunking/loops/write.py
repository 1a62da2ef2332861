"""A region as a Scan: its ops in a subgraph that is run for each piece, its results stacked.

    x ------------------------------+            names of what remains stay
    places [trips, rows] -> Scan(  Gather(x) -> op -> op  ) -> stack -> Reshape -> Slice -> y

Each trip is given the numbers of its rows and picks them; the runtime writes what a trip makes
into its place of the stack. Rows that the last piece has too many are cut off at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import storage_of
from memplan_cli.core.problem import Problem, lower_bound
from memplan_cli.core.program import Block, Op, Origin, Program, Var, VarId, var_id, walk
from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import multiplied, total
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.transforms.chunking.loops.blocks import block_at, with_block, without_unread
from memplan_cli.transforms.chunking.loops.counts import Count, resolved, with_dims
from memplan_cli.transforms.chunking.loops.fits import rows_in
from memplan_cli.transforms.chunking.loops.sized import shape_input
from memplan_cli.transforms.chunking.loops.values import Values
from memplan_cli.transforms.chunking.ranges import result_part
from memplan_cli.transforms.chunking.rewrite import Chunked
from memplan_cli.transforms.chunking.schedule import INSERTED, schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Attribute, Dim, Shape
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.transforms.chunking.axes.terms import Split
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.region import Region


@dataclass(frozen=True, slots=True)
class Loop:
    """A region that is a loop.

    Attributes:
        path: The block that it makes.
        region: Its ops, by index in that block.
        count: How many pieces, and how long.
    """

    path: str
    region: Region
    count: Count


@dataclass(frozen=True, slots=True)
class Looped:
    """A program with regions as loops, symbols in place of the number and length of pieces.

    Attributes:
        program: The ops; what tells shapes and rows is not written yet.
        loops: The regions, outer ones first.
        shapes: Vars that hold a shape.
        places: Vars that hold the rows of each piece, by the number of their loop.
        before: The same without the last loop.
    """

    program: Program
    loops: tuple[Loop, ...] = ()
    shapes: Mapping[Shape, VarId] = field(default_factory=dict)
    places: tuple[VarId, ...] = ()
    before: Looped | None = field(default=None, repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """The blocks of the loops."""
        return tuple(loop.path for loop in self.loops)

    @property
    def counts(self) -> tuple[Count, ...]:
        """How many pieces each loop has, outer loops first."""
        return tuple(loop.count for loop in self.loops)

    def finished(self, target: int) -> Chunked:
        """Return the program whose pieces take so many bytes, with all that tells them."""
        values = Values(self.program, self.counts, target)
        read = {var for _, op in walk(self.program.body) for var in op.inputs}
        for dims, name in self.shapes.items():
            if name in read:
                values.shape(dims, name)
        for count, name in zip(self.counts, self.places, strict=True):
            values.places(count, name)
        known = resolved(self.counts, target)
        vars_ = {
            var: facts._replace(shape=with_dims(facts.shape, known))
            for var, facts in values.vars.items()
        }
        body = replace(self.program.body, ops=(*values.ops, *self.program.body.ops))
        program = replace(self.program, body=body, vars=vars_)
        return Chunked(without_unread(program, self.program), values.constants)


def with_loop(
    state: Looped, path: str, graph: Graph, region: Region, least: int
) -> Looped | None:
    """Return a program with one more region as a loop; None where it cannot be run as one."""
    order = schedule(graph, [region])
    if order is None:
        return None
    writer = _Writer(state, path, graph, region)
    count = writer.write(least)
    ops = [
        each
        for step in order
        for each in ((graph.ops[step],) if step < len(graph.ops) else writer.ops)
    ]
    outer = block_at(state.program, path)
    body = with_block(state.program.body, path, replace(outer, ops=tuple(ops)))
    program = replace(state.program, body=body, vars=writer.vars)
    return Looped(
        without_unread(program, state.program),
        (*state.loops, Loop(writer.inner, region, count)),
        writer.shapes,
        (*state.places, writer.places),
        state,
    )


class _Writer:
    """Writes the ops of one loop: the subgraph, the Scan, and what joins its results."""

    def __init__(self, state: Looped, path: str, graph: Graph, region: Region) -> None:
        self.program, self.graph, self.region = state.program, graph, region
        self.path, number = path, len(state.loops) + 1
        self.suffix = f"__loop{number}"
        self.label = self._free_label(f"loop{number}")
        self.inner = f"{path}/{self.label}.body" if path else f"{self.label}.body"
        self.rows, self.trips = f"loop{number}_rows", f"loop{number}_trips"
        self.extent: Dim = (self.program.vars[region.seed].shape or ())[region.axis]
        self.vars = dict(state.program.vars)
        self.shapes = dict(state.shapes)
        self.ops: list[Op] = []
        self.places = VarId("")
        self._names = {var.name for var in self.vars.values()}
        self._body: list[Op] = []
        self._given: dict[tuple[VarId, int], VarId] = {}
        self._made: dict[VarId, VarId] = {}

    def _free_label(self, label: str) -> str:
        taken = {op.name for _, op in walk(self.program.body)}
        while label in taken:
            label += "_"
        return label

    def write(self, least: int) -> Count:
        """Write the loop, and return how many pieces it has."""
        turn = self._new("rows", self.inner, Origin.BODY_INPUT, "int64", (self.rows,))
        self.places = self._new("places", "", Origin.OP, "int64", (self.trips, self.rows))
        for at in sorted(self.region.splits):
            self._op(at, self.region.splits[at], turn)
        outputs = tuple(self._made[var] for var in self.region.results)
        body = Block((turn,), outputs, tuple(self._body), self.inner)
        stacks = tuple(self._stack(var) for var in self.region.results)
        told: Mapping[str, Attribute] = {"num_scan_inputs": 1}
        scan = Op(self.label, "Scan", (self.places,), stacks, (body,), "", INSERTED, told)
        self.ops.append(scan)
        for var, stack in zip(self.region.results, stacks, strict=True):
            self._join(var, stack)
        return Count(self.rows, self.trips, self.extent, least, self._unit(body))

    def _op(self, at: int, split: Split, turn: VarId) -> None:
        """Write the piece of an op, behind what picks the rows that it reads."""
        op = self.graph.ops[at]
        inputs = [
            var
            if part is None or not var
            else self._made.get(var) or self._picked(var, part.axis, turn)
            for var, part in zip(op.inputs, split.inputs, strict=True)
        ]
        for var, part in zip(op.outputs, split.outputs, strict=True):
            if var and part is not None:
                facts = self.program.vars[var]
                dims = list(facts.shape or ())
                dims[part.axis] = rows_in(dims[part.axis], self.extent, self.rows)
                self._made[var] = self._copy(var, self.suffix, self.inner, tuple(dims))
        outputs = tuple(self._made.get(var, VarId("")) for var in op.outputs)
        told = shape_input(op)
        if told is not None:
            inputs[told] = self._shape(self.vars[outputs[0]].shape or ())
        self._body.append(
            op._replace(name=f"{op.label}{self.suffix}", inputs=tuple(inputs), outputs=outputs)
        )

    def _picked(self, var: VarId, axis: int, turn: VarId) -> VarId:
        """Write the op that picks the rows of a piece."""
        if (var, axis) not in self._given:
            dims = list(self.program.vars[var].shape or ())
            dims[axis] = self.rows
            name = self._copy(var, f"{self.suffix}_rows", self.inner, tuple(dims))
            self._body.append(
                Op(f"{self.vars[name].name}/pick", "Gather", (var, turn), (name,), (), "",
                   INSERTED, {"axis": axis})
            )  # fmt: skip
            self._given[var, axis] = name
        return self._given[var, axis]

    def _stack(self, var: VarId) -> VarId:
        piece = self.vars[self._made[var]]
        return self._copy(
            var, f"{self.suffix}_stack", self.path, (self.trips, *(piece.shape or ()))
        )

    def _join(self, var: VarId, stack: VarId) -> None:
        """Write the ops that put a result together: its pieces one after the other."""
        axis = result_part(self.graph, self.region, var).axis
        dims = list(self.program.vars[var].shape or ())
        if axis:
            rank = len(dims)
            order = (*range(1, axis + 1), 0, *range(axis + 1, rank + 1))
            shape = self.vars[stack].shape or ()
            turned = self._copy(
                var, f"{self.suffix}_turned", self.path, tuple(shape[at] for at in order)
            )
            self._after("Transpose", (stack,), turned, {"perm": order})
            stack = turned
        dims[axis] = as_dim({tuple(sorted((self.rows, self.trips))): 1})
        whole = self._copy(var, f"{self.suffix}_rows_all", self.path, tuple(dims))
        self._after("Reshape", (stack, self._shape(tuple(dims))), whole)
        ends = tuple(self._shape((each,)) for each in (0, self.extent, axis))
        self._after("Slice", (whole, *ends), var)

    def _after(
        self,
        kind: str,
        inputs: tuple[VarId, ...],
        made: VarId,
        told: Mapping[str, Attribute] | None = None,
    ) -> None:
        name = f"{self.vars[made].name}{self.suffix}/{kind.lower()}"
        self.ops.append(Op(name, kind, inputs, (made,), (), "", INSERTED, told or {}))

    def _shape(self, dims: Shape) -> VarId:
        """Return a var of the top block that holds a shape."""
        if dims not in self.shapes:
            name = self._new(f"shape_{len(self.shapes)}", "", Origin.OP, "int64", (len(dims),))
            self.shapes[dims] = name
        return self.shapes[dims]

    def _copy(self, var: VarId, suffix: str, block: str, dims: Shape) -> VarId:
        facts = self.program.vars[var]
        return self._new(f"{facts.name}{suffix}", block, Origin.OP, facts.dtype, dims, "")

    def _new(  # noqa: PLR0913, PLR0917 - the fields of a var
        self,
        name: str,
        block: str,
        origin: Origin,
        dtype: str,
        dims: Shape,
        before: str = "loop",
    ) -> VarId:
        if before:
            name = f"{self.label}_{name}"
        # No subgraph may call a value as one around it is called.
        while name in self._names or var_id(block, name) in self.vars:
            name += "_"
        self._names.add(name)
        identity = var_id(block, name)
        self.vars[identity] = Var(identity, dtype, dims, origin, name, block)
        return identity

    def _unit(self, body: Block) -> Polynomial:
        """Return the bytes of a piece of one row: the most of each product that is live at once."""
        made = {var for op in body.ops for var in op.outputs if var} - {*body.outputs}
        sizes = {}
        for var in made:
            size = size_of(self.vars[var].shape, self.vars[var].dtype)
            if size is not None and size.symbols:
                sizes[var] = size
        program = Program("", body, self.vars)
        _, units = storage_of(program, sizes, (), SHARE_VIEWS)
        found = []
        for buffers in units.values():
            symbols = list(sizes[VarId(str(buffers[0].id))].symbols)
            if self.rows not in symbols:
                continue
            symbols.remove(self.rows)
            most = lower_bound(Problem(buffers))
            found.append(multiplied([parse_dim(symbol) for symbol in symbols], most))
        return total(found) or {(): 1}
