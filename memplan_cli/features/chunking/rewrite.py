"""Regions in pieces: slices of what a region reads, its ops piece by piece, results joined.

    x -> Slice -> op -> op \\
    x -> Slice -> op -> op -> Concat -> y          names of what remains stay

What only the ops of regions have read or made is gone afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, compress
from typing import TYPE_CHECKING

from memplan_cli.features.chunking.piece import PieceWriter
from memplan_cli.features.chunking.ranges import pieces_of, result_part
from memplan_cli.features.chunking.schedule import schedule
from memplan_cli.features.chunking.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.program import Program, VarId
    from memplan_cli.core.results.chunks import NewWeight
    from memplan_cli.features.chunking.axes.terms import Range
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.ranges import Piece
    from memplan_cli.features.chunking.region import Region


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
    writer, begun = Writer(graph), {}
    for step in order:
        if step < len(graph.ops):
            writer.ops.append(graph.ops[step])
            continue
        number, begin = step - len(graph.ops), len(writer.ops)
        _write(writer, chosen[number][0], cut[number] or ())
        begun[number] = begin, len(writer.ops)
    return _finished(writer, [begun[number] for number in range(len(chosen))])


def _write(writer: Writer, region: Region, pieces: Sequence[Piece]) -> None:
    """Write the pieces of a region, one after the other, and join what they make."""
    joined: dict[VarId, list[VarId]] = {var: [] for var in region.results}
    carried: Mapping[VarId, VarId] = {}
    for number, piece in enumerate(pieces, start=1):
        later = pieces[number].kept if number < len(pieces) else {}
        copy = PieceWriter(writer, region, piece, f"__chunk{number}")
        carried = copy.write(carried, later)
        for var, parts in joined.items():
            parts.append(copy.part_of(var, piece.wanted[var]))
    for var, parts in joined.items():
        axis = result_part(writer.graph, region, var).axis
        producer = writer.graph.ops[writer.graph.flow.producer[var]].label
        writer.join(f"{producer}__chunks", tuple(parts), var, axis, var)
    for at in region.splits:
        op = writer.graph.ops[at]
        writer.gone.update(var for var in op.outputs if var and var not in joined)
        writer.gone.update(var for var in op.inputs if var in writer.graph.weights)


def _finished(writer: Writer, places: Sequence[Range]) -> Chunked:
    """Return the program, without what only the ops of regions have read or made."""
    program = writer.graph.program
    read = {var for op in writer.ops for var in op.reads}
    dead = {
        var
        for var in writer.gone
        if var not in read
        and var not in program.overridable
        and var not in program.body.outputs
    }
    stays = [not op.outputs or not dead.issuperset(op.outputs) for op in writer.ops]
    dead -= {var for op in compress(writer.ops, stays) for var in op.outputs}
    ops = tuple(compress(writer.ops, stays))
    count = [0, *accumulate(map(int, stays))]
    vars_ = {var: facts for var, facts in writer.vars.items() if var not in dead}
    values: dict[VarId, NewWeight] = {var: each for each, var in writer.constants.items()}
    constants = {**values, **writer.cuts}
    where = tuple((count[start], count[stop]) for start, stop in places)
    return Chunked(program.with_ops(ops, vars_), constants, where)
