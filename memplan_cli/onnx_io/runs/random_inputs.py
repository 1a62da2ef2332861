"""Random inputs that a model accepts, by what its operators require of their operands.

An index must stay inside the axis that it indexes, a square root takes no negative numbers, and a
repeat count must be small. An input is followed through operators that move or convert its values
(and into subgraphs) to all operators with such a requirement.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

from onnx import TensorProto, helper, numpy_helper

from memplan_cli.core.bindings import FeedSpec
from memplan_cli.core.operators import operator
from memplan_cli.core.symbolic.sizes import bind_dim
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.interface import fed_inputs, names_taken, tensor_dims
from memplan_cli.onnx_io.shapes.symbolic.values import int_attribute
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import container_and_tensor_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.bindings import Feed, Feeds
    from memplan_cli.core.program import Dim, Shape

_NO_LIMIT = 2**31 - 1


class _Distribution(NamedTuple):
    """How the values of an input are drawn: the fields of a `FeedSpec` with these names.

    Integers are drawn from ``[low, high)``.
    """

    kind: str
    low: int = 0
    high: int = 0
    values: tuple[int, ...] = ()


_UNRESTRICTED: Mapping[str, _Distribution] = {
    "bool": _Distribution("integers", 0, 2),
    "int8": _Distribution("integers", -128, 128),
    "uint8": _Distribution("integers", 0, 256),
}
"""How integers are drawn that no operator restricts, by dtype."""

_MASK = _Distribution("mask", 0, 2)
"""How unrestricted integers of wider dtypes are drawn, which are mostly masks of 0 and 1."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one operator requires of the values of an operand.

    Attributes:
        kind: ``index``: in ``[0, high)``; ``values``: exactly ``values``; ``equal``: ``values``, if
            the operand is a single number; ``positive``: greater than zero.
        high: of an ``index``, the length of the indexed axis.
        values: of ``values`` and ``equal``, the values of the operand.
    """

    kind: Literal["index", "values", "equal", "positive"]
    high: int = _NO_LIMIT
    values: tuple[int, ...] = ()


_CONVERSIONS = frozenset({"Cast", "CastLike"})
"""Operators that convert the values of their first input."""

_KEEPS_SIGN = frozenset({"Add", "Mul", "Div", "Sum", "Max", "ReduceSum", "ReduceMean"})
"""Operators whose results are positive if their inputs are."""

_ONE_HOT_DEPTH = 8
"""The depth of a OneHot, the number of its classes, if it is drawn."""

_SMALL_VALUES: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("TopK", 1): (1,),
    ("Tile", 1): (1,),
    ("Pad", 1): (0,),
    ("Slice", 1): (0,),
    ("Slice", 2): (_NO_LIMIT,),
    ("Slice", 3): (0,),
    ("Slice", 4): (1,),
    ("Range", 0): (0,),
    ("Range", 1): (8,),
    ("Range", 2): (1,),
    ("Loop", 0): (3,),
    ("Loop", 1): (1,),
    ("OneHot", 1): (_ONE_HOT_DEPTH,),
    ("Resize", 2): (1,),
    ("CumSum", 1): (0,),
    ("Trilu", 1): (0,),
    ("Unsqueeze", 1): (0,),
    ("Squeeze", 1): (0,),
}
"""Operator and input position -> a value with which any model runs: axes, counts, bounds."""

_SHAPES = frozenset({("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Resize", 3)})
"""Operator and input position of a shape operand: its values are the dims of the result."""

_POSITIVE = frozenset(
    {
        ("Sqrt", 0),
        ("Log", 0),
        ("Pow", 0),
        ("Pow", 1),
        ("Div", 1),
        ("Mod", 1),
        ("BatchNormalization", 4),
    }
)
"""Operator and input position of an operand that must be positive."""

_INDEXED: Mapping[tuple[str, int], int] = {
    ("Gather", 1): 0,
    ("GatherElements", 1): 0,
    ("GatherND", 1): 0,
    ("ScatterND", 1): 0,
    ("ScatterElements", 1): 0,
    ("Scatter", 1): 0,
    ("ArrayFeatureExtractor", 1): 0,
    ("SoftmaxCrossEntropyLoss", 1): 0,
    ("NegativeLogLikelihoodLoss", 1): 0,
    ("EmbedLayerNormalization", 0): 2,
    ("EmbedLayerNormalization", 1): 4,
    ("SequenceAt", 1): 0,
    ("LSTM", 4): 0,
    ("GRU", 4): 0,
    ("RNN", 4): 0,
    ("ReverseSequence", 1): 0,
}
"""Operator and input position of indices -> input position of the indexed tensor."""

_Origin = Literal["copy", "sign"]
"""How a value depends on the model input that it is computed from.

``copy``: its elements are elements of the input, moved or converted; ``sign``: it is positive if the input
is, and nothing else is known.
"""


class Requirements:
    """The requirements on each value of a model, from all graphs that read it.

    Dims may be symbolic: methods take ``dims``, the number of each symbol.
    """

    def __init__(self, model: ModelProto, names_taken: Collection[str]) -> None:
        """Collect the readers, shapes and integer constants of all graphs.

        Args:
            model: The model.
            names_taken: Names that no dim without a name may get.
        """
        self._names_taken = names_taken
        # By name of the value: the nodes that read it, with the input position; its declared shape; the
        # number in a scalar integer constant.
        self._readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self._shapes: dict[str, Shape] = {}
        self._integers: dict[str, int] = {}
        for graph in graphs(model.graph):
            self._add_graph(graph)

    def _add_graph(self, graph: GraphProto) -> None:
        """Collect the readers, shapes and integer constants of a graph.

        The shape of an initializer or of a Constant's value replaces a declared shape.
        """
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.tensor_type.HasField("shape"):
                # A dim without a name gets one that is not taken.
                dims = tensor_dims(value, value.type.tensor_type, self._names_taken)
                self._shapes.setdefault(value.name, dims)
        for tensor in graph.initializer:
            self._add_tensor(tensor.name, tensor)
        for node in graph.node:
            for position, name in enumerate(node.input):
                self._readers[name].append((node, position))
            stored = stored_tensor(node)
            if stored is not None:
                self._add_tensor(node.output[0], stored)

    def _add_tensor(self, name: str, tensor: TensorProto) -> None:
        """Collect the shape of a weight, and its value if it is a single integer."""
        self._shapes[name] = tuple(tensor.dims)
        is_integer = tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
        has_data = tensor.data_location != TensorProto.EXTERNAL
        if tensor.dims in ([], [1]) and is_integer and has_data:
            self._integers[name] = int(numpy_helper.to_array(tensor).reshape(-1)[0])

    def of_input(self, name: str, dims: Mapping[str, int]) -> Iterator[Requirement]:
        """Yield requirements on the values of a model input, so that nodes accept them and what is computed from them.

        All requirements on a copy of the input hold for the input. Of those on another value, such as x + y, only
        "positive" is yielded: Log(x + y) accepts a positive x if y is drawn positive too.
        """
        seen: set[tuple[str, _Origin]] = set()
        stack: list[tuple[str, _Origin]] = [(name, "copy")]
        while stack:
            value, origin = stack.pop()  # ``value`` is computed from the input; see `_Origin`
            if (value, origin) in seen:
                continue
            seen.add((value, origin))
            for node, position in self._readers[value]:
                requirement = self._of_operand(node, position, dims)
                if requirement and (origin == "copy" or requirement.kind == "positive"):
                    yield requirement
                stack += _derived_values(node, position, origin)

    def _of_operand(
        self, node: NodeProto, position: int, dims: Mapping[str, int]
    ) -> Requirement | None:
        """Return what a node requires of the input at ``position``; None if any value will do.

        For an Equal, any value is valid, but that of its other input is asked for: models compare an input, such
        as a sample rate, with a number that they support.
        """
        operand = (node.op_type, position)  # in one of the tables at most
        if operand in _INDEXED:
            return Requirement("index", high=self._index_limit(node, _INDEXED[operand], dims))
        if operand == ("OneHot", 0):
            depth = self._integers.get(node.input[1], _ONE_HOT_DEPTH)
            return Requirement("index", high=depth)  # 0 .. depth - 1
        if operand in _SMALL_VALUES:
            return Requirement("values", values=_SMALL_VALUES[operand])
        if operand in _SHAPES:
            return Requirement("values", values=self._result_shape(node, dims))
        if operand == ("Split", 1):
            return Requirement("values", values=self._split_lengths(node, dims))
        if operand in _POSITIVE:
            return Requirement("positive")
        if node.op_type == "Equal":
            other = self._integers.get(node.input[1 - position])
            return None if other is None else Requirement("equal", values=(other,))
        return None

    def _shape_of(self, name: str, dims: Mapping[str, int]) -> tuple[int | None, ...]:
        """Return the shape of a value, None for unknown dims; empty if no shape is declared."""
        return _bound_shape(self._shapes.get(name, ()), dims)

    def _result_shape(self, node: NodeProto, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the values for a shape operand (see `_SHAPES`): the dims of the node's result.

        A Resize whose result is not declared keeps the dims of its input. If a dim is unknown, or
        there are none, the values are (1,), a guess that the run may refuse.
        """
        shape = self._shape_of(node.output[0], dims)
        if not shape and node.op_type == "Resize":
            shape = self._shape_of(node.input[0], dims)
        known = tuple(dim for dim in shape if dim is not None)
        if not shape or len(known) < len(shape):
            return (1,)
        return known

    def _split_lengths(self, node: NodeProto, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return values for the ``split`` input of a Split: a nearly equal length for each output.

        Any lengths whose sum is the split dim are valid. (1,) if that dim is unknown.
        """
        shape = self._shape_of(node.input[0], dims)
        axis = int_attribute(node, "axis", 0)
        length = shape[axis] if -len(shape) <= axis < len(shape) else None
        if length is None:
            return (1,)
        parts = len(node.output)
        return tuple((length + index) // parts for index in range(parts))

    def _index_limit(self, node: NodeProto, indexed: int, dims: Mapping[str, int]) -> int:
        """Return a number below which each index into input ``indexed`` of a node is valid.

        This is the length of the indexed axis, or the smallest of several. An unknown length counts as 1: the
        index 0 is valid for any axis.
        """
        shape = self._shape_of(node.input[indexed], dims)
        if not shape:
            return 1
        lengths: Sequence[int | None]
        if node.op_type in ("GatherND", "ScatterND"):
            # An index is a row of the second input, with a number for each axis after the batch dims. Rows
            # of unknown length may have one for every axis.
            indices_shape = self._shape_of(node.input[1], dims)
            row_length = indices_shape[-1] if indices_shape else None
            lengths = shape[int_attribute(node, "batch_dims", 0) :][:row_length]
        elif node.op_type.endswith("Loss"):
            lengths = shape[1:2]  # the classes
        elif node.op_type == "ArrayFeatureExtractor":
            lengths = shape[-1:]
        else:
            lengths = (shape[int_attribute(node, "axis", 0)],)
        return max(1, min((length or 1 for length in lengths), default=1))


def _derived_values(
    node: NodeProto, position: int, origin: _Origin
) -> Iterator[tuple[str, _Origin]]:
    """Yield the values that a node derives from its input ``position``, and the origin of each.

    The origin tells which requirements on a value are put on the model input too: all ("copy") or only "positive"
    ("sign"). It may be a guess, since the requirements only decide how the input is drawn. ``origin`` is that
    of the node's input.
    """
    is_converted = position == 0 and node.op_type in _CONVERSIONS
    # A guess: the other input of a Min is mostly a constant that no value exceeds.
    is_copied = position in operator(node).moves or is_converted or node.op_type == "Min"
    if is_copied:
        yield from ((name, origin) for name in node.output if name)
    elif node.op_type in _KEEPS_SIGN:
        # x + y is positive if x is and the other operand y is, too.
        yield from ((name, "sign") for name in node.output if name)
    # In the first iteration, input i of a Loop, or of a Scan since opset 9, is input i of its body. Input 0 differs in
    # a Loop: the trip count, and in the body the iteration number. As the iteration number is smaller, it is a valid
    # index if the trip count is a valid index.
    for _, body in subgraphs(node):
        if position < len(body.input):
            yield body.input[position].name, origin


def _bound_shape(shape: Iterable[Dim], dims: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return a shape with its symbols replaced; None for dims that stay unknown or are negative.

    A dim of 0 is valid: a cache of keys begins empty.
    """
    bound = (bind_dim(dim, dims) for dim in shape)
    return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in bound)


class Feeder:
    """How to draw the inputs of one model, for any binding of its dims.

    The model's weights may be absent; its functions must be inlined. Given inputs (``feeds``)
    replace drawn ones.
    """

    def __init__(self, model: ModelProto, feeds: Feeds | None = None) -> None:
        self._inputs = fed_inputs(model)
        self._names_taken = names_taken(model)
        self._requirements = Requirements(model, self._names_taken)
        self._feeds = feeds or {}

    def specs(self, dims: Mapping[str, int]) -> tuple[FeedSpec, ...]:
        """Return how to feed each input without an initializer, in graph order.

        Given inputs have the user's data or shape, all others are drawn. Dims that ``dims`` leaves unbound
        become 1.

        Raises:
            ModelError: an input has a type that cannot be fed, for example a sequence of maps.
        """
        drawn = [self._drawn_spec(value, dims) for value in self._inputs]
        return tuple(
            _given_spec(spec, self._feeds[spec.name]) if spec.name in self._feeds else spec
            for spec in drawn
        )

    def _drawn_spec(self, value: ValueInfoProto, dims: Mapping[str, int]) -> FeedSpec:
        """Return how to draw an input at random; dims that stay unknown become 1."""
        container, tensor = container_and_tensor_type(value)
        # A dim without a name gets a new one, such as ``x_dim0``, which ``dims`` may bind as any other.
        declared = tensor_dims(value, tensor, self._names_taken)
        shape = tuple(1 if dim is None else dim for dim in _bound_shape(declared, dims))
        if tensor.elem_type == TensorProto.STRING:
            return FeedSpec(value.name, "str", shape, "strings", container=container)
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        is_number = len(shape) < 2 and prod(shape) == 1
        requirements = tuple(self._requirements.of_input(value.name, dims))
        kind, low, high, values = _distribution(dtype, requirements, is_number=is_number)
        return FeedSpec(
            value.name, dtype, shape, kind, low, high, values=values, container=container
        )


def feed_specs(
    model: ModelProto, dims: Mapping[str, int], feeds: Feeds | None = None
) -> tuple[FeedSpec, ...]:
    """Return how to feed a model at these dims; see `Feeder.specs`."""
    return Feeder(model, feeds).specs(dims)


def _given_spec(drawn: FeedSpec, feed: Feed) -> FeedSpec:
    """Return how to feed an input with what the user gave, and the rest as ``drawn``.

    The user gave a number that fills the drawn shape, a tensor's shape whose elements stay drawn, or arrays.
    Numbers and arrays are in files. A sequence without files is an empty sequence.
    """
    if feed.shape is None:  # a number
        return replace(drawn, kind="fill", files=feed.files)
    is_only_shape = feed.container == "tensor" and not feed.files
    if is_only_shape:
        return replace(drawn, shape=feed.shape)
    return replace(
        drawn, shape=feed.shape, kind="file", container=feed.container, files=feed.files
    )


def _distribution(
    dtype: str, requirements: Sequence[Requirement], *, is_number: bool
) -> _Distribution:
    """Return a distribution that meets the requirements, or the most important of them.

    The order of importance is: exact values (``values``, ``equal``), limits of indices (``index``), ``positive``.
    ``is_number`` says that the input is a single number, such as a sample rate; for an input of more elements
    ``equal`` is ignored. Positive integers are small: they may be sizes.
    """
    exact_kinds = ("values", "equal") if is_number else ("values",)
    exact = next((each.values for each in requirements if each.kind in exact_kinds), None)
    if exact is not None:
        return _Distribution("values", values=exact)
    must_be_positive = any(each.kind == "positive" for each in requirements)
    if not dtype.startswith(("int", "uint", "bool")):
        return _Distribution("positive" if must_be_positive else "normal")
    limits = [each.high for each in requirements if each.kind == "index"]
    if limits:
        return _Distribution("integers", 0, high=min(limits))  # without ``high`` itself
    if must_be_positive:
        return _Distribution("integers", 1, high=4)
    return _UNRESTRICTED.get(dtype, _MASK)  # wider integers are mostly masks
