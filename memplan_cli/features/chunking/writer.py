"""Ops, vars and constants that chunking adds to a program.

Added ops (slices, joins, views, masks) have no node in the file. Their small constants, such as
the start of a slice or the shape of a chunk, are new weights; their values travel with the program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Op, Origin, Var, VarId
from memplan_cli.core.results.chunks import Cut
from memplan_cli.features.chunking.axes.windows import ROWS
from memplan_cli.features.chunking.schedule import INSERTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Attribute
    from memplan_cli.core.results.chunks import NewWeight
    from memplan_cli.features.chunking.axes.terms import Dims, Range
    from memplan_cli.features.chunking.graph import Graph

_SLICES_BY_INPUT = 10
"""The opset since which Slice is told by inputs where it begins and ends."""


_MOST_TOLD = 8
"""Values of a new constant that its name tells."""


def inserted_op(
    name: str,
    kind: str,
    inputs: tuple[VarId, ...],
    output: VarId,
    attributes: Mapping[str, Attribute] | None = None,
) -> Op:
    """Return an op of one output that has no node in the file."""
    return Op(name, kind, inputs, (output,), (), "", INSERTED, attributes or {})


class Writer:
    """Collects added ops, and the vars and constants that they need.

    Attributes:
        ops: What was added so far.
        vars: The vars of the program and the new ones.
        constants: The new weights by their int64 values; their names begin with ``prefix``.
        cuts: New weights that are ranges of weights.
        gone: Vars that may be unused from now on.
    """

    def __init__(self, graph: Graph, prefix: str = "chunk") -> None:
        self.graph, self.prefix = graph, prefix
        self.ops: list[Op] = []
        self.vars = dict(graph.program.vars)
        self.constants: dict[Dims, VarId] = {}
        self.cuts: dict[VarId, NewWeight] = {}
        self.gone: set[VarId] = set()

    def join(
        self, name: str, parts: tuple[VarId, ...], made: VarId, axis: int, blocked: VarId
    ) -> None:
        """Write the ops that put ranges of an axis together; ``blocked`` as for a slice."""
        told: Mapping[str, Attribute] = {"axis": axis}
        if not self._lies_in_blocks(axis, blocked):
            self.ops.append(inserted_op(name, "Concat", parts, made, told))
            return
        parts = tuple(self._as_rows(part) for part in parts)
        whole = self._row_var(made)
        self.ops.append(inserted_op(name, "Concat", parts, whole, told))
        self.reshape(whole, made)

    def slice(self, var: VarId, name: VarId, axis: int, places: Range, blocked: VarId) -> None:
        """Write the ops that take a range of an axis; ``blocked`` says how the var lies."""
        if not self._lies_in_blocks(axis, blocked):
            self.ops.append(self._slice_op(var, name, axis, places))
            return
        rows, taken = self._as_rows(var), self._row_var(name)
        self.ops.append(self._slice_op(rows, taken, axis, places))
        self.reshape(taken, name)

    def _lies_in_blocks(self, axis: int, blocked: VarId) -> bool:
        return axis == ROWS and blocked in self.graph.blocked

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
        self.ops.append(inserted_op(f"{name}/view", "Reshape", (var, shape), name))

    def _dims(self, var: VarId) -> Dims:
        return tuple(dim for dim in self.vars[var].shape or () if isinstance(dim, int))

    def _slice_op(self, var: VarId, name: VarId, axis: int, places: Range) -> Op:
        if self.graph.facts.opset < _SLICES_BY_INPUT:
            told: Mapping[str, Attribute] = {
                "starts": places[:1],
                "ends": places[1:],
                "axes": (axis,),
            }
            return inserted_op(f"{name}/slice", "Slice", (var,), name, told)
        bounds = tuple(self.constant((each,)) for each in (*places, axis))
        return inserted_op(f"{name}/slice", "Slice", (var, *bounds), name)

    def constant(self, values: Dims) -> VarId:
        """Return a weight of these numbers."""
        if values not in self.constants:
            told = "_".join(map(str, values))
            if len(values) > _MOST_TOLD:
                told = f"{values[0]}_to_{values[-1]}"
            name = self._new(f"{self.prefix}_{told}")
            facts = Var(name, "int64", (len(values),), Origin.WEIGHT, name)
            self.vars[name] = facts
            self.constants[values] = name
        return self.constants[values]

    def cut(self, var: VarId, suffix: str, axis: int, places: Range) -> VarId:
        """Return a weight that is a range of another."""
        dims = list(self._dims(var))
        dims[axis] = places[1] - places[0]
        name = self.made(var, suffix, tuple(dims))
        self.vars[name] = self.vars[name]._replace(origin=Origin.WEIGHT)
        self.cuts[name] = Cut(self.vars[var].name, axis, *places)
        return name

    def made(
        self, var: VarId, suffix: str, dims: Dims | None = None, dtype: str | None = None
    ) -> VarId:
        """Add a var named after another; without ``dims`` or ``dtype`` they are those of that one."""
        facts = self.vars[var]
        name = self._new(f"{var}{suffix}")
        self.vars[name] = facts._replace(
            id=name,
            dtype=dtype or facts.dtype,
            shape=facts.shape if dims is None else dims,
            origin=Origin.OP,
            name=f"{facts.name}{name[len(var) :]}",
        )
        return name

    def _new(self, name: str) -> VarId:
        while name in self.vars:
            name += "_"
        return VarId(name)
