"""Loss functions to put behind a model that has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import TensorProto, helper

from memplan_cli.errors import SettingsError
from memplan_cli.features.training.forward.tensors import FLOATS, infer_tensors, tensor_of
from memplan_cli.onnx_io.graph_editor import FreshNames, names_in, producer_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import GraphProto, ModelProto

    from memplan_cli.core.program import Dim, Shape

IGNORED_LABEL = -100
"""Rows with this label have no part in the loss, as in PyTorch."""


@dataclass(frozen=True, slots=True)
class LossFunction:
    """What is compared with what: ``output`` ("": the model's first) with input ``labels``."""

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
class Comparison:
    """A model's result, its type, and the name of what it is compared with."""

    result: str
    dtype: int
    shape: Shape
    labels: str


def add_loss(model: ModelProto, function: LossFunction) -> str:
    """Put a loss behind a model, in place, and return its name.

    The labels are an input of the model, a new one if it has none of that name.

    Raises:
        SettingsError: the output does not exist, or its shape is not known.
    """
    graph = model.graph
    output = function.output or graph.output[0].name
    if output not in {name for node in graph.node for name in node.output}:
        raise SettingsError(f"the model computes no tensor {output!r}")
    tensor = infer_tensors(model).get(output)
    if tensor is None or not tensor.shape:
        raise SettingsError(f"the shape of {output!r} is not known: no loss can be added")
    if tensor.dtype not in FLOATS:
        raise SettingsError(
            f"{output!r} is of type {_word(tensor.dtype)}: a loss is made of floats",
            hint="name another result with --output",
        )
    result = Comparison(output, tensor.dtype, tensor.shape, function.labels)
    return LOSSES[function.kind](graph, result)


_CLASSES = frozenset({TensorProto.INT32, TensorProto.INT64})


def _word(dtype: int) -> str:
    return str(TensorProto.DataType.Name(dtype)).lower()


def softmax_cross_entropy(graph: GraphProto, given: Comparison) -> str:
    """Mean of -log softmax(result)[label]; a final Softmax of the model is taken out first.

    Classes are on axis 1 of images ([N, C, H, W] and more), else on the last axis.

    Raises:
        SettingsError: the labels are no whole numbers.
    """
    rank = len(given.shape)
    axis = 1 if rank >= 4 else rank - 1
    write = _Writer(graph)
    logits = _before_softmax(graph, given.result, (axis, rank))
    labels = given.labels
    if _is_new(graph, labels):
        rest = tuple(dim for i, dim in enumerate(given.shape) if i != axis)
        _add_input(graph, labels, TensorProto.INT64, rest)
    kind = next(tensor_of(v.type).dtype for v in graph.input if v.name == labels)
    if kind not in _CLASSES:
        raise SettingsError(
            f"the labels {labels!r} are of type {_word(kind)}: they are numbers of classes",
            hint="name another input with --labels",
        )
    zero, one_axis = write.constant(0, kind), write.constant([axis], TensorProto.INT64)
    ignored = write("Equal", labels, write.constant(IGNORED_LABEL, kind))
    safe = write("Where", ignored, zero, labels)
    logs = write("LogSoftmax", logits, axis=axis)
    column = write("Unsqueeze", safe, one_axis)
    picked = write("Squeeze", write("GatherElements", logs, column, axis=axis), one_axis)
    kept = write("Where", ignored, write.constant(0, given.dtype), picked)
    count = write("Cast", write("Not", ignored), to=given.dtype)
    total = write("ReduceSum", kept, keepdims=0)
    mean = write("Div", total, write("ReduceSum", count, keepdims=0))
    return write.loss("Neg", mean, given.dtype)


def mean_squared_error(graph: GraphProto, given: Comparison) -> str:
    """Mean of (result - labels)^2 over all elements."""
    write = _Writer(graph)
    if _is_new(graph, given.labels):
        _add_input(graph, given.labels, given.dtype, given.shape)
    error = write("Sub", given.result, given.labels)
    return write.loss("ReduceMean", write("Mul", error, error), given.dtype, keepdims=0)


LOSSES: Mapping[str, Callable[[GraphProto, Comparison], str]] = {
    "softmax-cross-entropy": softmax_cross_entropy,
    "mse": mean_squared_error,
}


class _Writer:
    """Appends nodes to a graph under new names."""

    def __init__(self, graph: GraphProto) -> None:
        self.graph = graph
        self.fresh = FreshNames(names_in(graph)).fresh

    def __call__(self, kind: str, *inputs: str, **attributes: object) -> str:
        name = self.fresh(f"loss/{kind}")
        self.graph.node.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, value: float | list[int], dtype: int) -> str:
        """Add an initializer and return its name."""
        name = self.fresh("loss/const")
        values = value if isinstance(value, list) else [value]
        dims = [len(values)] if isinstance(value, list) else []
        self.graph.initializer.append(helper.make_tensor(name, dtype, dims, values))
        return name

    def loss(self, kind: str, name: str, dtype: int, **attributes: object) -> str:
        """Append the last node; its result is the graph's first output."""
        loss = self.fresh("loss")
        self.graph.node.append(
            helper.make_node(kind, [name], [loss], name="loss", **attributes)
        )
        outputs = [helper.make_tensor_value_info(loss, dtype, []), *self.graph.output]
        del self.graph.output[:]
        self.graph.output.extend(outputs)
        return loss


def _before_softmax(graph: GraphProto, name: str, place: tuple[int, int]) -> str:
    """Return the logits that a final Softmax over the classes was given, else the name."""
    axis, rank = place
    node = producer_nodes(graph.node).get(name)
    if node is None or node.op_type != "Softmax":
        return name
    over = next((a.i for a in node.attribute if a.name == "axis"), -1)
    return str(node.input[0]) if over % rank == axis else name


def _is_new(graph: GraphProto, name: str) -> bool:
    return name not in {value.name for value in graph.input}


def _add_input(graph: GraphProto, name: str, dtype: int, shape: tuple[Dim, ...]) -> None:
    graph.input.append(helper.make_tensor_value_info(name, dtype, list(shape)))
