"""Trained weights of a model, and their first values."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from onnx import helper, numpy_helper

from memplan_cli.core.operators import Family, operator
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.forward.tensors import FLOATS, tensor_of
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import GraphProto, NodeProto


@dataclass(frozen=True, slots=True)
class Parameter:
    """A weight that a training step takes as an input and gives back as an output.

    ``source`` is the weight whose value it starts with, where that is another.
    """

    name: str
    dtype: int
    sizes: tuple[int, ...]
    source: str = ""

    @property
    def origin(self) -> str:
        """The weight of the model whose value this starts with."""
        return self.source or self.name

    @property
    def stem(self) -> str:
        """The name without the ``in.`` that a graph input may already have."""
        return self.name.removeprefix("in.")

    @property
    def input(self) -> str:
        """The name of the training step's input."""
        return f"in.{self.stem}"

    @property
    def output(self) -> str:
        """The name of the training step's output."""
        return f"new.{self.stem}"


_EVERY = frozenset(range(64))

_LEARNED_AT: Mapping[str, frozenset[int]] = {
    "Add": frozenset({0, 1}),
    "Attention": frozenset({0, 1, 2}),
    "BatchNormalization": frozenset({1, 2}),
    "Conv": frozenset({1, 2}),
    "ConvTranspose": frozenset({1, 2}),
    "Einsum": _EVERY,
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
    "Sum": _EVERY,
}
"""Where operators take what training changes, so that bounds, scales of a resize, running
statistics and the like stay as they are when no parameters are named."""

_REARRANGING = frozenset({Family.JOIN, Family.PERMUTATION, Family.REPETITION, Family.SLICE})


def _passes_a_weight_on(node: NodeProto) -> bool:
    """Whether a weight may pass this operator before it is used."""
    traits = operator(node)
    return traits.is_view or traits.family in _REARRANGING or traits.name == "Cast"


def candidates(graph: GraphProto) -> dict[str, Parameter]:
    """Return every weight of a float type: initializers, and what ConstantOfShape makes."""
    found = {
        tensor.name: Parameter(tensor.name, tensor.data_type, tuple(tensor.dims))
        for tensor in graph.initializer
        if tensor.data_type in FLOATS
    }
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in shapes:
            dtype = _filler(node)[0]
            sizes = tuple(numpy_helper.to_array(shapes[node.input[0]]).tolist())
            if dtype in FLOATS:
                found[node.output[0]] = Parameter(node.output[0], dtype, sizes)
    return found


def choose(
    graph: GraphProto, train: Sequence[str] = (), freeze: Sequence[str] = ()
) -> tuple[Parameter, ...]:
    """Return the weights to train.

    Without ``train``: those used where operators take learned values. Names and globs in
    ``train`` may also name float inputs of the graph of fixed size.

    Raises:
        SettingsError: a glob matches nothing, or nothing is left.
    """
    known = candidates(graph)
    named = {**known, **float_inputs(graph)}
    if train:
        chosen = {name for glob in train for name in _matching(glob, named)}
    else:
        chosen = _learned(graph, known)
    for glob in freeze:
        chosen -= set(_matching(glob, named))
    if not chosen:
        raise SettingsError("no parameter is left to train", hint="see --train and --freeze")
    return tuple(parameter for name, parameter in named.items() if name in chosen)


def left_out(
    graph: GraphProto, train: Sequence[str] = (), freeze: Sequence[str] = ()
) -> dict[str, str]:
    """Return the weights of rank 1 or more that `choose` leaves out, and why."""
    known = {name: weight for name, weight in candidates(graph).items() if weight.sizes}
    named = {**known, **float_inputs(graph)}
    frozen = {name for glob in freeze for name in _matching(glob, named)}
    if train:
        chosen = {name for glob in train for name in _matching(glob, named)}
        why = "--train does not name it"
    else:
        chosen, why = _learned(graph, known), "no operator learns what is read there"
    return {
        name: "frozen" if name in frozen else why
        for name in known
        if name in frozen or name not in chosen
    }


def _learned(graph: GraphProto, known: Mapping[str, Parameter]) -> set[str]:
    origin: dict[str, tuple[str, ...]] = {
        name: (name,) for name, p in known.items() if p.sizes
    }
    found: set[str] = set()
    for node in (node for inner in graphs(graph) for node in inner.node):
        places = _LEARNED_AT.get(node.op_type, frozenset())
        for index, name in enumerate(node.input):
            if index in places and name in origin:
                found.update(origin[name])
        moved = [origin[name] for name in node.input if name in origin]
        if moved and _passes_a_weight_on(node):
            for name in node.output:
                origin[name] = tuple(part for parts in moved for part in parts)
    return found


def float_inputs(graph: GraphProto) -> dict[str, Parameter]:
    """Return the inputs of a float type and of fixed size."""
    found = {}
    for value in graph.input:
        tensor = tensor_of(value.type)
        if tensor.dtype in FLOATS and tensor.sizes is not None:
            found[value.name] = Parameter(value.name, tensor.dtype, tensor.sizes)
    return found


def _matching(glob: str, named: Mapping[str, Parameter]) -> list[str]:
    if glob in named:
        return [glob]
    found = [name for name in named if fnmatchcase(name, glob)]
    if not found:
        near = get_close_matches(glob, named, n=3, cutoff=0.4)
        raise SettingsError(
            f"no float weight matches {glob!r}",
            hint=f"did you mean {', '.join(near)}?" if near else "",
        )
    return found


def _filler(node: NodeProto) -> tuple[int, float]:
    """Return the element type and the value that a ConstantOfShape node gives."""
    for attribute in node.attribute:
        if attribute.name == "value":
            tensor = helper.get_attribute_value(attribute)
            return tensor.data_type, float(numpy_helper.to_array(tensor).ravel()[0])
    return 1, 0.0
