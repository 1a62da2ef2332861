"""Splits: how one op is computed in chunks along one axis.

A `Split` names an axis of an op's iteration space. A chunk is a range of that axis. For every
input and output an `AxisMap` gives the range of a tensor axis that belongs to a chunk; None
means that the chunk reads the whole input, or leaves the output out. For the rows of a MatMul ``[16, 64] x
[64, 32] -> [16, 32]``:

    extent 16     A: AxisMap(0)   B: None     C: AxisMap(0)
    chunk 8..16   A[8:16, :]      all of B    C[8:16, :]

A chunk depends on nothing but these slices, so chunks can be computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memplan_cli.core.program import Attribute, Op, Program, VarId

Dims = tuple[int, ...]
"""A shape whose dimensions are all numbers."""

Number = int | float

Range = tuple[int, int]
"""``(start, stop)``, half-open."""


class Role(Enum):
    """What the split axis is to the operator. It decides which chunks keep the bits (`kernels`)."""

    FREE = "free"
    """Elements, rows or samples that no kernel mixes or blocks together."""
    ROWS = "rows"
    """Rows of a matrix product."""
    COLUMNS = "columns"
    """Columns of a matrix product."""
    QUERIES = "queries"
    """Query rows of an attention."""
    TILES = "tiles"
    """A spatial axis of a sliding window."""


class AxisMap(NamedTuple):
    """Maps a range of a split to the range of one axis of an input or output.

    ``start..stop`` of the split is ``start * scale - halo_before .. stop * scale +
    halo_after`` of the axis, cropped to the axis. A 3-wide convolution with stride 1 and
    padding 1 reads ``AxisMap(2, 1, 1, 1)``: output rows 4..8 read input rows 3..9, and output
    rows 0..4 read -1..5, which crops to 0..5 (row -1 is padding).

    Attributes:
        axis: axis of the tensor.
        scale: elements of the tensor axis for each element of the split.
        halo_before: further elements that are read before the range.
        halo_after: further elements that are read after it.
    """

    axis: int
    scale: int = 1
    halo_before: int = 0
    halo_after: int = 0

    def uncropped_range(self, chunk: Range) -> Range:
        """Return the range of the axis; it may reach beyond the axis into padding."""
        return (
            chunk[0] * self.scale - self.halo_before,
            chunk[1] * self.scale + self.halo_after,
        )

    def range(self, chunk: Range, dim: int) -> Range:
        """Return the range of an axis of ``dim`` elements; start and stop are equal if it is empty."""
        start, stop = (min(max(bound, 0), dim) for bound in self.uncropped_range(chunk))
        return start, stop


class Split(NamedTuple):
    """One way to compute an op in chunks.

    Attributes:
        extent: length of the axis that is split.
        inputs: by position; None: every chunk reads the whole input.
        outputs: by position; None: chunks leave the output out, so that it has to be unused.
        role: what the axis is to the operator.
    """

    extent: int
    inputs: tuple[AxisMap | None, ...]
    outputs: tuple[AxisMap | None, ...]
    role: Role = Role.FREE


class MissingInputError(Exception):
    """A node of an invalid model lacks an input that its operator cannot omit."""


@dataclass(frozen=True, slots=True)
class Node:
    """An op with all that its split rule may read.

    Attributes:
        op: the op itself.
        inputs: shapes by position; None for an omitted input.
        outputs: shapes by position; None for an omitted output.
        constants: values of small constant inputs, by position.
        opset: version of the standard operators.
    """

    op: Op
    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims | None, ...]
    constants: Mapping[int, tuple[Number, ...]] = field(default_factory=dict)
    opset: int = 0

    def input_shape(self, position: int) -> Dims | None:
        """Return the shape of an input; None for an omitted one."""
        return self.inputs[position] if position < len(self.inputs) else None

    def required_shape(self, position: int) -> Dims:
        """Return the shape of an input that the operator cannot omit.

        Raises:
            MissingInputError: the node does not have this input.
        """
        shape = self.input_shape(position)
        if shape is None:
            raise MissingInputError
        return shape

    @property
    def data_shape(self) -> Dims:
        """The shape of the first input, which no operator can omit (`required_shape`)."""
        return self.required_shape(0)

    @property
    def output_shape(self) -> Dims:
        """The shape of the first output."""
        return self.outputs[0] or ()

    def int_attribute(self, name: str, default: int) -> int:
        """Return an int attribute."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def ints_attribute(self, name: str) -> Dims | None:
        """Return an attribute that is a list of ints; None if the op does not have it."""
        value = self.op.attributes.get(name)
        if not isinstance(value, tuple):
            return None
        return tuple(int(element) for element in value)

    def string_attribute(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def split(
        self,
        extent: int,
        inputs: Mapping[int, AxisMap | None],
        outputs: Mapping[int, AxisMap | None],
        role: Role = Role.FREE,
    ) -> Split:
        """Return a split with axis maps by position; inputs and outputs without one stay whole."""
        return Split(
            extent,
            tuple(inputs.get(position) for position in range(len(self.inputs))),
            tuple(outputs.get(position) for position in range(len(self.outputs))),
            role,
        )


SplitRule = Callable[[Node], tuple[Split, ...]]
"""Returns the splits of an operator; empty if shapes or constants do not tell enough."""


class ChunkEdit(NamedTuple):
    """What the op of a chunk has in place of the original op's attributes and constant inputs.

    Attributes:
        attributes: replaced or added attributes.
        constants: replaced int64 inputs, by position.
        surplus: elements of the first output that the chunk makes before and after its own
            range, because it reads a halo. They are sliced off.
    """

    attributes: Mapping[str, Attribute] = {}
    constants: Mapping[int, Dims] = {}
    surplus: tuple[int, int] = (0, 0)


EditRule = Callable[[Node, Split, Range], ChunkEdit]
"""Returns the edit of a chunk, for operators whose attributes or inputs state sizes or padding."""


@dataclass(frozen=True, slots=True)
class ModelContext:
    """What splits depend on besides shapes.

    Attributes:
        constants: values of small constants.
        opset: version of the standard operators.
        channel_block: channels of one block in the runtime's blocked layout; 0: unknown.
    """

    constants: Mapping[VarId, tuple[Number, ...]] = field(default_factory=dict)
    opset: int = 0
    channel_block: int = 0


def node_of(op: Op, program: Program, context: ModelContext) -> Node | None:
    """Return an op with its shapes; None if a dimension is not a number."""
    inputs = _shapes(op.inputs, program)
    outputs = _shapes(op.outputs, program)
    if inputs is None or outputs is None:
        return None
    constants = {
        position: context.constants[var]
        for position, var in enumerate(op.inputs)
        if var in context.constants
    }
    return Node(op, inputs, outputs, constants, context.opset)


def _shapes(variables: tuple[VarId, ...], program: Program) -> tuple[Dims | None, ...] | None:
    """Return the shape of each variable, None for an omitted one.

    None instead of the tuple means that some dimension is not a number.
    """
    shapes: list[Dims | None] = []
    for var in variables:
        if not var:
            shapes.append(None)
            continue
        shape = program.vars[var].shape
        if shape is None:
            return None
        dims = tuple(dim for dim in shape if isinstance(dim, int))
        if len(dims) < len(shape):
            return None
        shapes.append(dims)
    return tuple(shapes)


def broadcast_axis(shape: Dims | None, output_shape: Dims, axis: int) -> AxisMap | None:
    """Return the axis of a broadcast input under an axis of the output; None if it is repeated.

    For shape ``[1, 64]`` and output ``[8, 16, 64]``: axis 2 gives ``AxisMap(1)``, axes 0 and 1
    give None.
    """
    if shape is None:
        return None
    input_axis = axis - (len(output_shape) - len(shape))
    is_sliced = input_axis >= 0 and shape[input_axis] == output_shape[axis] != 1
    return AxisMap(input_axis) if is_sliced else None


def same_axis_splits(node: Node, axes: Iterable[int]) -> tuple[Split, ...]:
    """Return the splits along axes that the first input has in common with all outputs.

    All other inputs stay whole.
    """
    return tuple(
        node.split(
            extent=node.data_shape[axis],
            inputs={0: AxisMap(axis)},
            # Omitted outputs have no shape.
            outputs={i: AxisMap(axis) for i, shape in enumerate(node.outputs) if shape},
        )
        for axis in axes
    )
