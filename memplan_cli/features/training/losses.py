"""Loss functions that are appended to a model without a loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from memplan_cli.core.names import FreshNames
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.tensors import FLOATS, infer_tensors, tensor_of
from memplan_cli.onnx_io.graph_editor import names_in, producer_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import GraphProto, ModelProto

    from memplan_cli.core.program import Shape

IGNORED_LABEL = -100
"""Rows with this label have no part in the loss, as in PyTorch."""


@dataclass(frozen=True, slots=True)
class LossFunction:
    """A loss function and the tensors that it compares.

    Attributes:
        kind: a key of `LOSSES`.
        labels: the input of the model with the labels; it is added if missing.
        output: the tensor that is compared with the labels; empty: the model's first output.
    """

    kind: str
    labels: str = "labels"
    output: str = ""

    def __post_init__(self) -> None:
        if self.kind not in LOSSES:
            raise SettingsError(
                f"there is no loss function {self.kind!r}",
                hint=f"the loss functions are {', '.join(LOSSES)}",
            )


@dataclass(frozen=True, slots=True)
class LossOperands:
    """A model's output with its type, and the name of the labels that it is compared with."""

    output: str
    dtype: int
    shape: Shape
    labels: str


def add_loss(model: ModelProto, function: LossFunction) -> str:
    """Append a loss function to a model, in place, and return the name of the loss.

    Raises:
        SettingsError: the output does not exist, has no known shape or rank 0, or is not of a float
            type.
    """
    graph = model.graph
    output = function.output or graph.output[0].name
    if output not in producer_nodes(graph.node):
        raise SettingsError(f"the model computes no tensor {output!r}")
    tensor = infer_tensors(model).get(output)
    if tensor is None or tensor.shape is None:
        raise SettingsError(f"the shape of {output!r} is not known: no loss can be added")
    if tensor.shape == ():
        raise SettingsError(
            f"{output!r} is one number: a loss is made of several",
            hint="if it is the loss already, name it with --loss",
        )
    if tensor.dtype not in FLOATS:
        raise SettingsError(
            f"{output!r} is of type {_dtype_name(tensor.dtype)}: a loss is made of floats",
            hint="name another result with --output",
        )
    operands = LossOperands(output, tensor.dtype, tensor.shape, function.labels)
    return LOSSES[function.kind](graph, operands)


_LABEL_TYPES = frozenset({TensorProto.INT32, TensorProto.INT64})


def softmax_cross_entropy(graph: GraphProto, operands: LossOperands) -> str:
    """Append L = mean of -log softmax(X)[label], and return its name.

    If the model ends with a Softmax, X is the input of that Softmax. Classes are on axis 1 of images
    ([N, C, H, W] and more axes), otherwise on the last axis. Labels are class numbers. The mean is over the
    labels that are not `IGNORED_LABEL`: ignored ones are replaced by class 0, and their summands by 0.

    Raises:
        SettingsError: the labels are not integers.
    """
    rank, labels = len(operands.shape), operands.labels
    # An output of rank 3 is a sequence [N, length, classes].
    axis = 1 if rank >= 4 else rank - 1
    writer = _LossWriter(graph)
    logits = _softmax_input(graph, operands.output, axis, rank)
    label_type = _ensure_labels(graph, operands, axis)
    zero, axes = writer.constant(0, label_type), writer.constant([axis], TensorProto.INT64)
    is_ignored = writer.add("Equal", labels, writer.constant(IGNORED_LABEL, label_type))
    valid_labels = writer.add("Where", is_ignored, zero, labels)
    log_softmax = writer.add("LogSoftmax", logits, axis=axis)
    indices = writer.add("Unsqueeze", valid_labels, axes)
    picked = writer.add(
        "Squeeze", writer.add("GatherElements", log_softmax, indices, axis=axis), axes
    )
    summands = writer.add("Where", is_ignored, writer.constant(0, operands.dtype), picked)
    is_counted = writer.add("Cast", writer.add("Not", is_ignored), to=operands.dtype)
    total = writer.add("ReduceSum", summands, keepdims=0)
    mean = writer.add("Div", total, writer.add("ReduceSum", is_counted, keepdims=0))
    return writer.add_loss("Neg", mean, operands.dtype)


def _ensure_labels(graph: GraphProto, operands: LossOperands, axis: int) -> int:
    """Add an int64 input for class numbers to a graph that has none; return the input's element type.

    ``axis`` is that of the classes, which labels do not have.

    Raises:
        SettingsError: the input is not of an integer type.
    """
    labels = operands.labels
    shape = (*operands.shape[:axis], *operands.shape[axis + 1 :])
    _ensure_input(graph, labels, TensorProto.INT64, shape)
    label_type = next(tensor_of(v.type).dtype for v in graph.input if v.name == labels)
    if label_type not in _LABEL_TYPES:
        raise SettingsError(
            f"the labels {labels!r} are of type {_dtype_name(label_type)}: they are numbers of"
            " classes",
            hint="name another input with --labels",
        )
    return label_type


def mean_squared_error(graph: GraphProto, operands: LossOperands) -> str:
    """Append L = mean of (X - labels)^2 over all elements, and return its name."""
    writer = _LossWriter(graph)
    _ensure_input(graph, operands.labels, operands.dtype, operands.shape)
    error = writer.add("Sub", operands.output, operands.labels)
    square = writer.add("Mul", error, error)
    return writer.add_loss("ReduceMean", square, operands.dtype, keepdims=0)


LOSSES: Mapping[str, Callable[[GraphProto, LossOperands], str]] = {
    "softmax-cross-entropy": softmax_cross_entropy,
    "mse": mean_squared_error,
}


class _LossWriter:
    """Appends nodes and initializers with new names to a graph."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.fresh = FreshNames(names_in(graph)).fresh

    def add(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Append a node and return the name of its output."""
        name = self.fresh(f"loss/{kind}")
        self.graph.node.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: float | list[int], dtype: int) -> str:
        """Append an initializer of rank 0 or 1 and return its name."""
        name = self.fresh("loss/const")
        values = value if isinstance(value, list) else [value]
        dims = [len(values)] if isinstance(value, list) else []
        self.graph.initializer.append(helper.make_tensor(name, dtype, dims, values))
        return name

    def add_loss(self, kind: str, input_: str, dtype: int, **attributes: object) -> str:
        """Append the last node, make its output the first output of the graph, and return its name."""
        loss = self.fresh("loss")
        self.graph.node.append(
            helper.make_node(kind, [input_], [loss], name=loss, **attributes)
        )
        outputs = [helper.make_tensor_value_info(loss, dtype, []), *self.graph.output]
        del self.graph.output[:]
        self.graph.output.extend(outputs)
        return loss


def _softmax_input(graph: GraphProto, name: str, axis: int, rank: int) -> str:
    """Return the input of the Softmax over ``axis`` that computes a tensor, or the tensor itself.

    The loss applies LogSoftmax to the result; after a Softmax that would be a second one.
    """
    node = producer_nodes(graph.node).get(name)
    if node is None or node.op_type != "Softmax" or node.domain:
        return name
    # The default is -1 in the opsets that `prepare` returns.
    softmax_axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return str(node.input[0]) if softmax_axis % rank == axis else name


def _ensure_input(graph: GraphProto, name: str, dtype: int, shape: Shape) -> None:
    """Add a graph input, in place, unless the graph has one of that name."""
    if name not in {value.name for value in graph.input}:
        graph.input.append(helper.make_tensor_value_info(name, dtype, list(shape)))


def _dtype_name(dtype: int) -> str:
    return str(TensorProto.DataType.Name(dtype)).lower()
