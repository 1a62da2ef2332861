"""The tape to which gradient rules write nodes, and the call that describes one forward node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from memplan_cli.core.names import FreshNames
from memplan_cli.errors import ModelError
from memplan_cli.features.training.tensors import UNKNOWN, Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike

    from memplan_cli.core.program import Shape
    from memplan_cli.features.training.tensors import Array

PHASE = "pkg.memplan.phase"
"""The node metadata key that records which part of the step a node belongs to."""


class Phase(Enum):
    """The three parts of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"


def set_phase(node: NodeProto, phase: Phase) -> None:
    """Record a node's phase in its metadata, in place of a previous one."""
    others = [entry for entry in node.metadata_props if entry.key != PHASE]
    del node.metadata_props[:]
    node.metadata_props.extend(others)
    node.metadata_props.add(key=PHASE, value=phase.value)


_MAX_FLOAT16 = 65504.0
"""The largest finite float16."""

_DIVISOR_STEP = 2.0**15
"""A divisor above `_MAX_FLOAT16` is replaced by this power of two, as often as needed, and the rest."""


class UnknownShapeError(ModelError):
    """A rule needs a shape, or another value, that is not known before the model runs."""


class ConstantPool(FreshNames):
    """Fresh names, and one initializer for equal constants; all tapes of a model share it.

    Attributes:
        initializers: the constants so far, to be added to the graph.
        _names: their names, by element type, shape and bytes.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        super().__init__(taken)
        self.initializers: list[TensorProto] = []
        self._names: dict[tuple[int, tuple[int, ...], bytes], str] = {}

    def constant(self, array: Array, dtype: int) -> str:
        """Return the name of the initializer with these values; it is created if missing."""
        key = (dtype, array.shape, array.tobytes())
        if key not in self._names:
            name = self.fresh(f"const/{len(self._names)}")
            tensor = numpy_helper.from_array(array, name)
            if tensor.data_type != dtype:  # a type that the array cannot have
                tensor = helper.make_tensor(name, dtype, array.shape, array.ravel())
            self.initializers.append(tensor)
            self._names[key] = name
        return self._names[key]


@dataclass(slots=True)
class Tape:
    """The nodes that rules have written so far, and what is known of the forward tensors.

    Methods that add a node return the name of its output. Types and shapes are known of forward
    tensors, not of gradients. So where the shape or element type of a gradient is needed, a method
    takes a forward tensor ``like`` that has the same.

    Attributes:
        tensors: dtype and shape of the forward tensors, by name.
        values: the values of the small constants among them.
        pool: the new names and constants.
        phase: the phase of the nodes that are added.
        nodes: the new nodes in order; they run after the whole forward pass.
        forward_additions: new nodes of the forward pass, by the tensor whose producer they follow.
        replacements: nodes in place of a forward node, by its first output.
        shape_tensors: int64 vectors with the shapes of forward tensors of unknown size.
        opset: version of the standard operators in the model.
        rules: the gradient rules by operator.
    """

    tensors: dict[str, Tensor]
    values: Mapping[str, Array]
    pool: ConstantPool
    phase: Phase = Phase.BACKWARD
    nodes: list[NodeProto] = field(default_factory=list)
    forward_additions: dict[str, list[NodeProto]] = field(default_factory=dict)
    replacements: dict[str, list[NodeProto]] = field(default_factory=dict)
    shape_tensors: dict[str, str] = field(default_factory=dict)
    opset: int = 0
    rules: Mapping[str, Rule] = field(default_factory=dict)

    # Nodes

    def emit(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node with one output and return the output's name."""
        return self.emit_many(kind, inputs, 1, **attributes)[0]

    def emit_many(
        self, kind: str, inputs: Sequence[str], count: int, **attributes: object
    ) -> tuple[str, ...]:
        """Add a node with ``count`` outputs and return their names."""
        node = self.make_node(kind, inputs, count, **attributes)
        self.nodes.append(node)
        return tuple(node.output)

    def make_node(
        self, kind: str, inputs: Sequence[str], count: int = 1, **attributes: object
    ) -> NodeProto:
        """Return a new node with ``count`` new outputs, without adding it anywhere."""
        name = self.pool.fresh(f"{self.phase.value}/{kind}")
        outputs = [self.pool.fresh(f"{name}:{index}") for index in range(count)]
        node = helper.make_node(kind, inputs, outputs, name=name, **attributes)
        set_phase(node, self.phase)
        return node

    def take_nodes(self) -> list[NodeProto]:
        """Return the nodes that were added so far; the tape then has none."""
        taken, self.nodes = self.nodes, []
        return taken

    def copy_to(self, output: str, name: str) -> None:
        """Add an Identity node that gives the tensor ``name`` the second name ``output``."""
        node = self.make_node("Identity", [name])
        node.output[0] = output
        self.nodes.append(node)

    def add_to_forward(self, name: str, node: NodeProto) -> None:
        """Add a node to the forward pass, right behind the producer of the tensor ``name``."""
        set_phase(node, Phase.FORWARD)
        self.forward_additions.setdefault(name, []).append(node)

    # What is known of forward tensors

    def tensor(self, name: str) -> Tensor:
        """Return dtype and shape of a tensor, as far as they are known."""
        return self.tensors.get(name, UNKNOWN)

    def dtype(self, name: str) -> int:
        """Return the element type of a tensor as a number of `TensorProto.DataType`."""
        return self.tensor(name).dtype

    def shape(self, name: str) -> Shape:
        """Return the shape of a forward tensor; dims of unknown size are symbols or None.

        Raises:
            UnknownShapeError: the rank is not known.
        """
        shape = self.tensor(name).shape
        if shape is None:
            raise UnknownShapeError(
                f"the rank of tensor {name!r} is not known, and its gradient depends on it",
                hint="run onnx.shape_inference over the model, or export it with shapes",
            )
        return shape

    def rank(self, name: str) -> int:
        """Return the number of dimensions of a forward tensor."""
        return len(self.shape(name))

    def sizes(self, name: str, *, why: str = "") -> tuple[int, ...]:
        """Return the shape of a forward tensor as numbers; ``why`` explains the need in the error.

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
        """Return the values of a small constant of the model, None for other tensors."""
        return self.values.get(name)

    def copy_type(self, name: str, like: str) -> str:
        """Record that the new tensor ``name`` has the type and shape of ``like``; return ``name``."""
        self.tensors[name] = self.tensor(like)
        return name

    # Constants

    def constant(self, values: ArrayLike, dtype: int) -> str:
        """Return the name of a constant with these values and this ONNX element type.

        Raises:
            UnknownShapeError: the type is 0, which stands for unknown.
        """
        if not dtype:
            raise UnknownShapeError(
                "the element type of a tensor is not known, and its gradient depends on it",
                hint="run onnx.shape_inference over the model",
            )
        numpy_dtype = helper.tensor_dtype_to_np_dtype(dtype)
        return self.pool.constant(np.asarray(values, dtype=numpy_dtype), dtype)

    def scalar(self, value: float, like: str) -> str:
        """Return a constant of rank 0 and of the element type of the tensor ``like``."""
        return self.constant(value, self.dtype(like))

    def ints(self, *values: int) -> str:
        """Return a one-dimensional int64 constant."""
        return self.constant(np.asarray(values, np.int64), TensorProto.INT64)

    # Shapes

    def shape_of(self, name: str) -> str:
        """Return an int64 vector with the shape of a forward tensor.

        It is a constant if the shape is known. Otherwise a Shape node in the forward pass
        reads it right after the tensor's producer, so that the tensor can be freed.
        """
        sizes = self.tensor(name).sizes
        if sizes is not None:
            return self.ints(*sizes)
        if name not in self.shape_tensors:
            node = self.make_node("Shape", [name])
            self.add_to_forward(name, node)
            self.shape_tensors[name] = node.output[0]
        return self.shape_tensors[name]

    def reshape_like(self, gradient: str, like: str) -> str:
        """Reshape a gradient to the shape of the forward tensor ``like``, which may have dims of size 0."""
        shape = self.tensor(like).shape
        if shape is not None:
            dims = [dim if isinstance(dim, int) else -1 for dim in shape]
            # Reshape infers one -1, and only if no dim is 0.
            if dims.count(-1) <= 1 and 0 not in dims:
                return self.emit("Reshape", gradient, self.ints(*dims))
        return self.emit("Reshape", gradient, self.shape_of(like), allowzero=1)

    def zeros_like(self, name: str) -> str:
        """Return zeros of the type and shape of a forward tensor."""
        return self.emit("Expand", self.scalar(0, name), self.shape_of(name))

    def unstack(self, name: str, count: int) -> list[str]:
        """Split a tensor into its ``count`` slices along the first axis, which the slices do not have."""
        if count == 1:
            return [self.emit("Squeeze", name, self.ints(0))]
        parts = self.emit_many("Split", [name], count, axis=0, num_outputs=count)
        return [self.emit("Squeeze", part, self.ints(0)) for part in parts]

    def stack(self, names: Sequence[str]) -> str:
        """Concatenate tensors of one shape along a new first axis."""
        parts = [self.emit("Unsqueeze", name, self.ints(0)) for name in names]
        return self.emit("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]

    # Division by counts

    def divide(self, name: str, count: int, like: str) -> str:
        """Return a tensor divided by a count; ``like`` has the tensor's element type.

        In float16 a count above 65504 would be infinite, so there are several Div nodes then; in other
        types there is one.
        """
        divisor = float(count)
        max_divisor = _MAX_FLOAT16 if self.dtype(like) == TensorProto.FLOAT16 else divisor
        while divisor > max_divisor:
            name = self.emit("Div", name, self.scalar(_DIVISOR_STEP, like))
            divisor /= _DIVISOR_STEP
        return self.emit("Div", name, self.scalar(divisor, like))

    def divide_by_tensor(self, name: str, count: str, like: str) -> str:
        """Return a tensor divided by an int64 scalar; ``like`` has the tensor's element type.

        Float16 is divided in float32, because the count may be too large for float16.
        """
        dtype = self.dtype(like)
        if dtype != TensorProto.FLOAT16:
            return self.emit("Div", name, self.emit("Cast", count, to=dtype))
        operands = [self.emit("Cast", part, to=TensorProto.FLOAT) for part in (name, count)]
        return self.emit("Cast", self.emit("Div", *operands), to=dtype)


Rule = Callable[["Call"], tuple[str, ...]]
"""A gradient rule: from a call to the gradient of each input, ``""`` for none."""


@dataclass(frozen=True, slots=True)
class Call:
    """One forward node as its gradient rule sees it.

    Attributes:
        node: the forward node.
        inputs: what the node reads, captures of its subgraphs last; ``""``: no gradient flows there.
            (`input` returns the name in any case.)
        gradients: the gradient of each output, ``""`` if none flows.
        wanted: for each of ``inputs``, whether its gradient is needed.
        tape: where the rule writes its nodes.
    """

    node: NodeProto
    inputs: tuple[str, ...]
    gradients: tuple[str, ...]
    wanted: tuple[bool, ...]
    tape: Tape

    @property
    def label(self) -> str:
        """The node's name, or that of its first output if it has none."""
        return self.node.name or self.output()

    def input(self, index: int) -> str:
        """Return an input's name, ``""`` if it is omitted."""
        return str(self.node.input[index]) if index < len(self.node.input) else ""

    def output(self, index: int = 0) -> str:
        """Return an output's name, ``""`` if it is omitted."""
        return str(self.node.output[index]) if index < len(self.node.output) else ""

    def wants(self, index: int) -> bool:
        """Whether the gradient of this input is needed."""
        return index < len(self.wanted) and self.wanted[index]

    @property
    def dy(self) -> str:
        """The gradient of the first output."""
        return self.gradients[0]

    def attribute(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - ONNX's own
        """Return an attribute's value, bytes as text; ``default`` if the node does not have it."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def optional_output(self, index: int, tensor: Tensor) -> str:
        """Return the name of an optional output of the forward node.

        An omitted output is added to the node, and recorded on the tape with the type ``tensor``.
        """
        while len(self.node.output) <= index:
            self.node.output.append("")
        if not self.node.output[index]:
            name = self.tape.pool.fresh(f"{self.node.output[0]}:saved{index}")
            self.node.output[index] = name
            self.tape.tensors[name] = tensor
        return str(self.node.output[index])

    def constant_input(self, index: int) -> Array | None:
        """Return the values of an input that is a small constant of the model, else None."""
        return self.tape.value(self.input(index))
