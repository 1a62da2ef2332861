"""Whether a region can be a loop at every size, and the fewest rows of its pieces."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import qualified_name
from memplan_cli.core.symbolic.bounds import range_of
from memplan_cli.core.symbolic.dims import as_dim, parse_dim
from memplan_cli.core.symbolic.polynomials import names_in
from memplan_cli.transforms.chunking.kernels import is_sum, keeps_bits
from memplan_cli.transforms.chunking.loops.sized import same_split
from memplan_cli.transforms.chunking.ranges import computed_for, result_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.program import Dim, Program, VarId
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.transforms.chunking.axes.terms import Node, Part, Range
    from memplan_cli.transforms.chunking.graph import Graph
    from memplan_cli.transforms.chunking.region import Region

_ROWS = (1, 4, 8, 16, 64)
"""Rows of a piece that are tried, until kernels keep the bits."""

_LEAST_OF_SUM = 2
"""Elements of a row."""

_LEAST_OF_PRODUCT = 4
"""Rows of a product in all, samples of a piece times rows of each."""


def rows_in(dim: Dim, extent: Dim, rows: str) -> Dim:
    """Return a dim of a piece: rows in place of the extent; None where that is no factor."""
    if dim == extent:
        return rows
    if not isinstance(dim, str) or not isinstance(extent, str):
        return None
    (atom, *others), terms = parse_dim(extent), parse_dim(dim)
    if others or len(atom) != 1 or parse_dim(extent) != {atom: 1}:
        return None
    if any(monomial.count(atom[0]) != 1 for monomial in terms):
        return None
    found = {
        tuple(sorted(rows if each == atom[0] else each for each in monomial)): factor
        for monomial, factor in terms.items()
    }
    return as_dim(found)


def least_rows(
    program: Program,
    graphs: tuple[Graph, Graph],
    region: Region,
    bounds: Bounds,
) -> int | None:
    """Return the fewest rows of a piece; None where a region is no loop at every size.

    Args:
        program: The block, sizes unknown.
        graphs: The same with numbers for them; the region is of the first.
        region: What is to be a loop.
        bounds: The least and the greatest value of each symbol.
    """
    first, second = graphs
    other = _at_other_sizes(second, region)
    if other is None or not _is_told_by_rows(program, first, region):
        return None
    if not _sums_are_long(program, first, region, bounds):
        return None
    for rows in _ROWS:
        # The number of rows is any number from the least on.
        pairs = cartesian(((first, region), (second, other)), (rows, rows + 1, 2 * rows + 1))
        if all(_keeps_bits(*graph, each) for graph, each in pairs):
            at_least = _of_products(first, region, program, bounds)
            return max(rows, at_least)
    return None


def _at_other_sizes(graph: Graph, region: Region) -> Region | None:
    found = {}
    for at, split in region.splits.items():
        same = same_split(graph, at, split)
        if same is None:
            return None
        found[at] = same
    return replace(region, splits=found)


def parts(graph: Graph, region: Region) -> Iterator[tuple[VarId, Part]]:
    """Yield what the ops of a region read and make in pieces."""
    for at, split in region.splits.items():
        op = graph.ops[at]
        pairs = (
            *zip(op.inputs, split.inputs, strict=True),
            *zip(op.outputs, split.outputs, strict=True),
        )
        yield from ((var, part) for var, part in pairs if var and part is not None)


def _is_told_by_rows(program: Program, graph: Graph, region: Region) -> bool:
    """Whether the dims of all pieces follow from the rows, and what is given is cut by them."""
    extent = (program.vars[region.seed].shape or ())[region.axis]
    made = {var for at in region.splits for var in graph.ops[at].outputs}
    for var, part in parts(graph, region):
        dim = (program.vars[var].shape or ())[part.axis]
        if rows_in(dim, extent, "rows") is None:
            return False
        if (var not in made or var in region.results) and dim != extent:
            return False
    return True


def _keeps_bits(graph: Graph, region: Region, rows: int) -> bool:
    """Whether a piece of so many rows is what the dims say, and is computed as the whole is."""
    extent = graph.dims(region.seed)[region.axis]
    if 2 * rows > extent:
        return False
    wanted: dict[VarId, Range] = dict.fromkeys(region.results, (rows, 2 * rows))
    if any(
        graph.dims(var)[result_part(graph, region, var).axis] != extent
        for var in region.results
    ):
        return False
    computed = computed_for(graph, region, wanted)
    if computed is None:
        return False
    for at, split in region.splits.items():
        op, piece = graph.ops[at], computed[at]
        pairs = (
            *zip(op.inputs, split.inputs, strict=True),
            *zip(op.outputs, split.outputs, strict=True),
        )
        for var, part in pairs:
            if not var or part is None:
                continue
            dim = graph.dims(var)[part.axis]
            each = dim // extent
            if dim % extent or part.range(piece, dim) != (each * rows, 2 * each * rows):
                return False
        node = graph.node(at)
        if node is None or not keeps_bits(node, split, [piece]):
            return False
    return True


def _sums_are_long(program: Program, graph: Graph, region: Region, bounds: Bounds) -> bool:
    """Whether no size makes rows of one element of what is summed: these are added otherwise."""
    for at in region.splits:
        op = graph.ops[at]
        read = program.vars[op.inputs[0]].shape if op.inputs and op.inputs[0] else None
        if is_sum(op) and read and _least(read[-1], bounds) < _LEAST_OF_SUM:
            return False
    return True


def _of_products(graph: Graph, region: Region, program: Program, bounds: Bounds) -> int:
    """Return the samples that a piece must have: a product of one row has a kernel of its own."""
    for at, split in region.splits.items():
        node = graph.node(at)
        if node is None or not _is_flat_product(node):
            continue
        made = program.vars[graph.ops[at].outputs[0]].shape or ()
        part = split.outputs[0]
        rows = prod(
            _least(dim, bounds)
            for axis, dim in enumerate(made[:-1])
            if part is None or axis != part.axis
        )
        if rows < _LEAST_OF_PRODUCT:
            return _LEAST_OF_PRODUCT
    return 1


def _is_flat_product(node: Node) -> bool:
    """Whether the samples of a product are rows of one: its second operand is a matrix."""
    kind = qualified_name(node.op)
    return kind in ("MatMul", "com.microsoft.FusedMatMul") and len(node.shape(1) or ()) == 2


def _least(dim: Dim, bounds: Bounds) -> int:
    """Return what a dim is never below; 1 where that is not known."""
    if isinstance(dim, int):
        return dim
    terms = parse_dim(dim) if dim else {}
    return range_of(terms, bounds)[0] if terms and names_in(terms) <= bounds.keys() else 1
