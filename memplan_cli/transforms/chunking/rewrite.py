"""Regions in pieces: slices of what a region reads, its ops piece by piece, results joined.

    x -> Slice -> op -> op \\
    x -> Slice -> op -> op -> Concat -> y          names of what remains stay

A copy of an op shares its ``source`` with the op, as recomputed copies do; slices and joins
have none. Small constants that copies need (where a slice begins, the shape of a piece) are
new weights, whose values go along.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, compress
from typing import TYPE_CHECKING

from memplan_cli.analysis.dataflow import op_reads
from memplan_cli.core.program import Op, Origin, Program, Var, VarId
from memplan_cli.core.results.chunks import Cut
from memplan_cli.transforms.chunking.axes.table import edit
from memplan_cli.transforms.chunking.axes.terms import Role
from memplan_cli.transforms.chunking.axes.windows import ROWS
from memplan_cli.transforms.chunking.ranges import pieces_of, result_part
from memplan_cli.transforms.chunking.schedule import INSERTED, schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Attribute
    from memplan_cli.core.results.chunks import NewWeight
    from memplan_cli.transforms.chunking.axes.terms import Causal, Dims, Edit, Part, Range
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.ranges import Piece
    from memplan_cli.transforms.chunking.region import Region

_SLICES_BY_INPUT = 10
"""The opset since which Slice is told by inputs where it begins and ends."""


_MOST_TOLD = 8
"""Values of a new constant that its name tells."""


@dataclass(frozen=True, slots=True)
class Chunked:
    """A program with regions in pieces.

    Attributes:
        program: The ops, those of regions once for each piece.
        constants: What the new weights are: int64 values, or ranges of weights.
        places: Where the ops of each region begin and end in the schedule, in the order given.
    """

    program: Program
    constants: Mapping[VarId, NewWeight] = field(default_factory=dict)
    places: tuple[Range, ...] = ()


def chunked(graph: Graph, chosen: Sequence[tuple[Region, int]]) -> Chunked | None:
    """Return the program with regions in so many pieces each.

    None where a region cannot be cut so, or where two regions need results of each other.

    Args:
        graph: The program as it is.
        chosen: Regions that share no op, with the number of their pieces.
    """
    order = schedule(graph, [region for region, _ in chosen])
    if order is None:
        return None
    cut = [pieces_of(graph, region, count) for region, count in chosen]
    if None in cut:
        return None
    writer, begun = _Writer(graph), {}
    for step in order:
        if step < len(graph.ops):
            writer.ops.append(graph.ops[step])
            continue
        number, begin = step - len(graph.ops), len(writer.ops)
        writer.write(chosen[number][0], cut[number] or ())
        begun[number] = begin, len(writer.ops)
    return writer.finished([begun[number] for number in range(len(chosen))])


class _Writer:
    """Writes ops, those of regions piece by piece, and the vars that they make."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self._vars = dict(graph.program.vars)
        self._constants: dict[Dims, VarId] = {}
        self._cuts: dict[VarId, NewWeight] = {}
        self._gone: set[VarId] = set()

    def finished(self, places: Sequence[Range]) -> Chunked:
        """Return the program, without what only the ops of regions have read or made."""
        program = self.graph.program
        read = {var for op in self.ops for var in op_reads(op)}
        dead = {
            var
            for var in self._gone
            if var not in read
            and var not in program.overridable
            and var not in program.body.outputs
        }
        stays = [not op.outputs or not dead.issuperset(op.outputs) for op in self.ops]
        dead -= {var for op in compress(self.ops, stays) for var in op.outputs}
        ops = tuple(compress(self.ops, stays))
        count = [0, *accumulate(map(int, stays))]
        vars_ = {var: facts for var, facts in self._vars.items() if var not in dead}
        body = replace(program.body, ops=ops)
        values: dict[VarId, NewWeight] = {var: each for each, var in self._constants.items()}
        constants = {**values, **self._cuts}
        where = tuple((count[start], count[stop]) for start, stop in places)
        return Chunked(replace(program, body=body, vars=vars_), constants, where)

    def write(self, region: Region, pieces: Sequence[Piece]) -> None:
        """Write the pieces of a region, one after the other, and join what they make."""
        joined: dict[VarId, list[VarId]] = {var: [] for var in region.results}
        carried: Mapping[VarId, VarId] = {}
        for number, piece in enumerate(pieces, start=1):
            later = pieces[number].kept if number < len(pieces) else {}
            copy = _PieceWriter(self, region, piece, f"__chunk{number}")
            carried = copy.write(carried, later)
            for var, parts in joined.items():
                parts.append(copy.part_of(var, piece.wanted[var]))
        for var, parts in joined.items():
            axis = result_part(self.graph, region, var).axis
            maker = self.graph.ops[self.graph.flow.producer[var]].label
            self.join(f"{maker}__chunks", tuple(parts), var, axis, var)
        for at in region.splits:
            op = self.graph.ops[at]
            self._gone.update(var for var in op.outputs if var and var not in joined)
            self._gone.update(var for var in op.inputs if var in self.graph.weights)

    def join(
        self, name: str, parts: tuple[VarId, ...], made: VarId, axis: int, blocked: VarId
    ) -> None:
        """Write the ops that put ranges of an axis together; ``blocked`` as for a slice."""
        told: Mapping[str, Attribute] = {"axis": axis}
        if axis != ROWS or blocked not in self.graph.blocked:
            self.ops.append(Op(name, "Concat", parts, (made,), (), "", INSERTED, told))
            return
        parts = tuple(self._as_rows(part) for part in parts)
        whole = self._row_var(made)
        self.ops.append(Op(name, "Concat", parts, (whole,), (), "", INSERTED, told))
        self.reshape(whole, made)

    def slice(self, var: VarId, name: VarId, axis: int, places: Range, blocked: VarId) -> None:
        """Write the ops that take a range of an axis; ``blocked`` says how the var lies."""
        if axis != ROWS or blocked not in self.graph.blocked:
            self.ops.append(self._slice_op(var, name, axis, places))
            return
        rows, taken = self._as_rows(var), self._row_var(name)
        self.ops.append(self._slice_op(rows, taken, axis, places))
        self.reshape(taken, name)

    def _as_rows(self, var: VarId) -> VarId:
        """Write a view in which rows are an axis, of a var whose channels lie in blocks."""
        rows = self._row_var(var)
        self.reshape(var, rows)
        return rows

    def _row_var(self, var: VarId) -> VarId:
        """Return a new var for a view: blocks of channels, rows, columns with their block."""
        samples, channels, rows, columns = self._dims(var)
        block = self.graph.facts.block
        return self.made(var, "_rows", (samples, channels // block, rows, columns * block))

    def reshape(self, var: VarId, name: VarId) -> None:
        """Write the op that gives a var the shape of another."""
        shape = self.constant(self._dims(name))
        self.ops.append(Op(f"{name}/view", "Reshape", (var, shape), (name,), (), "", INSERTED))

    def _dims(self, var: VarId) -> Dims:
        return tuple(dim for dim in self._vars[var].shape or () if isinstance(dim, int))

    def _slice_op(self, var: VarId, name: VarId, axis: int, places: Range) -> Op:
        kind = "Slice"
        if self.graph.facts.opset < _SLICES_BY_INPUT:
            told: Mapping[str, Attribute] = {
                "starts": places[:1],
                "ends": places[1:],
                "axes": (axis,),
            }
            return Op(f"{name}/slice", kind, (var,), (name,), (), "", INSERTED, told)
        bounds = tuple(self.constant((each,)) for each in (*places, axis))
        return Op(f"{name}/slice", kind, (var, *bounds), (name,), (), "", INSERTED)

    def constant(self, values: Dims) -> VarId:
        """Return a weight of these numbers."""
        if values not in self._constants:
            told = "_".join(map(str, values))
            if len(values) > _MOST_TOLD:
                told = f"{values[0]}_to_{values[-1]}"
            name = self._new(f"chunk_{told}")
            facts = Var(name, "int64", (len(values),), Origin.WEIGHT, name)
            self._vars[name] = facts
            self._constants[values] = name
        return self._constants[values]

    def cut(self, var: VarId, suffix: str, axis: int, places: Range) -> VarId:
        """Return a weight that is a range of another."""
        dims = list(self._dims(var))
        dims[axis] = places[1] - places[0]
        name = self.made(var, suffix, tuple(dims))
        self._vars[name] = self._vars[name]._replace(origin=Origin.WEIGHT)
        self._cuts[name] = Cut(self._vars[var].name, axis, *places)
        return name

    def made(self, var: VarId, suffix: str, dims: Dims, dtype: str | None = None) -> VarId:
        """Return a new var of a piece of another, or of what goes with it."""
        facts = self._vars[var]
        facts = facts._replace(dtype=dtype or facts.dtype)
        name = self._new(f"{var}{suffix}")
        own = f"{facts.name}{name[len(var) :]}"
        self._vars[name] = facts._replace(id=name, shape=dims, origin=Origin.OP, name=own)
        return name

    def _new(self, name: str) -> VarId:
        while name in self._vars:
            name += "_"
        return VarId(name)


class _PieceWriter:
    """Writes the ops of one piece of a region."""

    def __init__(self, writer: _Writer, region: Region, piece: Piece, suffix: str) -> None:
        self.writer, self.graph = writer, writer.graph
        self.region, self.piece, self.suffix = region, piece, suffix
        self._made: dict[VarId, tuple[VarId, Range]] = {}
        """The piece's own part of each var of the region, and its range."""
        self._joined: dict[VarId, tuple[VarId, Range]] = {}
        """The same with what the piece before has kept of it."""
        self._slices: dict[tuple[VarId, int, Range], VarId] = {}

    def write(
        self, carried: Mapping[VarId, VarId], later: Mapping[VarId, Range]
    ) -> Mapping[VarId, VarId]:
        """Write the ops in their order, each behind the slices that it reads.

        Args:
            carried: What the piece before has kept.
            later: What the next one needs of this one.

        Returns:
            What is kept for the next one.
        """
        kept = {}
        for at in sorted(self.region.splits):
            op, split = self.graph.ops[at], self.region.splits[at]
            node, turn = self.graph.node(at), self.piece.computed[at]
            if node is None:
                raise ValueError(f"{op.label} has no shapes")
            changed = edit(node, split, turn)
            inputs = [
                self._own_columns(var, part, turn)
                if split.role is Role.COLUMNS and var in self.graph.weights
                else self._read(var, part, turn)
                for var, part in zip(op.inputs, split.inputs, strict=True)
            ]
            for position, values in changed.constants.items():
                inputs[position] = self.writer.constant(values)
            for position, mask in changed.masks.items():
                inputs += [VarId("")] * (position + 1 - len(inputs))
                inputs[position] = self._mask(op.outputs[0], mask)
            outputs = [
                self._make(var, part, turn)
                for var, part in zip(op.outputs, split.outputs, strict=True)
            ]
            own, cut = outputs[0], split.outputs[0]
            if cut is not None and any(changed.beyond):
                outputs[0] = self._wider(op.outputs[0], cut.axis, changed.beyond)
            self.writer.ops.append(
                op._replace(
                    name=f"{op.label}{self.suffix}",
                    inputs=tuple(inputs),
                    outputs=tuple(outputs),
                    attributes=_attributes(op, changed),
                )
            )
            if outputs[0] != own and cut is not None:
                start, stop = self._made[op.outputs[0]][1]
                places = changed.beyond[0], changed.beyond[0] + stop - start
                self.writer.slice(outputs[0], own, cut.axis, places, op.outputs[0])
            for var, part in zip(op.outputs, split.outputs, strict=True):
                if part is not None and var in carried:
                    self._join(var, part.axis, carried[var])
                if part is not None and var in later:
                    kept[var] = self._cut(var, part.axis, later[var])
        return kept

    def _join(self, var: VarId, axis: int, before: VarId) -> None:
        """Write the ops that put the piece's own part behind what is kept from before."""
        own, (_, stop) = self._made[var]
        places = self.piece.kept[var][0], stop
        dims = list(self.graph.dims(var))
        dims[axis] = stop - places[0]
        name = self.writer.made(var, f"{self.suffix}_joined", tuple(dims))
        self.writer.join(f"{name}/join", (before, own), name, axis, var)
        self._joined[var] = name, places

    def _mask(self, beside: VarId, mask: Causal) -> VarId:
        """Write the ops that compare the places of rows and keys, and return what they make."""
        writer, rows = self.writer, tuple(range(*mask.rows))
        column = writer.made(beside, f"{self.suffix}_rows", (len(rows), 1), "int64")
        writer.reshape(writer.constant(rows), column)
        made = writer.made(beside, f"{self.suffix}_mask", (len(rows), mask.keys), "bool")
        read = column, writer.constant(tuple(range(mask.keys)))
        op = Op(f"{made}/mask", "GreaterOrEqual", read, (made,), (), "", INSERTED)
        writer.ops.append(op)
        return made

    def part_of(self, var: VarId, wanted: Range) -> VarId:
        """Return a range of a var of the region: what is made, or a slice of it."""
        at = result_part(self.graph, self.region, var).axis
        return self._cut(var, at, wanted)

    def _read(self, var: VarId, part: Part | None, turn: Range) -> VarId:
        if part is None or not var:
            return var
        return self._cut(var, part.axis, part.range(turn, self.graph.dims(var)[part.axis]))

    def _own_columns(self, var: VarId, part: Part | None, turn: Range) -> VarId:
        """Return the columns of a weight that a piece reads, which the file has apart."""
        if part is None:
            return var
        places = part.range(turn, self.graph.dims(var)[part.axis])
        return self.writer.cut(var, self.suffix, part.axis, places)

    def _make(self, var: VarId, part: Part | None, turn: Range) -> VarId:
        if part is None or not var:
            return VarId("")
        dims = list(self.graph.dims(var))
        start, stop = part.range(turn, dims[part.axis])
        dims[part.axis] = stop - start
        name = self.writer.made(var, self.suffix, tuple(dims))
        self._made[var] = name, (start, stop)
        return name

    def _wider(self, var: VarId, axis: int, beyond: Range) -> VarId:
        """Return a new var for what is made of a piece and of the halo that it reads."""
        dims = list(self.graph.dims(var))
        start, stop = self._made[var][1]
        dims[axis] = stop - start + sum(beyond)
        return self.writer.made(var, f"{self.suffix}_wide", tuple(dims))

    def _cut(self, var: VarId, axis: int, wanted: Range) -> VarId:
        dims = list(self.graph.dims(var))
        there, (start, stop) = self._made.get(var, (var, (0, dims[axis])))
        if wanted != (start, stop) and var in self._joined:
            there, (start, stop) = self._joined[var]
        if wanted == (start, stop):
            return there
        key = var, axis, wanted
        if key not in self._slices:
            dims[axis] = wanted[1] - wanted[0]
            name = self.writer.made(var, f"{self.suffix}_slice", tuple(dims))
            places = wanted[0] - start, wanted[1] - start
            self.writer.slice(there, name, axis, places, var)
            self._slices[key] = name
        return self._slices[key]


def _attributes(op: Op, changed: Edit) -> Mapping[str, Attribute]:
    return {**op.attributes, **changed.attributes} if changed.attributes else op.attributes
