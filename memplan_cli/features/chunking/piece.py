"""One piece of a region: copies of its ops, each behind the slices that it reads.

A copy of an op shares its ``source`` with the op, as recomputed copies do. What the next piece
reads of this one is kept, and joined with that one's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Op, VarId
from memplan_cli.features.chunking.axes.table import edit
from memplan_cli.features.chunking.axes.terms import Role
from memplan_cli.features.chunking.ranges import result_part
from memplan_cli.features.chunking.writer import inserted_op

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Attribute
    from memplan_cli.features.chunking.axes.terms import Causal, Edit, Part, Range
    from memplan_cli.features.chunking.ranges import Piece
    from memplan_cli.features.chunking.region import Region
    from memplan_cli.features.chunking.writer import Writer


class PieceWriter:
    """Writes the ops of one piece of a region."""

    def __init__(self, writer: Writer, region: Region, piece: Piece, suffix: str) -> None:
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
        writer.ops.append(inserted_op(f"{made}/mask", "GreaterOrEqual", read, made))
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
