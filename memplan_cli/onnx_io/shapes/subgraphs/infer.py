"""Shape inference inside the subgraphs of If, Loop, Scan and SequenceMap.

ONNX inference enters subgraphs, but it gives a Loop's carried values no shape, and shows a
subgraph no constant of the outside. So each subgraph with a hole in it is inferred as a model of
its own: what it captures becomes its inputs, small constants and the arithmetic on shapes
come along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

from memplan_cli.core.operators import CONTROL_FLOW
from memplan_cli.onnx_io.shapes.lattice import (
    merged,
    shape_in,
    slice_of,
    stack_of,
    widest,
    with_shape,
)
from memplan_cli.onnx_io.shapes.skipped import NEVER_RUN
from memplan_cli.onnx_io.shapes.subgraphs.carried import Carried
from memplan_cli.onnx_io.shapes.subgraphs.scope import Infer, Level
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

    from memplan_cli.core.program import Dim

_ROUNDS = 8
"""Rounds after which a value that still changes is one without a known shape."""

_MOST_TURNS = 1 << 20
"""A trip count above this stands for "until the condition fails"."""


def infer_nested(model: ModelProto, infer: Infer) -> ModelProto:
    """Infer a model with all its subgraphs.

    Args:
        model: Types that are known are kept; changed by nobody here.
        infer: Infers one level; a failure is its caller's to handle.
    """
    working = deepcopy(model)
    for _ in range(_ROUNDS):
        inferred = infer(working)
        found = _complete(working, inferred, infer)
        if not found:
            break
        declare(working.graph, found)
    return inferred


def _complete(given: ModelProto, inferred: ModelProto, infer: Infer) -> dict[str, TypeProto]:
    """Fill the subgraphs of one level; return new types of what their control-flow nodes give."""
    found: dict[str, TypeProto] = {}
    level: Level | None = None
    for index, node in enumerate(given.graph.node):
        if node.op_type not in CONTROL_FLOW:
            continue
        level = level or Level.of(inferred, partial(infer_nested, infer=infer))
        target = inferred.graph.node[index]
        _note_skipped(target, _skipped(node, level))
        unsteady = _unsteady(node, target, level)
        if not unsteady and all(level.is_known(name) for name in _made_in(target)):
            continue
        inner, results = _HANDLERS[node.op_type](node, level)
        for attribute in target.attribute:
            if attribute.name in inner:
                attribute.g.CopyFrom(inner[attribute.name])
        for name, kind in zip(node.output, results, strict=False):
            known = None if unsteady else level.types.get(name)
            better = merged(known, kind) if known is not None else kind
            if name and (known is None or better != known):
                found[name] = level.types[name] = better
        for value in unsteady:  # or ONNX inference says it again in the next round
            value.type.CopyFrom(with_shape(value.type, None))
    return found


def _unsteady(node: NodeProto, target: NodeProto, level: Level) -> list[ValueInfoProto]:
    """Return the inputs of a subgraph that are declared as on the first turn, and grow.

    ONNX inference believes such a declaration, and what it then knows is wrong.
    """
    lead, skip = {"Loop": (2, 1), "Scan": (0, 0)}.get(node.op_type, (-1, 0))
    if lead < 0:
        return []
    (_, subgraph), (_, inferred) = *subgraphs(node), *subgraphs(target)
    scans = next((a.i for a in node.attribute if a.name == "num_scan_inputs"), 0)
    names = node.input[lead : len(node.input) - scans]
    found = []
    for at, name in enumerate(names):
        declared = subgraph.input[lead + at]
        dims = zip(
            shape_in(level.type_of(name)) or (),
            shape_in(declared.type) or (),
            shape_in(inferred.output[skip + at].type) or (),
            strict=False,
        )
        if any(a is not None and a == b and c is not None and c != b for a, b, c in dims):
            found.append(declared)
    return found


def _made_in(node: NodeProto) -> Iterator[str | ValueInfoProto | None]:
    """Yield the results of a control-flow node by name, and the types of values in its subgraphs."""
    yield from (name for name in node.output if name)
    for _, graph in subgraphs(node):
        types = {v.name: v for v in (*graph.input, *graph.output, *graph.value_info)}
        yield from graph.input
        for inner in graph.node:
            yield from (types.get(name) for name in inner.output if name)
            if inner.op_type in CONTROL_FLOW:
                yield from (v for v in _made_in(inner) if not isinstance(v, str))


def declare(graph: GraphProto, found: Mapping[str, TypeProto]) -> None:
    """Write types of values into a graph."""
    known = {v.name: v for v in (*graph.output, *graph.value_info)}
    for name, kind in found.items():
        value = known.get(name)
        if value is None:
            value = graph.value_info.add()
            value.name = name
        value.type.CopyFrom(kind)


Answer = tuple[Mapping[str, "GraphProto"], Sequence["TypeProto"]]
"""The subgraphs by attribute, inferred, and the types of what their control-flow node gives."""


def _if(node: NodeProto, level: Level) -> Answer:
    skipped = _skipped(node, level)
    inner = {name: level.run(g, ()) for name, g in subgraphs(node) if name != skipped}
    results = []
    for at in range(len(node.output)):
        kinds = (b.output[at].type for b in inner.values() if at < len(b.output))
        kind = widest(kinds)
        assert kind is not None  # noqa: S101 - the range is the branches' own
        results.append(kind)
    return inner, results


def _skipped(node: NodeProto, level: Level) -> str:
    """Return the attribute with the subgraph that is known never to run, if there is one."""
    if node.op_type == "If":
        condition = level.number(node.input[0])
        return "" if condition is None else "else_branch" if condition else "then_branch"
    if node.op_type == "Loop":
        ends = [level.number(name) for name in node.input[:2] if name]
        ((attribute, _),) = subgraphs(node)
        return attribute if 0 in ends else ""
    return ""


def _note_skipped(node: NodeProto, skipped: str) -> None:
    for attribute in node.attribute:
        if attribute.name == skipped:
            attribute.g.doc_string = NEVER_RUN


def _loop(node: NodeProto, level: Level) -> Answer:
    (attribute, subgraph), *_ = subgraphs(node)
    first = [level.type_of(name) for name in node.input[2:]]
    turns = level.number(node.input[0]) if node.input and node.input[0] else None
    turns = turns if turns is not None and 0 <= turns <= _MOST_TURNS else None
    lead = [v.type for v in subgraph.input[:2]]
    carried = Carried(level, subgraph, lead, skip=1)
    inferred, last = carried.settle(first, turns)
    scans = [value.type for value in inferred.output[1 + len(first) :]]
    return {attribute: inferred}, [*last, *(stack_of(kind, 0, turns) for kind in scans)]


def _scan(node: NodeProto, level: Level) -> Answer:
    (attribute, subgraph), *_ = subgraphs(node)
    attributes = {a.name: a for a in node.attribute}
    count = attributes["num_scan_inputs"].i
    states = len(node.input) - count
    axes = list(attributes["scan_input_axes"].ints) if "scan_input_axes" in attributes else []
    wholes = [level.type_of(name) for name in node.input[states:]]
    axes += [0] * (count - len(axes))
    given = [value.type for value in subgraph.input[states:]]
    slices = [
        merged(slice_of(kind, axis), own)
        for kind, axis, own in zip(wholes, axes, given, strict=True)
    ]
    carried = Carried(level, subgraph, [], skip=0, tail=slices)
    inferred, last = carried.settle([level.type_of(n) for n in node.input[:states]], None)
    length = next((n for n in map(_along, wholes, axes) if n is not None), None)
    outs = [value.type for value in inferred.output[states:]]
    ways = (
        list(attributes["scan_output_axes"].ints) if "scan_output_axes" in attributes else []
    )
    ways += [0] * (len(outs) - len(ways))
    stacked = [stack_of(kind, way, length) for kind, way in zip(outs, ways, strict=True)]
    return {attribute: inferred}, [*last, *stacked]


def _along(kind: TypeProto, axis: int) -> Dim:
    shape = shape_in(kind)
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else None


def _sequence_map(node: NodeProto, level: Level) -> Answer:
    from onnx import TypeProto

    (attribute, subgraph), *_ = subgraphs(node)
    given = []
    for name, value in zip(node.input, subgraph.input, strict=False):
        kind = level.type_of(name)
        sequence = kind.WhichOneof("value") == "sequence_type"
        given.append(merged(kind.sequence_type.elem_type if sequence else kind, value.type))
    inferred = level.run(subgraph, given)
    results = []
    for value in inferred.output:
        kind = TypeProto()
        kind.sequence_type.elem_type.CopyFrom(value.type)
        results.append(kind)
    return {attribute: inferred}, results


_HANDLERS: Mapping[str, Callable[[NodeProto, Level], Answer]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}
