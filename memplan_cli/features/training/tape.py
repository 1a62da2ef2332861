"""Tape of a backward pass: the nodes it collects, and what rules know of the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.forward.tensors import UNKNOWN, Tensor
from memplan_cli.onnx_io.graph_editor import FreshNames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from memplan_cli.core.program import Shape
    from memplan_cli.features.training.forward.tensors import Array

PHASE = "pkg.memplan.phase"
"""The node metadata key that records which part of the step a node belongs to."""


class Phase(Enum):
    """The three parts of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def mark(node: NodeProto, phase: Phase) -> None:
    """Record a node's phase, in place of any it had."""
    kept = [entry for entry in node.metadata_props if entry.key != PHASE]
    del node.metadata_props[:]
    node.metadata_props.extend(kept)
    node.metadata_props.add(key=PHASE, value=phase.value)


_MOST = {TensorProto.FLOAT16: 65504.0}
"""The largest number of an element type that counts of elements go beyond."""

_STEP = 2.0**15
"""What a count is divided by until it fits."""


class UnknownShapeError(ModelError):
    """A rule needs a shape that the model does not give."""


class Pool(FreshNames):
    """What all tapes of one model share: names in use and the constants made so far."""

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__(taken)
        self.constants: dict[tuple[int, tuple[int, ...], bytes], str] = {}
        self.tensors: list[TensorProto] = []

    def constant(self, array: Array, dtype: int) -> str:
        """Return the name of an initializer with these values, one for equal ones."""
        key = (dtype, array.shape, array.tobytes())
        if key not in self.constants:
            name = self.fresh(f"const/{len(self.constants)}")
            tensor = numpy_helper.from_array(array, name)
            if tensor.data_type != dtype:
                tensor = helper.make_tensor(name, dtype, array.shape, array.ravel())
            self.tensors.append(tensor)
            self.constants[key] = name
        return self.constants[key]


@dataclass(slots=True)
class Tape:
    """Collects nodes, and answers what rules ask about forward tensors.

    ``nodes`` run after the whole forward part, in order. ``after`` holds nodes of the
    forward part to run right behind the producer of a tensor; ``instead`` what replaces a
    forward node, by the first name it produces. ``opset`` is the version of the standard
    operators that the forward nodes are of, ``rules`` the gradient rules by operator.
    """

    tensors: dict[str, Tensor]
    values: Mapping[str, Array]
    pool: Pool
    phase: Phase = Phase.BACKWARD
    nodes: list[NodeProto] = field(default_factory=list)
    after: dict[str, list[NodeProto]] = field(default_factory=dict)
    instead: dict[str, list[NodeProto]] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)
    opset: int = 0
    rules: Mapping[str, Rule] = field(default_factory=dict)

    def emit(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        return self.emit_many(kind, inputs, 1, **attributes)[0]

    def emit_many(
        self, kind: str, inputs: Sequence[str], count: int, **attributes: object
    ) -> tuple[str, ...]:
        """Add a node with ``count`` outputs and return their names."""
        node = self.make(kind, inputs, count, **attributes)
        self.nodes.append(node)
        return tuple(node.output)

    def make(
        self, kind: str, inputs: Sequence[str], count: int = 1, **attributes: object
    ) -> NodeProto:
        """Return a new node with new output names, not yet placed anywhere."""
        name = self.pool.fresh(f"{self.phase.value}/{kind}")
        outputs = [self.pool.fresh(f"{name}:{index}") for index in range(count)]
        node = helper.make_node(kind, inputs, outputs, name=name, **attributes)
        mark(node, self.phase)
        return node

    def tensor(self, name: str) -> Tensor:
        """Return what is known of a forward tensor."""
        return self.tensors.get(name, UNKNOWN)

    def dtype(self, name: str) -> int:
        """Return the element type of a forward tensor, as ONNX numbers them."""
        return self.tensor(name).dtype

    def shape(self, name: str) -> Shape:
        """Return the shape of a forward tensor; symbols stand for unknown numbers.

        Raises:
            UnknownShapeError: not even its rank is known.
        """
        shape = self.tensor(name).shape
        if shape is None:
            raise UnknownShapeError(
                f"the rank of tensor {name!r} is not known, and its gradient depends on it",
                hint="run onnx.shape_inference over the model, or export it with shapes",
            )
        return shape

    def rank(self, name: str) -> int:
        """Return how many dimensions a forward tensor has."""
        return len(self.shape(name))

    def sizes(self, name: str, why: str = "") -> tuple[int, ...]:
        """Return the shape of a forward tensor as numbers.

        Raises:
            UnknownShapeError: some dimension is not known.
        """
        sizes = self.tensor(name).sizes
        if sizes is None:
            raise UnknownShapeError(
                f"the shape of tensor {name!r} is {self.shape(name)}, and its gradient needs"
                f" numbers{': ' + why if why else ''}",
                hint="export the model with fixed sizes for these dimensions",
            )
        return sizes

    def value(self, name: str) -> Array | None:
        """Return a forward tensor's values where they are constants in the model."""
        return self.values.get(name)

    def scalar(self, value: float, like: str) -> str:
        """Return a constant without dimensions, of the type of a forward tensor."""
        return self.constant(value, self.dtype(like))

    def divided(self, name: str, count: int, like: str) -> str:
        """Divide a tensor of a forward tensor's type by a count.

        What float16 cannot hold, 65505 and more, is divided by in steps of a power of two.
        """
        rest = float(count)
        while rest > _MOST.get(self.dtype(like), rest):
            name = self.emit("Div", name, self.scalar(_STEP, like))
            rest /= _STEP
        return self.emit("Div", name, self.scalar(rest, like))

    def divided_at_run_time(self, name: str, count: str, like: str) -> str:
        """Divide a tensor of a forward tensor's type by an int64 scalar, in float32 at least."""
        dtype = self.dtype(like)
        if dtype not in _MOST:
            return self.emit("Div", name, self.emit("Cast", count, to=dtype))
        wide = TensorProto.FLOAT
        parts = [self.emit("Cast", part, to=wide) for part in (name, count)]
        return self.emit("Cast", self.emit("Div", *parts), to=dtype)

    def constant(self, values: ArrayLike, dtype: int) -> str:
        """Return the name of a constant of an ONNX element type.

        Raises:
            UnknownShapeError: the type is not known.
        """
        if not dtype:
            raise UnknownShapeError(
                "the element type of a tensor is not known, and its gradient depends on it",
                hint="run onnx.shape_inference over the model",
            )
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        return self.pool.constant(np.asarray(values, dtype=kind), dtype)

    def ints(self, *values: int) -> str:
        """Return a one-dimensional int64 constant."""
        return self.constant(np.asarray(values, np.int64), TensorProto.INT64)

    def shape_of(self, name: str) -> str:
        """Return a one-dimensional int64 tensor with a forward tensor's shape.

        It is a constant where the shape is known. Else a Shape node reads it right after
        the tensor is made, so that nothing keeps the tensor itself alive.
        """
        sizes = self.tensor(name).sizes
        if sizes is not None:
            return self.ints(*sizes)
        if name not in self.shapes:
            node = self.make("Shape", [name])
            self.place_after(name, node)
            self.shapes[name] = node.output[0]
        return self.shapes[name]

    def place_after(self, name: str, node: NodeProto) -> None:
        """Make a node part of the forward pass, right behind a tensor's producer."""
        mark(node, Phase.FORWARD)
        self.after.setdefault(name, []).append(node)

    def reshape_like(self, gradient: str, like: str) -> str:
        """Give a gradient the shape of a forward tensor, where 0 means no element."""
        shape = self.tensor(like).shape
        if shape is not None:
            dims = [dim if isinstance(dim, int) else -1 for dim in shape]
            if dims.count(-1) <= 1 and 0 not in dims:
                return self.emit("Reshape", gradient, self.ints(*dims))
        return self.emit("Reshape", gradient, self.shape_of(like), allowzero=1)

    def zeros_like(self, name: str) -> str:
        """Return zeros of the type and shape of a forward tensor."""
        return self.emit("Expand", self.scalar(0, name), self.shape_of(name))

    def note(self, name: str, like: str) -> str:
        """Remember that a new tensor has a forward tensor's type and shape."""
        self.tensors[name] = self.tensor(like)
        return name


Rule = Callable[["Call"], tuple[str, ...]]
"""From a call to the gradient of each of its inputs, ``""`` where there is none."""

Sweep = Callable[
    ["Sequence[NodeProto]", "Mapping[str, str]", "Collection[str]", "Tape"], dict[str, str]
]
"""Writes the gradient nodes of some nodes to a tape: `backward.sweep`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One forward node as its rule sees it.

    ``gradients`` has the gradient of each output (``""``: none flows); ``wanted`` says for
    each input, captures of subgraphs included, whether its gradient is asked for; ``sweep``
    goes back through the nodes of a subgraph.
    """

    node: NodeProto
    inputs: tuple[str, ...]
    gradients: tuple[str, ...]
    wanted: tuple[bool, ...]
    tape: Tape
    sweep: Sweep | None = None

    def input(self, index: int) -> str:
        """Return an input's name, ``""`` where it is omitted."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def output(self, index: int = 0) -> str:
        """Return an output's name, ``""`` where it is omitted."""
        return str(self.node.output[index]) if index < len(self.node.output) else ""

    def wants(self, index: int) -> bool:
        """Whether this input's gradient is asked for."""
        return index < len(self.wanted) and self.wanted[index]

    @property
    def dy(self) -> str:
        """The gradient of the first output."""
        return self.gradients[0]

    def attribute(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - ONNX's own
        """Return an attribute's value, bytes as text."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def saved(self, index: int, like: Tensor) -> str:
        """Return the name of an optional output, which the node from now on gives."""
        while len(self.node.output) <= index:
            self.node.output.append("")
        if not self.node.output[index]:
            name = self.tape.pool.fresh(f"{self.node.output[0]}:saved{index}")
            self.node.output[index] = name
            self.tape.tensors[name] = like
        return str(self.node.output[index])

    def constant_input(self, index: int) -> Array | None:
        """Return an input's values where they are constants in the model."""
        return self.tape.value(self.input(index))
