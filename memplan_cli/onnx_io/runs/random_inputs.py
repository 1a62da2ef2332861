"""Random inputs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from onnx import TensorProto, helper, numpy_helper

from memplan_cli.core.bindings import FeedSpec
from memplan_cli.core.operators import operator
from memplan_cli.core.symbolic.sizes import bind_dim
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.interface import fed_inputs, names_taken, tensor_dims
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import tensor_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

    from memplan_cli.core.bindings import Feed, Feeds
    from memplan_cli.core.program import Dim, Shape

_LARGE = 2**31 - 1
"""Stands for no limit."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one op expects of one value.

    Attributes:
        kind: ``index`` (below ``high``), ``values`` (exactly ``values``), ``equal`` (one of
            ``values``, where it is a single number) or ``positive``.
    """

    kind: str
    high: int = _LARGE
    values: tuple[int, ...] = ()


_CONVERSIONS = frozenset({"Cast", "CastLike"})
"""Ops that give on the values of the first input in another type."""

_KEEPS_SIGN = frozenset({"Add", "Mul", "Div", "Sum", "Max", "ReduceSum", "ReduceMean"})
"""Ops that give something above zero where their inputs are."""

_COUNTS: Mapping[tuple[str, int], tuple[int, ...]] = {
    ("TopK", 1): (1,),
    ("Tile", 1): (1,),
    ("Pad", 1): (0,),
    ("Slice", 1): (0,),
    ("Slice", 2): (_LARGE,),
    ("Slice", 3): (0,),
    ("Slice", 4): (1,),
    ("Range", 0): (0,),
    ("Range", 1): (8,),
    ("Range", 2): (1,),
    ("Loop", 0): (3,),
    ("Loop", 1): (1,),
    ("OneHot", 1): (8,),
    ("Resize", 2): (1,),
    ("CumSum", 1): (0,),
    ("Trilu", 1): (0,),
    ("Unsqueeze", 1): (0,),
    ("Squeeze", 1): (0,),
}

_SHAPES = frozenset({("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Resize", 3)})
"""Op and position of a shape: its values are the dims of the op's result."""

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
"""Op and position of an index -> position of what it indexes."""


class Trace:
    """Who reads each value, in any block, and what shapes are known."""

    def __init__(self, model: ModelProto) -> None:
        self.taken = names_taken(model)
        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self.shapes: dict[str, Shape] = {}
        self.constants: dict[str, int] = {}
        for block in graphs(model.graph):
            self._add(block)

    def _add(self, block: GraphProto) -> None:
        for tensor in block.initializer:
            self._add_tensor(tensor.name, tensor)
        for value in (*block.input, *block.value_info, *block.output):
            if value.type.tensor_type.HasField("shape"):
                dims = tensor_dims(value, value.type.tensor_type, self.taken)
                self.shapes.setdefault(value.name, dims)
        for node in block.node:
            for position, name in enumerate(node.input):
                self.readers[name].append((node, position))
            stored = stored_tensor(node)
            if stored is not None:
                self._add_tensor(node.output[0], stored)

    def _add_tensor(self, name: str, tensor: TensorProto) -> None:
        self.shapes[name] = tuple(tensor.dims)
        is_whole = tensor.data_type in (TensorProto.INT32, TensorProto.INT64)
        is_here = tensor.data_location != TensorProto.EXTERNAL
        if tensor.dims in ([], [1]) and is_whole and is_here:
            self.constants[name] = int(numpy_helper.to_array(tensor).reshape(-1)[0])

    def rules(self, name: str, dims: Mapping[str, int]) -> Iterator[Rule]:
        """Yield what every op that sees the values of ``name`` expects of them."""
        seen: set[tuple[str, str]] = set()
        todo = [(name, "same")]
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            for node, position in self.readers[state[0]]:
                rule = self._rule(node, position, dims)
                if rule and (state[1] == "same" or rule.kind == "positive"):
                    yield rule
                todo += _onward(node, position, state[1])

    def _shape(self, name: str, dims: Mapping[str, int]) -> tuple[int | None, ...]:
        return bound_shape(self.shapes.get(name, ()), dims)

    def _rule(self, node: NodeProto, position: int, dims: Mapping[str, int]) -> Rule | None:
        key = (node.op_type, position)
        rule = None
        if key in _INDEXED:
            rule = Rule("index", high=self._limit(node, _INDEXED[key], dims))
        elif key == ("OneHot", 0):
            rule = Rule("index", high=self.constants.get(node.input[1], 8))
        elif key in _SHAPES:
            shape = self._shape(node.output[0], dims)
            if not shape and node.op_type == "Resize":
                shape = self._shape(node.input[0], dims)
            known = tuple(dim for dim in shape if dim is not None)
            rule = Rule("values", values=known if len(known) == len(shape) > 0 else (1,))
        elif key == ("Split", 1):
            rule = Rule("values", values=self._parts(node, dims))
        elif key in _COUNTS:
            rule = Rule("values", values=_COUNTS[key])
        elif node.op_type == "Equal":
            other = self.constants.get(node.input[1 - position])
            rule = None if other is None else Rule("equal", values=(other,))
        elif key in _POSITIVE:
            rule = Rule("positive")
        return rule

    def _parts(self, node: NodeProto, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return lengths of as many parts as a Split gives, which total what it splits."""
        parts, shape = len(node.output), self._shape(node.input[0], dims)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        length = shape[axis] if -len(shape) <= axis < len(shape) else None
        if length is None:
            return (1,)
        return tuple((length + at) // parts for at in range(parts))

    def _limit(self, node: NodeProto, indexed: int, dims: Mapping[str, int]) -> int:
        """Return the length of what is indexed, or 1 where it is not known: 0 fits."""
        shape = self._shape(node.input[indexed], dims)
        if not shape:
            return 1
        axes: Sequence[int | None]
        if node.op_type in ("GatherND", "ScatterND"):
            depth = self._shape(node.input[1], dims)
            axes = shape[: depth[-1]] if depth and depth[-1] else shape
        elif node.op_type.endswith("Loss"):
            axes = shape[1:2]
        elif node.op_type == "ArrayFeatureExtractor":
            axes = shape[-1:]
        else:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            axes = (shape[axis],)
        known = [dim for dim in axes if dim is not None]
        return max(1, min(known)) if known and len(known) == len(axes) else 1


def _onward(node: NodeProto, position: int, how: str) -> Iterator[tuple[str, str]]:
    """Yield where a value goes from here: its copies, and results of the same sign."""
    converted = position == 0 and node.op_type in _CONVERSIONS
    if position in operator(node).moves or converted or node.op_type == "Min":
        yield from ((name, how) for name in node.output if name)
    elif node.op_type in _KEEPS_SIGN:
        yield from ((name, "sign") for name in node.output if name)
    for _, body in subgraphs(node):
        if position < len(body.input):
            yield body.input[position].name, how


def bound_shape(shape: Iterable[Dim], dims: Mapping[str, int]) -> tuple[int | None, ...]:
    """Return dims with the symbols bound; None for what is no length then.

    0 is a length: a cache of keys begins with none.
    """
    bound = (bind_dim(dim, dims) for dim in shape)
    return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in bound)


_WHOLE_RANGE: Mapping[str, tuple[str, int, int]] = {
    "bool": ("integers", 0, 2),
    "int8": ("integers", -128, 128),
    "uint8": ("integers", 0, 256),
}
"""Bytes are quantised data and may be anything; wider integers are masks more often."""


class Feeder:
    """How the inputs of one model may be fed, at whatever numbers its dims have.

    Its weights may be absent; functions are written out.
    """

    def __init__(self, model: ModelProto, feeds: Feeds | None = None) -> None:
        self._values = fed_inputs(model)
        self._trace = Trace(model)
        self._feeds = feeds or {}

    def specs(self, dims: Mapping[str, int]) -> tuple[FeedSpec, ...]:
        """Return how to draw each graph input that is no initializer, in graph order.

        A dim without a number is 1; what is known of an input that was given is not drawn.

        Raises:
            ModelError: an input has a type that cannot be fed (a map, say).
        """
        return tuple(self._spec(value, dims) for value in self._values)

    def _spec(self, value: ValueInfoProto, dims: Mapping[str, int]) -> FeedSpec:
        drawn = _spec(value, dims, self._trace)
        given = self._feeds.get(value.name)
        return drawn if given is None else _given(drawn, given)


def feed_specs(
    model: ModelProto, dims: Mapping[str, int], feeds: Feeds | None = None
) -> tuple[FeedSpec, ...]:
    """Return how to feed a model at these numbers for its dims; see `Feeder.specs`.

    Raises:
        ModelError: an input has a type that cannot be fed (a map, say).
    """
    return Feeder(model, feeds).specs(dims)


def _given(drawn: FeedSpec, feed: Feed) -> FeedSpec:
    """Return a spec by what was given: its shape, its data or one value for all of it."""
    if feed.shape is None:
        return replace(drawn, kind="fill", files=feed.files)
    if not feed.files and feed.container == "tensor":
        return replace(drawn, shape=feed.shape)
    return replace(
        drawn, shape=feed.shape, kind="file", container=feed.container, files=feed.files
    )


def _spec(value: ValueInfoProto, dims: Mapping[str, int], trace: Trace) -> FeedSpec:
    container, tensor = tensor_type(value)
    bound = bound_shape(tensor_dims(value, tensor, trace.taken), dims)
    shape = tuple(1 if dim is None else dim for dim in bound)
    if tensor.elem_type == TensorProto.STRING:
        return FeedSpec(value.name, "str", shape, "strings", container=container)
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    rules = tuple(trace.rules(value.name, dims))
    kind, low, high, values = _settled(
        dtype, rules, is_number=len(shape) < 2 and prod(shape) == 1
    )
    return FeedSpec(value.name, dtype, shape, kind, low, high, 1.0, values, container)


def _settled(
    dtype: str, rules: Sequence[Rule], *, is_number: bool
) -> tuple[str, int, int, tuple[int, ...]]:
    """Choose one way to draw that meets every rule.

    A number that is compared with others (a sample rate) is the first of them.
    """
    kinds = ("values", "equal") if is_number else ("values",)
    fixed = next((rule.values for rule in rules if rule.kind in kinds), None)
    if fixed is not None:
        return "values", 0, 0, fixed
    positive = any(rule.kind == "positive" for rule in rules)
    if not dtype.startswith(("int", "uint", "bool")):
        return ("positive" if positive else "normal"), 0, 0, ()
    limits = [rule.high for rule in rules if rule.kind == "index"]
    if limits:
        return "integers", 0, min(limits), ()
    if positive:
        return "integers", 1, 4, ()
    kind, low, high = _WHOLE_RANGE.get(dtype, ("mask", 0, 2))
    return kind, low, high, ()
