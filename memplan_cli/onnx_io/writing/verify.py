"""Checks that a rewritten graph is the same computation, without the code that wrote it.

The same nodes with the same attributes reading and writing the same values, each value made
once and before it is read, and the same interface. A recomputed copy, whose outputs are
called ``<name>__recompute``, must be a node of the original under the original's names; it
may leave out outputs that its operator's schema calls optional. A reader, a Shape node that
makes ``<name>__memplan_read`` for nobody, may be added.
"""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from memplan_cli.core.operators import canonical_domain, lookup
from memplan_cli.onnx_io.traversal import graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_COPY = re.compile(r"__recompute\d*$")

_READER = "__memplan_read"

Node = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Names:
    """Turns the names of declared copies back into those of their originals."""

    known: frozenset[str]

    def original(self, name: str) -> str:
        while name not in self.known and _COPY.search(name):
            name = _COPY.sub("", name)
        return name


def graph_differences(original: ModelProto, written: ModelProto) -> tuple[str, ...]:
    """Return what makes two models compute different things; empty where nothing does.

    Extra graph outputs at the end are no difference: they expose what is computed anyway.
    """
    found = list(_interface(original, written))
    if _same_nodes(original.graph, written.graph):
        return (*found, *_unordered(written.graph, frozenset()))
    names = _Names(frozenset(_made(original.graph)))
    added = frozenset(_added_readers(written.graph)) - names.known
    before = Counter(_node(node, names) for node in original.graph.node)
    after = Counter(
        _node(node, names) for node in written.graph.node if added.isdisjoint(node.output)
    )
    found.extend(f"{_label(node)} was lost" for node in before if node not in after)
    results = _results_by_node(before)
    found.extend(
        f"{_label(node)} was not there"
        for node in after
        if node not in before and not _leaves_out_optional_results(node, results)
    )
    # A node that runs twice under the same names makes its values twice: `_unordered`.
    found.extend(_unordered(written.graph, frozenset()))
    return tuple(found)


def _added_readers(graph: GraphProto) -> Iterator[str]:
    """Yield what declared readers make: ``<name>__memplan_read``, the Shape of a value.

    Such a node changes nothing as long as nobody reads it.
    """
    found = [
        node.output[0]
        for node in graph.node
        if (node.op_type, node.domain, len(node.input), len(node.output))
        == ("Shape", "", 1, 1)
        and not node.attribute
        and node.output[0] == f"{node.input[0]}{_READER}"
    ]
    if found:
        read = {name for inner in graphs(graph) for node in inner.node for name in node.input}
        read.update(value.name for inner in graphs(graph) for value in inner.output)
        yield from (name for name in found if name not in read)


def _results_by_node(nodes: Iterable[Node]) -> dict[Node, list[Sequence[str]]]:
    """Return the results of nodes that are alike in all else: operator, inputs and attributes."""
    found: dict[Node, list[Sequence[str]]] = {}
    for kind, domain, inputs, results, attributes in nodes:
        alike = found.setdefault((kind, domain, inputs, attributes), [])
        alike.append(cast("Sequence[str]", results))
    return found


def _leaves_out_optional_results(
    node: Node, results: Mapping[Node, Sequence[Sequence[str]]]
) -> bool:
    """Whether a node is one of the original's, but for optional results that it omits."""
    kind, domain, inputs, fewer, attributes = node
    optional = lookup(str(domain), str(kind)).optional_outputs
    return any(
        len(whole) == len(cast("Sequence[str]", fewer))
        and all(
            one == other or (not one and at in optional)
            for at, (one, other) in enumerate(
                zip(cast("Sequence[str]", fewer), whole, strict=True)
            )
        )
        for whole in results.get((kind, domain, inputs, attributes), ())
    )


def _same_nodes(one: GraphProto, other: GraphProto) -> bool:
    """Whether both have the same nodes to the byte, in any order: so in nearly all cases."""
    if one == other:
        return True
    before = Counter([node.SerializeToString(deterministic=True) for node in one.node])
    after = Counter([node.SerializeToString(deterministic=True) for node in other.node])
    return before == after


def _made(graph: GraphProto) -> Iterator[str]:
    for inner in graphs(graph):
        yield from (value.name for value in inner.input)
        yield from (tensor.name for tensor in inner.initializer)
        yield from (sparse.values.name for sparse in inner.sparse_initializer)
        for node in inner.node:
            yield from node.output


def _interface(original: ModelProto, written: ModelProto) -> Iterator[str]:
    old, new = original.graph, written.graph
    if sorted(map(str, original.opset_import)) != sorted(map(str, written.opset_import)):
        yield "the opsets differ"
    if [(v.name, str(v.type)) for v in old.input] != [
        (v.name, str(v.type)) for v in new.input
    ]:
        yield "the inputs differ"
    if list(original.functions) != list(written.functions):
        yield "the functions differ"
    before, after = ([(v.name, v.type) for v in graph.output] for graph in (old, new))
    if after[: len(before)] != before:
        yield "the outputs differ"
    if not _same_weights(old, new):
        yield "the initializers differ"


def _same_weights(old: GraphProto, new: GraphProto) -> bool:
    """Compare weights: names, types and data, the place of external data left aside."""
    before, after = list(_tensors(old)), list(_tensors(new))
    return len(before) == len(after) and all(
        getattr(one, part) == getattr(other, part)
        for one, other in zip(before, after, strict=True)
        for part in _PARTS
    )


_PARTS = (
    "name",
    "data_type",
    "dims",
    "data_location",
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
    "uint64_data",
    "string_data",
)
"""What makes a tensor, however its data is kept; the place of external data left aside."""


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _weight(tensor: TensorProto) -> bytes:
    """Return all of a tensor but the place of its external data."""
    bare = deepcopy(tensor)
    bare.ClearField("external_data")
    return bytes(bare.SerializeToString(deterministic=True))


def _node(node: NodeProto, names: _Names) -> Node:
    """Return what a node computes, in the original's names, notes left aside."""
    return (
        node.op_type,
        canonical_domain(node.domain),
        tuple(map(names.original, node.input)),
        tuple(map(names.original, node.output)),
        tuple(sorted((a.name, _attribute(a, names)) for a in node.attribute)),
    )


def _attribute(attribute: AttributeProto, names: _Names) -> tuple[object, ...]:
    inner = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    if not inner:
        return (attribute.SerializeToString(deterministic=True),)
    return tuple(
        (
            tuple(value.name for value in graph.input),
            tuple(names.original(value.name) for value in graph.output),
            tuple(map(_weight, _tensors(graph))),
            tuple(sorted(repr(_node(node, names)) for node in graph.node)),
        )
        for graph in inner
    )


def _label(node: Node) -> str:
    outputs = node[3]
    assert isinstance(outputs, tuple)  # noqa: S101 - _node made it
    return f"the {node[0]} that makes {', '.join(repr(str(o)[:80]) for o in outputs)}"


def _unordered(graph: GraphProto, outside: frozenset[str]) -> Iterator[str]:
    """Yield what is read before it is made, or made twice, in a graph and its subgraphs."""
    given = {"", *(value.name for value in graph.input)}
    given.update(tensor.name for tensor in graph.initializer)
    given.update(sparse.values.name for sparse in graph.sparse_initializer)
    there = {*outside, *given}
    hiding: set[str] = set()  # made under a name that is there without it
    for node in graph.node:
        if not there.issuperset(node.input[:]):
            where = node.name or node.op_type
            early = (name for name in node.input if name not in there)
            yield from (f"{where!r} reads {name[:80]!r} before it is made" for name in early)
        for _, body in subgraphs(node) if node.attribute else ():
            yield from _unordered(body, frozenset(there))
        for name in node.output[:]:
            if name not in there:
                there.add(name)
            elif name not in hiding and (name in given or name in outside):
                hiding.add(name)
            elif name:
                yield f"{name[:80]!r} is made twice"
    for value in graph.output:
        if not value.name or value.name not in there:
            yield f"the output {value.name[:80]!r} is not made"
