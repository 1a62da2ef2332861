"""The weights of a forward model, and which of them a training step trains."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from memplan_cli.core.operators import EVERY_INPUT, Family, operator
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.tensors import FLOATS, tensor_of
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from onnx import GraphProto, NodeProto


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight that is an input of a training step, whose new value is an output.

    The weight ``w`` of the forward model is the input ``in.w`` and the output ``new.w``.

    Attributes:
        name: the weight's name in the forward model, or a new name.
        dtype: element type as a number of `TensorProto.DataType`.
        sizes: its shape.
        source: the weight of the forward model with the initial value, if it has another name.
    """

    name: str
    dtype: int
    sizes: tuple[int, ...]
    source: str = ""

    @property
    def origin(self) -> str:
        """The weight of the forward model that has the initial value."""
        return self.source or self.name

    @property
    def stem(self) -> str:
        """The name without the prefix ``in.`` that a graph input may already have."""
        return self.name.removeprefix("in.")

    @property
    def input(self) -> str:
        """The name of the training step's input for the value before the step."""
        return f"in.{self.stem}"

    @property
    def output(self) -> str:
        """The name of the training step's output for the value after it."""
        return f"new.{self.stem}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which weights of a model are trained.

    Attributes:
        parameters: the weights to train.
        not_trained: the other float weights of rank 1 or more, and the reason for each.
    """

    parameters: tuple[Parameter, ...]
    not_trained: Mapping[str, str]


def select_parameters(
    graph: GraphProto, train: Sequence[str] = (), freeze: Sequence[str] = ()
) -> Selection:
    """Select the weights to train.

    Without ``train`` these are the weights that operators read at an input of `_LEARNED_INPUTS`.
    Names and globs in ``train`` may also name float inputs of the graph of fixed size. Those in
    ``freeze`` are excluded in any case.

    Raises:
        SettingsError: a glob matches nothing, or no weight remains.
    """
    weights = float_weights(graph)
    trainable = {**weights, **float_inputs(graph)}
    if train:
        selected = {name for glob in train for name in _matches(glob, trainable)}
        reason = "--train does not name it"
    else:
        selected = _learned_weights(graph, weights)
        reason = "no operator reads it as a trainable weight"
    frozen = {name for glob in freeze for name in _matches(glob, trainable)}
    trained = selected - frozen
    if not trained:
        raise SettingsError("no parameter is left to train", hint="see --train and --freeze")
    reasons = {
        name: "frozen" if name in frozen else reason
        for name, weight in weights.items()
        # Scalars have no reason: most are constants, such as an epsilon.
        if weight.sizes and name not in trained
    }
    return Selection(tuple(p for name, p in trainable.items() if name in trained), reasons)


def float_weights(graph: GraphProto) -> dict[str, Parameter]:
    """Return the initializers of a float type."""
    return {
        tensor.name: Parameter(tensor.name, tensor.data_type, tuple(tensor.dims))
        for tensor in graph.initializer
        if tensor.data_type in FLOATS
    }


def float_inputs(graph: GraphProto) -> dict[str, Parameter]:
    """Return the graph inputs of a float type and of fixed size."""
    inputs = {}
    for value in graph.input:
        tensor = tensor_of(value.type)
        if tensor.dtype in FLOATS and tensor.sizes is not None:
            inputs[value.name] = Parameter(value.name, tensor.dtype, tensor.sizes)
    return inputs


def _matches(glob: str, trainable: Mapping[str, Parameter]) -> list[str]:
    """Return the trainable tensors that a name or glob matches.

    Raises:
        SettingsError: there are none.
    """
    if glob in trainable:  # a name may contain brackets, which a glob would interpret
        return [glob]
    matches = [name for name in trainable if fnmatchcase(name, glob)]
    if not matches:
        near = get_close_matches(glob, trainable, n=3, cutoff=0.4)
        raise SettingsError(
            f"no float weight matches {glob!r}",
            hint=f"did you mean {', '.join(near)}?" if near else "",
        )
    return matches


_LEARNED_INPUTS: Mapping[str, Container[int]] = {
    "Add": frozenset({0, 1}),
    "Attention": frozenset({0, 1, 2}),
    "BatchNormalization": frozenset({1, 2}),
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "GRU": frozenset({1, 2, 3}),
    "Gather": frozenset({0}),
    "Gemm": frozenset({0, 1, 2}),
    "GroupNormalization": frozenset({1, 2}),
    "InstanceNormalization": frozenset({1, 2}),
    "LSTM": frozenset({1, 2, 3, 7}),
    "LayerNormalization": frozenset({1, 2}),
    "MatMul": frozenset({0, 1}),
    "Mul": frozenset({0, 1}),
    "PRelu": frozenset({1}),
    "RMSNormalization": frozenset({1}),
    "RNN": frozenset({1, 2, 3}),
    "Sum": EVERY_INPUT,
}
"""Inputs at which an operator reads a weight that training changes. Bounds of a Clip, scales of a
Resize, running statistics and the like are at other inputs."""

_REARRANGING = frozenset({Family.JOIN, Family.PERMUTATION, Family.REPETITION, Family.SLICE})
"""Families that only move elements, besides views."""


def _learned_weights(graph: GraphProto, weights: Mapping[str, Parameter]) -> set[str]:
    """Return the weights of rank 1 or more that reach an input of `_LEARNED_INPUTS`.

    Operators that only move elements, or cast them, may be in between.
    """
    # The weights whose elements a tensor consists of; at first each weight itself.
    origins: dict[str, tuple[str, ...]] = {
        name: (name,) for name, weight in weights.items() if weight.sizes
    }
    learned: set[str] = set()
    for node in (node for inner in graphs(graph) for node in inner.node):
        learned_inputs = _LEARNED_INPUTS.get(node.op_type, ())
        for index, name in enumerate(node.input):
            if index in learned_inputs:
                learned.update(origins.get(name, ()))
        input_origins = tuple(o for name in node.input for o in origins.get(name, ()))
        if input_origins and _moves_elements(node):
            origins.update(dict.fromkeys(node.output, input_origins))
    return learned


def _moves_elements(node: NodeProto) -> bool:
    """Whether a weight stays a weight behind this operator: it moves or casts its elements."""
    traits = operator(node)
    return traits.is_view or traits.family in _REARRANGING or traits.name == "Cast"
