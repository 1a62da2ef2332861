"""Random graphs of constant expressions, of the operators that folding takes for exact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from memplan_cli.onnx_io.weights.folding import Evaluator, Scope

if TYPE_CHECKING:
    from collections.abc import Callable
from pathlib import Path

Array = Any
WHOLE = ("int32", "int64", "uint8", "int8")
NUMBERS = (*WHOLE, "float32", "float16", "float64")
OPSET = 21


class Graph:
    """A graph that grows; each value is known, for the next node has to fit it."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.values: dict[str, Array] = {}
        self.made: list[str] = []

    def pick(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one_of(self, *choices: Any) -> Any:  # noqa: ANN401 - whatever they are
        return self.draw(st.sampled_from(choices))

    def weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        self.values[name] = np.asarray(array)
        return name

    def fresh(self, dtype: str, shape: tuple[int, ...]) -> str:
        rng = np.random.default_rng(self.pick(0, 999))
        if dtype == "bool":
            return self.weight(rng.integers(0, 2, shape).astype(bool))
        if dtype.startswith("float"):
            return self.weight((rng.standard_normal(shape) * 8).astype(dtype))
        limits = np.iinfo(dtype)
        low, high = (
            (max(limits.min, -100), 100) if self.pick(0, 3) else (limits.min, limits.max)
        )
        return self.weight(rng.integers(low, high, shape, dtype, endpoint=True))

    def any_of(self, *dtypes: str, least: int = 0) -> str:
        """Return a value of one of some types, with at least so many dims."""
        fits = [
            name
            for name, value in self.values.items()
            if str(value.dtype) in dtypes and value.ndim >= least
        ]
        if fits and self.pick(0, 3):
            return str(self.one_of(*fits))
        rank = self.pick(least, 3)
        return self.fresh(self.one_of(*dtypes), tuple(self.pick(1, 4) for _ in range(rank)))

    def add(self, kind: str, reads: list[str], outputs: int = 1, **attributes: object) -> None:
        """Add a node; its value says what fits on top, and is held against no one's."""
        names = [f"v{len(self.made) + at}" for at in range(outputs)]
        node = helper.make_node(kind, reads, names, **attributes)
        weights = [numpy_helper.from_array(self.values[n], n) for n in dict.fromkeys(reads)]
        graph = helper.make_graph([node], "one", [], [], weights)
        one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        found = Evaluator(one, Path()).values(Scope.of(graph), names)
        self.values.update(found)
        self.nodes.append(node)
        self.made += names

    def model(self) -> ModelProto:
        """Return the model: each value is read by an Identity, whose result it gives."""
        results = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in self.made]
        outputs = [
            helper.make_tensor_value_info(
                f"{name}_out",
                helper.np_dtype_to_tensor_dtype(self.values[name].dtype),
                self.values[name].shape,
            )
            for name in self.made
        ]
        graph = helper.make_graph(
            [*self.nodes, *results], "constants", [], outputs, self.weights
        )
        opsets = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _axis(g: Graph, name: str) -> int:
    rank = g.values[name].ndim
    return g.pick(-rank, rank - 1)


def transpose(g: Graph) -> None:
    name = g.any_of(*NUMBERS, "bool", least=1)
    rank = g.values[name].ndim
    g.add("Transpose", [name], perm=g.draw(st.permutations(range(rank))))


def reshape(g: Graph) -> None:
    name = g.any_of(*NUMBERS, "bool")
    g.add("Reshape", [name, g.weight(np.array([-1, 1], np.int64))])


def flatten(g: Graph) -> None:
    name = g.any_of(*NUMBERS)
    g.add("Flatten", [name], axis=g.pick(0, g.values[name].ndim))


def unsqueeze(g: Graph) -> None:
    g.add("Unsqueeze", [g.any_of(*NUMBERS, "bool"), g.weight(np.array([0], np.int64))])


def squeeze(g: Graph) -> None:
    unsqueeze(g)
    g.add("Squeeze", [g.made[-1], g.weight(np.array([0], np.int64))])


def slice_(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    words = [g.pick(-5, 5), g.pick(-6, 6), _axis(g, name), g.one_of(1, 2, -1)]
    g.add("Slice", [name, *(g.weight(np.array([word], np.int64)) for word in words)])


def concat(g: Graph) -> None:
    name = g.any_of(*NUMBERS, "bool", least=1)
    g.add("Concat", [name, name], axis=_axis(g, name))


def split(g: Graph) -> None:
    name = g.fresh(g.one_of(*NUMBERS), (2 * g.pick(1, 3), g.pick(1, 3)))
    g.add("Split", [name], 2, axis=0, num_outputs=2)


def gather(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    axis = _axis(g, name)
    size = g.values[name].shape[axis]
    if size:
        where = [g.pick(-size, size - 1) for _ in range(g.pick(1, 3))]
        g.add("Gather", [name, g.weight(np.array(where, np.int64))], axis=axis)


def gather_elements(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    value, axis = g.values[name], _axis(g, name)
    if value.size:
        where = np.full(value.shape, g.pick(-value.shape[axis], value.shape[axis] - 1))
        g.add("GatherElements", [name, g.weight(where.astype(np.int64))], axis=axis)


def gather_nd(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    if g.values[name].shape[0]:
        where = np.array([[g.pick(0, g.values[name].shape[0] - 1)]], np.int64)
        g.add("GatherND", [name, g.weight(where)])


def expand(g: Graph) -> None:
    name = g.any_of(*NUMBERS, "bool")
    shape = (g.pick(1, 3), *g.values[name].shape)
    g.add("Expand", [name, g.weight(np.array(shape, np.int64))])


def tile(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    repeats = [g.pick(0, 2) for _ in g.values[name].shape]
    g.add("Tile", [name, g.weight(np.array(repeats, np.int64))])


def where(g: Graph) -> None:
    name = g.any_of(*NUMBERS)
    condition = g.fresh("bool", g.values[name].shape)
    other = g.fresh(str(g.values[name].dtype), ())
    g.add("Where", [condition, name, other])


def pad(g: Graph) -> None:
    name = g.any_of("float32", "int32", "int64", least=1)
    pads = [g.pick(0, 2) for _ in range(2 * g.values[name].ndim)]
    g.add("Pad", [name, g.weight(np.array(pads, np.int64))], mode="constant")


def compress(g: Graph) -> None:
    name = g.any_of(*NUMBERS, least=1)
    axis = _axis(g, name)
    kept = g.fresh("bool", (g.values[name].shape[axis],))
    g.add("Compress", [name, kept], axis=axis)


def reverse_sequence(g: Graph) -> None:
    steps, batch = g.pick(1, 4), g.pick(1, 3)
    name = g.fresh(g.one_of("float32", "int64"), (steps, batch, 2))
    lengths = np.array([g.pick(1, steps) for _ in range(batch)], np.int64)
    g.add("ReverseSequence", [name, g.weight(lengths)], time_axis=0, batch_axis=1)


def trilu(g: Graph) -> None:
    name = g.fresh(g.one_of("float32", "int64"), (g.pick(1, 4), g.pick(1, 4)))
    g.add("Trilu", [name, g.weight(np.array(g.pick(-2, 2), np.int64))], upper=g.pick(0, 1))


def depth_to_space(g: Graph) -> None:
    name = g.fresh("float32", (1, 4, g.pick(1, 3), 2))
    g.add("DepthToSpace", [name], blocksize=2, mode=g.one_of("DCR", "CRD"))
    g.add("SpaceToDepth", [g.made[-1]], blocksize=2)


def shape(g: Graph) -> None:
    name = g.any_of(*NUMBERS)
    g.add("Shape", [name])
    g.add("Size", [name])
    g.add("ConstantOfShape", [g.made[-2]])


def eye_like(g: Graph) -> None:
    g.add("EyeLike", [g.fresh("float32", (g.pick(1, 3), 3))], k=g.pick(-1, 1))


def range_(g: Graph) -> None:
    words = [g.pick(-5, 5), g.pick(-5, 9), g.one_of(1, 2, -1)]
    g.add("Range", [g.weight(np.array(word, np.int64)) for word in words])


def arithmetic(g: Graph) -> None:
    name = g.any_of("int32", "int64")
    other = g.fresh(str(g.values[name].dtype), g.values[name].shape)
    g.add(g.one_of("Add", "Sub", "Mul", "Min", "Max"), [name, other])


def signs(g: Graph) -> None:
    g.add(g.one_of("Abs", "Neg", "Sign"), [g.any_of("int32", "int64")])


def bits(g: Graph) -> None:
    name = g.any_of("int32", "int64")
    other = g.fresh(str(g.values[name].dtype), g.values[name].shape)
    g.add(g.one_of("BitwiseAnd", "BitwiseOr", "BitwiseXor"), [name, other])
    g.add("BitwiseNot", [name])


def logic(g: Graph) -> None:
    name = g.any_of("bool")
    g.add(g.one_of("And", "Or", "Xor"), [name, g.fresh("bool", g.values[name].shape)])
    g.add("Not", [name])


def compare(g: Graph) -> None:
    name = g.any_of("int32", "int64", "float32")
    other = g.fresh(str(g.values[name].dtype), g.values[name].shape)
    kinds = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    g.add(g.one_of(*kinds), [name, g.one_of(name, other)])


def reduce(g: Graph) -> None:
    name = g.any_of("int32", "int64", least=1)
    if g.values[name].size:
        kind = g.one_of("ReduceMax", "ReduceMin")
        axes = g.weight(np.array([_axis(g, name)], np.int64))
        g.add(kind, [name, axes], keepdims=g.pick(0, 1))


def cumsum(g: Graph) -> None:
    name = g.any_of("int32", "int64", least=1)
    axis = g.weight(np.array(_axis(g, name), np.int64))
    g.add("CumSum", [name, axis], exclusive=g.pick(0, 1), reverse=g.pick(0, 1))


def cast(g: Graph) -> None:
    before = g.one_of(*NUMBERS, "bool")
    after = g.one_of(*NUMBERS, "bool")
    name = g.any_of(before)
    g.add("Cast", [name], to=helper.np_dtype_to_tensor_dtype(np.dtype(after)))


BUILDERS: tuple[Callable[[Graph], None], ...] = (
    transpose, reshape, flatten, unsqueeze, squeeze, slice_, concat, split, gather,
    gather_elements, gather_nd, compress, reverse_sequence, expand, tile, where, pad, trilu, depth_to_space, shape,
    eye_like, range_, arithmetic, signs, bits, logic, compare, reduce, cumsum, cast,
)  # fmt: skip


@st.composite
def constant_models(draw: st.DrawFn) -> ModelProto:
    """Draw a model all of whose values hang on its weights."""
    graph = Graph(draw)
    for build in draw(st.lists(st.sampled_from(BUILDERS), min_size=1, max_size=8)):
        build(graph)
    if not graph.made:
        transpose(graph)
    return graph.model()
