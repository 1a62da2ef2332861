"""Ops, vars and constants that chunking adds to a program.

Added ops (slices, joins, views) have no node in the file. Their small constants, such
as the bounds of a slice or the shape of a chunk, become new weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.names import FreshNames
from memplan_cli.core.program import Op, Origin, Var, VarId
from memplan_cli.features.chunking.axes.windows import SPATIAL_AXES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Attribute
    from memplan_cli.features.chunking.axes.split import Dims, Range
    from memplan_cli.features.chunking.graph import Graph

INSERTED = -1
"""The ``source`` of an op that has no node in the file."""

_MEMORY_AXIS = 2
"""The axis of rows or columns in *memory dims* (`ProgramWriter`)."""

_SLICE_INPUTS_OPSET = 10
"""The opset since which Slice has its bounds as inputs; before, as attributes."""

_MAX_NAMED_VALUES = 8
"""Values of a constant that its name lists; longer constants are named by first and last."""


class ProgramWriter:
    """Collects the ops of a rewritten program, and adds vars and constants as they are needed.

    A tensor in the runtime's blocked channel layout has the dims ``[N, C, H, W]``, but its
    elements lie in memory as ``[N, C / block, H, W, block]``. An ordinary Slice or Concat of
    rows (H) or columns (W) would move the wrong elements. So such a tensor is first reshaped to
    its *memory dims*, in which axis 2 is the sliced one, and reshaped back after it. They are
    ``[N, C / block, H, W * block]`` for rows and ``[N, C / block * H, W, block]`` for columns.

    Attributes:
        graph: the program that is rewritten.
        ops: the ops so far, in order; the caller appends the original's ops too.
        vars: the vars of the program and the added ones.
        constants: the var of each added int64 constant, by its values.
        maybe_unused: vars of the original that may be unused from now on; the caller fills it.
        _var_names: makes the names of new vars.
        _op_names: makes the names of new ops.
    """

    def __init__(self, graph: Graph, constant_prefix: str = "chunk") -> None:
        """Start with no ops and the vars of ``graph``. Names of constants begin with ``constant_prefix``."""
        self.graph, self._constant_prefix = graph, constant_prefix
        self.ops: list[Op] = []
        self.vars = dict(graph.program.vars)
        self.constants: dict[Dims, VarId] = {}  # by their values
        self.maybe_unused: set[VarId] = set()  # outputs and weights of replaced ops
        self._var_names = FreshNames(graph.value_names)
        self._op_names = FreshNames(graph.node_names)

    def op_name(self, preferred: str) -> str:
        """Return an unused name for an op, ``preferred`` itself if possible."""
        return self._op_names.fresh(preferred)

    def new_op(
        self,
        name: str,
        kind: str,
        inputs: tuple[VarId, ...],
        output: VarId,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Op:
        """Return an op with one output that has no node in the file; it is not appended to the ops.

        ``name`` is the preferred one, see `op_name`.
        """
        return Op(
            name=self.op_name(name),
            type=kind,
            inputs=inputs,
            outputs=(output,),
            source=INSERTED,
            attributes=attributes or {},
        )

    def concat(
        self, name: str, parts: tuple[VarId, ...], output: VarId, axis: int, original: VarId
    ) -> None:
        """Append a Concat of ``parts`` along an axis; ``name`` is its preferred name.

        The parts are slices of the tensor ``original``, in the same layout. ``output`` is in ``self.vars``
        already.

        In the blocked channel layout, rows and columns are joined in *memory dims* (see
        `ProgramWriter`): Reshapes of the parts come before the Concat, and one of the result after it.
        """
        if not self._needs_memory_dims(axis, original):
            self.ops.append(self.new_op(name, "Concat", parts, output, {"axis": axis}))
            return
        reshaped_parts = tuple(self._reshape_to_memory_dims(part, axis) for part in parts)
        joined = self._new_var_with_memory_dims(output, axis)
        attributes: Mapping[str, Attribute] = {"axis": _MEMORY_AXIS}
        self.ops.append(self.new_op(name, "Concat", reshaped_parts, joined, attributes))
        self.reshape(joined, output)

    def slice(
        self, var: VarId, output: VarId, axis: int, bounds: Range, original: VarId
    ) -> None:
        """Append a Slice of a range of ``var`` along an axis.

        ``var`` is the tensor ``original`` or a slice of it, in the same layout. ``bounds`` are counted in
        ``var``. ``output`` is in ``self.vars`` already.

        In the blocked channel layout, rows and columns are sliced between two Reshapes, to *memory dims* and
        back (see `ProgramWriter`): ``[1, 16, 28, 28]`` becomes, with blocks of 8 channels, ``[1, 2, 28, 28 * 8]``
        for rows and ``[1, 2 * 28, 28, 8]`` for columns. Both lie along axis 2 then, with the same bounds.
        """
        if not self._needs_memory_dims(axis, original):
            self.ops.append(self._slice_op(var, output, axis, bounds))
            return
        reshaped = self._reshape_to_memory_dims(var, axis)
        sliced = self._new_var_with_memory_dims(output, axis)
        self.ops.append(self._slice_op(reshaped, sliced, _MEMORY_AXIS, bounds))
        self.reshape(sliced, output)

    def _needs_memory_dims(self, axis: int, original: VarId) -> bool:
        """Whether a Slice or Concat along an axis is one of rows or columns in the blocked layout."""
        return axis in SPATIAL_AXES and original in self.graph.blocked_vars

    def _reshape_to_memory_dims(self, var: VarId, axis: int) -> VarId:
        """Append a Reshape of an image in the blocked layout to its *memory dims*; return the output."""
        reshaped = self._new_var_with_memory_dims(var, axis)
        self.reshape(var, reshaped)
        return reshaped

    def _new_var_with_memory_dims(self, var: VarId, axis: int) -> VarId:
        """Add and return a var for the same memory as an image ``var``, seen with the sliced axis as axis 2.

        With blocks of 8 channels, an image ``[1, 16, 28, 28]`` lies in memory as ``[1, 2, 28, 28, 8]``. To
        slice rows, it is seen as ``[1, 2, 28, 28 * 8]``; to slice columns, as ``[1, 2 * 28, 28, 8]``.
        """
        samples, channels, rows, columns = self._dims(var)
        block = self.graph.context.channel_block
        dims_to_slice_rows = samples, channels // block, rows, columns * block
        dims_to_slice_columns = samples, channels // block * rows, columns, block
        is_by_row = axis == SPATIAL_AXES[0]
        return self.new_var(
            var, "_rows", dims_to_slice_rows if is_by_row else dims_to_slice_columns
        )

    def reshape(self, var: VarId, output: VarId) -> None:
        """Append a Reshape of ``var`` to the dims of ``output``."""
        shape = self.constant(self._dims(output))
        self.ops.append(self.new_op(f"{output}/view", "Reshape", (var, shape), output))

    def _slice_op(self, var: VarId, output: VarId, axis: int, bounds: Range) -> Op:
        """Return a Slice whose bounds are inputs or, before opset 10, attributes."""
        name = f"{output}/slice"
        if self.graph.context.opset < _SLICE_INPUTS_OPSET:
            attributes: Mapping[str, Attribute] = {
                "starts": bounds[:1],
                "ends": bounds[1:],
                "axes": (axis,),
            }
            return self.new_op(name, "Slice", (var,), output, attributes)
        start, stop, axes = (self.constant((value,)) for value in (*bounds, axis))
        return self.new_op(name, "Slice", (var, start, stop, axes), output)

    def constant(self, values: Dims) -> VarId:
        """Return an int64 constant ``[len(values)]`` with these values, added at its first use."""
        if values not in self.constants:
            suffix = "_".join(map(str, values))
            if len(values) > _MAX_NAMED_VALUES:
                suffix = f"{values[0]}_to_{values[-1]}"
            name = VarId(self._var_names.fresh(f"{self._constant_prefix}_{suffix}"))
            self.vars[name] = Var(name, "int64", (len(values),), Origin.WEIGHT, name)
            self.constants[values] = name
        return self.constants[values]

    def new_var(
        self, var: VarId, suffix: str, dims: Dims | None = None, dtype: str | None = None
    ) -> VarId:
        """Add and return a var that an op makes, named after ``var``.

        ``dims`` and ``dtype`` of None mean those of ``var``.
        """
        record = self.vars[var]
        name = VarId(self._var_names.fresh(f"{var}{suffix}"))
        self.vars[name] = record._replace(
            id=name,
            dtype=dtype or record.dtype,
            shape=record.shape if dims is None else dims,
            origin=Origin.OP,
            name=name,
        )
        return name

    def _dims(self, var: VarId) -> Dims:
        """Return the shape of a var, original or added, whose dimensions are numbers."""
        return tuple(dim for dim in self.vars[var].shape or () if isinstance(dim, int))
