"""Which values may a model be fed? Read from what its ops do with each input.

An input that indexes must stay inside the axis it indexes, a square root wants no negative
numbers, a repeat count must be small. Each input is followed through ops that only move
values around (and into bodies) until an op says what it expects.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx
from onnx import TensorProto, helper, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.sizes import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

_LARGE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FeedSpec:
    """How to draw one input.

    Attributes:
        name: the graph input.
        dtype: numpy's name, or ``str``.
        shape: numbers only.
        kind: ``normal`` (scaled by ``scale``), ``positive`` (its absolute value),
            ``integers`` (``low <= value < high``), ``mask`` (0 or 1, the first of each row
            1), ``values`` (exactly ``values``) or ``strings``.
        container: ``tensor``, ``sequence`` or ``optional``.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    low: int = 0
    high: int = 2
    scale: float = 1.0
    values: tuple[int, ...] = ()
    container: str = "tensor"


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one op expects of one value."""

    kind: str
    high: int = _LARGE
    values: tuple[int, ...] = ()


_RANDOM = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
    }
)

# These give on the values of an input at these positions, changed in shape at most.
_MOVES: Mapping[str, tuple[int, ...]] = {
    "Cast": (0,),
    "CastLike": (0,),
    "Reshape": (0,),
    "Unsqueeze": (0,),
    "Squeeze": (0,),
    "Flatten": (0,),
    "Identity": (0,),
    "Transpose": (0,),
    "Expand": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Tile": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Pad": (0,),
    "Where": (1, 2),
    "Trilu": (0,),
    "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
    "Optional": (0,),
    "OptionalGetElement": (0,),
    "SequenceAt": (0,),
    "SequenceConstruct": tuple(range(64)),
    "Concat": tuple(range(64)),
    "Min": tuple(range(8)),
}

# A value that stays above zero through these stays above zero.
_KEEPS_SIGN = frozenset({"Add", "Mul", "Div", "Sum", "Max", "ReduceSum", "ReduceMean"})

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
    ("Gather", -1): (0,),
}

_SHAPES = frozenset({("Reshape", 1), ("Expand", 1), ("ConstantOfShape", 0), ("Resize", 3)})

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

# Op and position of an index -> position of what it indexes.
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
    ("SkipLayerNormalization", 99): 0,
    ("SequenceAt", 1): 0,
    ("LSTM", 4): 0,
    ("GRU", 4): 0,
    ("RNN", 4): 0,
    ("ReverseSequence", 1): 0,
}


# Bytes are quantised data and may be anything; wider integers are masks more often.
_WHOLE_RANGE: Mapping[str, tuple[str, int, int]] = {
    "bool": ("integers", 0, 2),
    "int8": ("integers", -128, 128),
    "uint8": ("integers", 0, 256),
}


def feed_specs(model: ModelProto, dims: Mapping[str, int]) -> tuple[FeedSpec, ...]:
    """Return how to draw each graph input that is no initializer, in graph order.

    Args:
        model: its weights may be absent.
        dims: values for symbolic dims; those it does not name get small ones.

    Raises:
        ModelError: an input has a type that cannot be fed (a map, say).
    """
    graph = _inlined(model).graph
    bound = {**default_dims(model), **dims}
    trace = _Trace(graph, bound)
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(
        _spec(value, bound, trace) for value in graph.input if value.name not in weights
    )


def default_dims(model: ModelProto) -> dict[str, int]:
    """Return a small value for each symbol in the shapes of the graph inputs.

    2 for what comes first, 64 for the sides of an image, else 8.
    """
    found: dict[str, int] = {}
    weights = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = _tensor_type(value)[1]
        rank = len(tensor.shape.dim)
        for position, dim in enumerate(tensor.shape.dim):
            usual = 2 if position == 0 else 64 if rank >= 4 and position >= 2 else 8
            for symbol in sorted(symbols_of(dim.dim_param or None)):
                found.setdefault(symbol, usual)
    return found


def missing_weights(path: Path) -> tuple[str, ...]:
    """Return the external data files that a model names and that are not there."""
    model = onnx.load(str(path), load_external_data=False)
    named = {
        entry.value
        for graph in _graphs(model.graph)
        for tensor in _stored_tensors(graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(sorted(name for name in named if not (path.parent / name).is_file()))


def random_ops(model: ModelProto) -> tuple[str, ...]:
    """Return the ops whose results change from run to run: no seed, and random."""
    return tuple(
        dict.fromkeys(
            node.op_type
            for graph in _graphs(_inlined(model).graph)
            for node in graph.node
            if (node.op_type in _RANDOM or (node.op_type == "Dropout" and len(node.input) > 2))
        )
    )


def load_graph(path: Path) -> ModelProto:
    """Read a model without its external data.

    Raises:
        ModelError: the file cannot be read as a model.
    """
    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path} cannot be read as an ONNX model: {error}") from error


def smallest_model() -> bytes:
    """Return ``y = exp(x)`` on four floats, to try a provider with."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "probe", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model: bytes = helper.make_model(
        graph, opset_imports=opset, ir_version=8
    ).SerializeToString()
    return model


def _inlined(model: ModelProto) -> ModelProto:
    if not model.functions:
        return model
    import onnx.inliner

    return onnx.inliner.inline_local_functions(model)


class _Trace:
    """Who reads each value, in any block, and what shapes are known."""

    def __init__(self, graph: GraphProto, dims: Mapping[str, int]) -> None:
        self.readers: dict[str, list[tuple[NodeProto, int]]] = defaultdict(list)
        self.shapes: dict[str, tuple[int | None, ...]] = {}
        self.constants: dict[str, int] = {}
        self._dims = dims
        for block in _graphs(graph):
            self._add(block)

    def _add(self, block: GraphProto) -> None:
        for tensor in block.initializer:
            self.shapes[tensor.name] = tuple(tensor.dims)
            if tensor.dims in ([], [1]) and tensor.data_location != TensorProto.EXTERNAL:
                self._add_constant(tensor)
        for value in (*block.input, *block.value_info, *block.output):
            kind, tensor = _tensor_type(value)
            if kind == "tensor" and tensor.HasField("shape"):
                self.shapes.setdefault(value.name, _bound_shape(tensor, self._dims))
        for node in block.node:
            for position, name in enumerate(node.input):
                self.readers[name].append((node, position))
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self.shapes[node.output[0]] = tuple(attribute.t.dims)

    def _add_constant(self, tensor: TensorProto) -> None:
        if tensor.data_type in (TensorProto.INT32, TensorProto.INT64):
            self.constants[tensor.name] = int(numpy_helper.to_array(tensor).reshape(-1)[0])

    def rules(self, name: str) -> Iterator[_Rule]:
        """Yield what every op that sees the values of ``name`` expects of them."""
        seen: set[tuple[str, str]] = set()
        todo = [(name, "same")]
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            for node, position in self.readers[state[0]]:
                rule = self._rule(node, position)
                if rule and (state[1] == "same" or rule.kind == "positive"):
                    yield rule
                todo += _onward(node, position, state[1])

    def _rule(self, node: NodeProto, position: int) -> _Rule | None:
        key = (node.op_type, position)
        rule = None
        if key in _INDEXED:
            rule = _Rule("index", high=self._limit(node, _INDEXED[key]))
        elif key == ("OneHot", 0):
            rule = _Rule("index", high=self.constants.get(node.input[1], 8))
        elif key in _SHAPES:
            shape = self.shapes.get(node.output[0], ())
            known = tuple(dim for dim in shape if dim is not None)
            rule = _Rule("values", values=known if len(known) == len(shape) else (1,))
        elif key in _COUNTS:
            rule = _Rule("values", values=_COUNTS[key])
        elif key in _POSITIVE:
            rule = _Rule("positive")
        return rule

    def _limit(self, node: NodeProto, indexed: int) -> int:
        """Return the length of what is indexed, or 1 where it is not known: 0 fits."""
        shape = self.shapes.get(node.input[indexed])
        if not shape:
            return 1
        axes: Sequence[int | None]
        if node.op_type in ("GatherND", "ScatterND"):
            depth = self.shapes.get(node.input[1], ())
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
    if position in _MOVES.get(node.op_type, ()):
        yield from ((name, how) for name in node.output if name)
    elif node.op_type in _KEEPS_SIGN:
        yield from ((name, "sign") for name in node.output if name)
    for attribute in node.attribute:
        body = attribute.g
        if attribute.type == onnx.AttributeProto.GRAPH and position < len(body.input):
            yield body.input[position].name, how


def _spec(value: ValueInfoProto, dims: Mapping[str, int], trace: _Trace) -> FeedSpec:
    container, tensor = _tensor_type(value)
    shape = tuple(1 if dim is None else dim for dim in _bound_shape(tensor, dims))
    if tensor.elem_type == TensorProto.STRING:
        return FeedSpec(value.name, "str", shape, "strings", container=container)
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    rules = tuple(trace.rules(value.name))
    kind, low, high, values = _settled(dtype, rules)
    return FeedSpec(value.name, dtype, shape, kind, low, high, 1.0, values, container)


def _settled(dtype: str, rules: Sequence[_Rule]) -> tuple[str, int, int, tuple[int, ...]]:
    """Choose one way to draw that meets every rule."""
    fixed = next((rule.values for rule in rules if rule.kind == "values"), None)
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


def _tensor_type(value: ValueInfoProto) -> tuple[str, onnx.TypeProto.Tensor]:
    kind, container = value.type, "tensor"
    if kind.HasField("optional_type"):
        kind, container = kind.optional_type.elem_type, "optional"
    if kind.HasField("sequence_type"):
        kind, container = kind.sequence_type.elem_type, "sequence"
    if not kind.HasField("tensor_type") and kind.WhichOneof("value") is not None:
        raise ModelError(f"{value.name}: a {kind.WhichOneof('value')} cannot be fed")
    return container, kind.tensor_type


def _bound_shape(
    tensor: onnx.TypeProto.Tensor, dims: Mapping[str, int]
) -> tuple[int | None, ...]:
    bound = (
        bind_dim(dim.dim_param, dims) if dim.dim_param else dim.dim_value or None
        for dim in tensor.shape.dim
    )
    return tuple(dim if isinstance(dim, int) else None for dim in bound)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        stack += [body for node in current.node for body in _bodies(node.attribute)]


def _bodies(attributes: Sequence[AttributeProto]) -> Iterator[GraphProto]:
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t


def with_every_output(model: ModelProto) -> bytes:
    """Return the model with each value at its top as an output, types left open."""
    twin = type(model)()
    twin.CopyFrom(model)
    known = {value.name for value in twin.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                known.add(name)
                twin.graph.output.append(onnx.ValueInfoProto(name=name))
    data: bytes = twin.SerializeToString()
    return data
