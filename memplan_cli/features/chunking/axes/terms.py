"""Splits: one axis of an op's iteration, and what a range of it reads and writes.

An op is split along an axis of its iteration: a range of that axis is one piece of the op.
For each input and output a `Part` says which range of which of its axes the piece needs or
makes; None is the whole tensor. A piece reads and writes ranges of tensors and nothing else,
so pieces can be computed one after the other.

    rows of a MatMul   A [M, K]   B [K, N]   C [M, N]
    piece 8..16        8..16      whole      8..16
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memplan_cli.core.program import Attribute, Op, Program, VarId

Dims = tuple[int, ...]
"""A shape whose dims are all numbers."""

Number = int | float

Range = tuple[int, int]
"""Half-open: ``start <= at < stop``."""


class Role(Enum):
    """What an axis is to an operator: kernels keep the bits of some splits only."""

    FREE = "free"
    """Elements, rows or whole samples that no kernel mixes or blocks together."""
    ROWS = "rows"
    """Rows of a product."""
    COLUMNS = "columns"
    """Columns of a product."""
    QUERIES = "queries"
    """Query rows of an attention."""
    TILES = "tiles"
    """A spatial axis of a sliding window."""


class Part(NamedTuple):
    """The range of a tensor's axis that belongs to a range of a split.

    Range ``start..stop`` of the split is ``start * scale - before .. stop * scale + after`` of
    the axis, cut off at its ends. What is cut off is padding.
    """

    axis: int
    scale: int = 1
    before: int = 0
    after: int = 0

    def reach(self, piece: Range) -> Range:
        """Return the range of the axis, ends not cut off."""
        return piece[0] * self.scale - self.before, piece[1] * self.scale + self.after

    def range(self, piece: Range, dim: int) -> Range:
        """Return the range of an axis of so many elements."""
        start, stop = self.reach(piece)
        return max(start, 0), min(stop, dim)


class Split(NamedTuple):
    """One way to compute an op in pieces.

    Attributes:
        extent: The length of the axis that is split.
        inputs: By position; None is read whole.
        outputs: By position; None is made whole by every piece.
        role: What the axis is to the operator.
    """

    extent: int
    inputs: tuple[Part | None, ...]
    outputs: tuple[Part | None, ...]
    role: Role = Role.FREE


@dataclass(frozen=True, slots=True)
class Node:
    """An op with what its rules read: numbers for dims, and small constants.

    Attributes:
        op: The op itself.
        inputs: Shapes by position; None for what is left out.
        outputs: Shapes by position; None for what is left out.
        constants: Values of small constant inputs, by position.
        opset: The version of the standard operators.
    """

    op: Op
    inputs: tuple[Dims | None, ...]
    outputs: tuple[Dims | None, ...]
    constants: Mapping[int, tuple[Number, ...]] = field(default_factory=dict)
    opset: int = 0

    def shape(self, position: int) -> Dims | None:
        """Return the shape of an input; None for one that is left out."""
        return self.inputs[position] if position < len(self.inputs) else None

    @property
    def made(self) -> Dims:
        """The shape of the first output."""
        return self.outputs[0] or ()

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, int) else default

    def integers(self, name: str) -> Dims | None:
        """Return an attribute that is a list of whole numbers; None where there is none."""
        value = self.op.attributes.get(name)
        if not isinstance(value, tuple):
            return None
        return tuple(int(each) for each in value)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is text."""
        value = self.op.attributes.get(name, default)
        return value if isinstance(value, str) else default

    def split(
        self,
        extent: int,
        inputs: Mapping[int, Part | None],
        outputs: Mapping[int, Part | None],
        role: Role = Role.FREE,
    ) -> Split:
        """Return a split by positions; whatever is not named is whole."""
        return Split(
            extent,
            tuple(inputs.get(at) for at in range(len(self.inputs))),
            tuple(outputs.get(at) for at in range(len(self.outputs))),
            role,
        )


Rule = Callable[[Node], tuple[Split, ...]]
"""The splits of an operator; none where it does not know enough."""


class Causal(NamedTuple):
    """A mask of query rows by keys: each row sees the keys up to its own place.

    Attributes:
        rows: The places of the rows.
        keys: How many keys there are.
    """

    rows: Range
    keys: int


class Edit(NamedTuple):
    """What a piece of an op has instead of the op's own attributes and constants."""

    attributes: Mapping[str, Attribute] = {}
    constants: Mapping[int, Dims] = {}
    """By input position."""
    masks: Mapping[int, Causal] = {}
    """By input position, of inputs that the op itself leaves out."""
    beyond: tuple[int, int] = (0, 0)
    """What a piece makes of its first output before and after its own range, to be cut off."""


Editor = Callable[[Node, Split, Range], Edit]
"""What changes in a piece of an operator that says sizes or padding itself."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What splits hang on besides shapes.

    Attributes:
        constants: Values of small constants.
        opset: The version of the standard operators.
        block: Channels of a block where a runtime lays them out so; 0 where nobody knows.
    """

    constants: Mapping[VarId, tuple[Number, ...]] = field(default_factory=dict)
    opset: int = 0
    block: int = 0


def node_of(op: Op, program: Program, facts: Facts) -> Node | None:
    """Return an op with its shapes; None where some dim is not a number."""
    inputs = _shapes(op.inputs, program)
    outputs = _shapes(op.outputs, program)
    if inputs is None or outputs is None:
        return None
    known = {
        at: facts.constants[var] for at, var in enumerate(op.inputs) if var in facts.constants
    }
    return Node(op, inputs, outputs, known, facts.opset)


def _shapes(vars_: tuple[VarId, ...], program: Program) -> tuple[Dims | None, ...] | None:
    found: list[Dims | None] = []
    for var in vars_:
        shape = program.vars[var].shape if var else None
        if var and shape is None:
            return None
        dims = tuple(dim for dim in shape or () if isinstance(dim, int))
        if var and shape is not None and len(dims) < len(shape):
            return None
        found.append(dims if var else None)
    return tuple(found)


def aligned(shape: Dims | None, made: Dims, axis: int) -> Part | None:
    """Return the axis of a broadcast input that gives an axis of a result; None if repeated."""
    if shape is None:
        return None
    at = axis - (len(made) - len(shape))
    return Part(at) if at >= 0 and shape[at] == made[axis] != 1 else None
