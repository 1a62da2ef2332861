"""Abstract interpretation of a graph: each node's shapes from the shapes and values above it.

ONNX's inference of the whole graph comes first. Where it leaves a hole, the node is looked at
again, in order: by a rule of ours, by what its value is, or by ONNX's inference of this
node alone, which is given the values of its inputs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from memplan_cli.core.operators import (
    CONTROL_FLOW,
    SHAPE_QUERIES,
    STANDARD_DOMAINS,
    Family,
    names_of,
)
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.shapes.domains.table import made_by, rule_of
from memplan_cli.onnx_io.shapes.lattice import is_complete, merged, shape_in, with_shape
from memplan_cli.onnx_io.shapes.onnx_inference import infer_node
from memplan_cli.onnx_io.shapes.symbolic.bodies import BODIES, Known, type_of
from memplan_cli.onnx_io.shapes.symbolic.families import BY_DATA
from memplan_cli.onnx_io.shapes.symbolic.rules import (
    flattened,
    joined,
    packed_into_channels,
    padded,
    resized,
    sliced,
    tiled,
    unpacked_from_channels,
)
from memplan_cli.onnx_io.shapes.symbolic.targets import (
    broadcasted,
    expanded,
    filled,
    one_hot,
    ranged,
    reshaped,
    topmost,
)
from memplan_cli.onnx_io.shapes.symbolic.value_rules import follow
from memplan_cli.onnx_io.shapes.symbolic.values import BOOL, INT32, INT64, MOST, Values
from memplan_cli.onnx_io.shapes.symbolic.windows import (
    convolved,
    convolved_quantized,
    pooled,
    transposed,
)
from memplan_cli.onnx_io.shapes.workarounds import WRONG_TYPES
from memplan_cli.onnx_io.traversal import free_names, subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from onnx import GraphProto, ModelProto, NodeProto, TypeProto

    from memplan_cli.core.program import Shape
    from memplan_cli.onnx_io.shapes.symbolic.values import Value

Rule = Callable[["Values", "NodeProto"], "Shape | None"]
"""From a node, and what is known above it, to the shape of its first result."""

RULES: Mapping[str, Rule] = {
    # Shapes that an input's values say.
    "ConstantOfShape": filled,
    "Expand": expanded,
    "OneHot": one_hot,
    "Range": ranged,
    "Reshape": reshaped,
    "TopK": topmost,
    # Dims multiplied, cut or joined.
    "Concat": joined,
    "DepthToSpace": unpacked_from_channels,
    "Flatten": flattened,
    "Pad": padded,
    "Slice": sliced,
    "SpaceToDepth": packed_into_channels,
    "Tile": tiled,
    **dict.fromkeys(names_of(lambda each: each.family is Family.RESIZING), resized),
    # Windows.
    "Conv": convolved,
    "ConvInteger": convolved,
    "DeformConv": convolved,
    "QLinearConv": convolved_quantized,
    "ConvTranspose": transposed,
    **dict.fromkeys(names_of(lambda each: each.family is Family.POOLING), pooled),
    # Broadcast.
    **dict.fromkeys(names_of(lambda each: each.broadcasts), broadcasted),
}
"""The rule of each operator that ONNX's inference follows with numbers only."""

_ALIKE = frozenset({"TopK"})
"""Operators whose results all have the shape of the first."""

_ASKED_WITH_ALL = BY_DATA.union(names_of(lambda each: each.family is Family.RESIZING))
"""Operators whose shapes ONNX's inference finds by any of their inputs' values."""

_BY_ALL_INPUTS = _ASKED_WITH_ALL | {"Range"}
"""Operators whose shapes may hang on any of their inputs' values, of whatever type.

Of floats a rule of ours counts a Range's steps: ONNX's inference counts them in the floats'
own type, and the runtime does not.
"""

_SAY_SHAPES = (INT32, INT64, BOOL)

_MOST_INSIDE = 4096
"""Nodes of subgraphs that are looked at, each as often as it runs."""

_NOT_ALONE = frozenset({*CONTROL_FLOW, *names_of(lambda each: each.is_random), *WRONG_TYPES})
"""Operators that ONNX's inference is not asked about node by node."""


@dataclass(frozen=True, slots=True)
class Found:
    """What an interpretation adds to a graph's types, and the values it needed."""

    types: Mapping[str, TypeProto]
    values: Mapping[str, Value]


def interpret(
    model: ModelProto,
    wanted: Collection[str] = (),
    rules: Mapping[str, Rule] | None = None,
) -> Found:
    """Return types that say more than the model's own, and the small values that are wanted."""
    graph = model.graph
    types = {v.name: v.type for v in (*graph.output, *graph.value_info, *graph.input)}
    if not wanted and all(_is_whole(node, types) for node in graph.node):
        return Found({}, {})
    for tensor in graph.initializer:
        types.setdefault(tensor.name, type_of(tensor.data_type, tuple(tensor.dims)))
    values = Values.over(graph, types, standard_opset(model) or 1)
    found = _Walk(RULES if rules is None else rules).over(graph, values, types, wanted)
    for name in wanted:
        values.of(name)
    return Found(found, values.found)


@dataclass(slots=True)
class _Walk:
    """A walk over the nodes of a graph, and over those of subgraphs as often as they run."""

    rules: Mapping[str, Rule]
    left: int = _MOST_INSIDE
    """Nodes of subgraphs that may still be looked at."""

    def over(
        self,
        graph: GraphProto,
        values: Values,
        types: MutableMapping[str, TypeProto],
        wanted: Collection[str],
    ) -> dict[str, TypeProto]:
        """Add the values that are needed; return the types that say more than before."""
        needed = _needed(graph, types, wanted)
        found: dict[str, TypeProto] = {}
        for node in graph.node:
            other = rule_of(node)
            if other is not None and not _is_whole(node, types):
                _note(found, types, made_by(values, node, other))
            if node.domain not in STANDARD_DOMAINS:
                continue
            if not _is_whole(node, types):
                rule = self.rules.get(node.op_type)
                _note(found, types, _shapes(values, node, rule))
            if needed.isdisjoint(node.output):
                continue
            if node.op_type in BODIES:
                _note(found, types, self._into(values, node))
            else:
                follow(values, node)
            made = {name: values.found[name] for name in node.output if name in values.found}
            _note(found, types, {n: type_of(v.kind, v.array.shape) for n, v in made.items()})
        return found

    def _into(self, values: Values, node: NodeProto) -> Mapping[str, TypeProto]:
        """Add the values that a control-flow node gives; return the types of its results."""
        try:
            results = BODIES[node.op_type](values, node, partial(self._inside, values))
        except (ValueError, IndexError, OverflowError):
            return {}  # a node that is wrong, or one that runs for too long
        made = [pair for pair in zip(node.output, results, strict=False) if pair[0]]
        for name, known in made:
            if known.value is not None and known.value.array.size <= MOST:
                values.found[name] = known.value
        return {n: k.kind for n, k in made if k.kind.WhichOneof("value") == "tensor_type"}

    def _inside(self, outer: Values, graph: GraphProto, given: Sequence[Known]) -> list[Known]:
        """Follow a subgraph once. What it declares is not looked at: it may be of one turn.

        Raises:
            ValueError: subgraphs have run over more nodes than is worth the time.
        """
        self.left -= len(graph.node)
        if self.left < 0:
            raise ValueError("subgraphs run for too long")
        types: MutableMapping[str, TypeProto] = ChainMap({}, cast("Any", outer.types))
        values = outer.inside(graph, types)
        for tensor in graph.initializer:
            types[tensor.name] = type_of(tensor.data_type, tuple(tensor.dims))
        for value, known in zip(graph.input, given, strict=False):
            types[value.name] = known.kind
            if known.value is not None:
                values.found[value.name] = known.value
        wanted = [value.name for value in graph.output]
        self.over(graph, values, types, wanted)
        nothing: TypeProto = messages().TypeProto()
        return [Known(types.get(name, nothing), values.of(name)) for name in wanted]


def _note(
    found: dict[str, TypeProto],
    types: MutableMapping[str, TypeProto],
    said: Mapping[str, TypeProto],
) -> None:
    """Fill the holes of types that are known with what is said of them now."""
    for name, kind in said.items():
        before = types.get(name)
        better = kind if before is None else merged(before, kind)
        if better != before:
            found[name] = types[name] = better


def _is_whole(node: NodeProto, types: Mapping[str, TypeProto]) -> bool:
    return all(name in types and is_complete(types[name]) for name in node.output if name)


def _needed(
    graph: GraphProto, types: Mapping[str, TypeProto], wanted: Collection[str]
) -> set[str]:
    """Return the values that shapes hang on, and those behind them."""
    needed = set(wanted)
    for node in reversed(graph.node):
        if node.domain not in STANDARD_DOMAINS and rule_of(node) is None:
            continue
        if not needed.isdisjoint(node.output) and node.op_type not in SHAPE_QUERIES:
            needed.update(node.input)
            for _, body in subgraphs(node):
                needed.update(free_names(body))
        if _is_whole(node, types):
            continue
        if node.op_type in BY_DATA:  # its value says its shape
            needed.update(node.output)
        everything = node.op_type in _BY_ALL_INPUTS
        needed.update(n for n in node.input if everything or _may_say_a_shape(types.get(n)))
    return needed - {""}


def _may_say_a_shape(kind: TypeProto | None) -> bool:
    """Whether a value may be dims: integers in a row, or what nobody knows to be otherwise."""
    if kind is None:
        return True
    shape = shape_in(kind)
    whole = kind.tensor_type.elem_type in (0, *_SAY_SHAPES)
    return whole and (shape is None or len(shape) <= 1)


def _shapes(values: Values, node: NodeProto, rule: Rule | None) -> Mapping[str, TypeProto]:
    """Return the types of a node's results as a rule of ours, and ONNX's inference, say them."""
    types = dict(_alone(values, node))
    shape = _by_rule(values, node, rule)
    if shape is None:
        return types
    outputs = node.output if node.op_type in _ALIKE else node.output[:1]
    for name in filter(None, outputs):
        kind = types.get(name) or values.types.get(name)
        if kind is not None and kind.WhichOneof("value") == "tensor_type":
            types[name] = merged(kind, with_shape(kind, shape))
    return types


def _by_rule(values: Values, node: NodeProto, rule: Rule | None) -> Shape | None:
    """Return what a rule says; nothing where that is no shape."""
    try:
        shape = rule(values, node) if rule is not None else None
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None  # a node that is wrong, or an expression longer than anybody would write
    negative = any(isinstance(dim, int) and dim < 0 for dim in shape or ())
    return None if negative else shape


def _alone(values: Values, node: NodeProto) -> Mapping[str, TypeProto]:
    """Ask ONNX's inference about one node; it is given the numbers that are known."""
    inputs = {name for name in node.input if name}
    types = {name: values.types[name] for name in inputs if name in values.types}
    if node.op_type in _NOT_ALONE or len(types) < len(inputs):
        return {}
    everything = node.op_type in _ASKED_WITH_ALL
    data = {}
    for name, kind in types.items():
        value = values.of(name) if everything or _may_say_a_shape(kind) else None
        if value is not None and value.is_known:
            data[name] = value.array
    return infer_node(node, types, data, values.opset)
