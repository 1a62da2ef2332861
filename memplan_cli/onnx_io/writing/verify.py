"""Checks that a rewritten graph is the same computation, independently of the code that wrote it.

The rewritten graph must have the same interface, and the same nodes with the same attributes, inputs and
outputs, and its structure is valid (`structure`). Two kinds of nodes may be added:

- a recomputed copy of a node, whose outputs are called ``<name>__recompute``; it may omit outputs that
  its operator's schema calls optional,
- a reader: a Shape node that reads ``<name>`` and produces an unused ``<name>__memplan_read``, with a
  number behind it if that name is taken.
"""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import canonical_domain, lookup
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.writing.structure import new_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_COPY_SUFFIX = re.compile(r"__recompute\d*$")

_READER_SUFFIX = re.compile(r"__memplan_read(_\d+)?")


class NodeKey(NamedTuple):
    """What a node computes, in the names of the original graph; metadata is left out.

    The standard domain is ``""``; ``attributes`` are the name and content of each, sorted.
    """

    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: tuple[tuple[str, tuple[object, ...]], ...]


@dataclass(frozen=True, slots=True)
class _OriginalNames:
    """Maps names of recomputed values to the ``known`` names of the original graph and its subgraphs."""

    known: frozenset[str]

    def of(self, name: str) -> str:
        """Return the original's name: ``x__recompute2`` is ``x``, unless the original has both."""
        while name not in self.known and _COPY_SUFFIX.search(name):
            name = _COPY_SUFFIX.sub("", name)
        return name


def graph_differences(original: ModelProto, written: ModelProto) -> tuple[str, ...]:
    """Return how a written model computes something else than the original; empty if it does not.

    Further graph outputs at the end are no difference: they expose values that exist anyway.
    """
    differences = list(_interface_differences(original, written))
    if not _has_same_nodes(original.graph, written.graph):
        differences += _node_differences(original.graph, written.graph)
    # The comparison of nodes misses one that is there twice. `new_errors` finds it: its outputs are defined twice.
    return (*differences, *new_errors(written, lambda: original))


def _node_differences(original: GraphProto, written: GraphProto) -> Iterator[str]:
    """Describe each node that was lost or added.

    Nodes are compared by their keys, which have the original names of recomputed values: a recomputed copy has
    the key of its original. A copy that omits optional outputs is no difference either, nor is a Shape node
    that was added to keep a value alive.
    """
    names = _OriginalNames(frozenset(_value_names(original)))
    added_shapes = frozenset(_outputs_of_unread_shapes(written)) - names.known
    before = dict.fromkeys(_key(node, names) for node in original.node)
    after = dict.fromkeys(
        _key(node, names) for node in written.node if added_shapes.isdisjoint(node.output)
    )
    yield from (f"{_label(key)} was lost" for key in before if key not in after)
    originals = _outputs_by_computation(before)
    for key in after:
        computation = key._replace(outputs=())  # operator, inputs and attributes
        outputs_of_originals = originals.get(computation, ())
        if key not in before and not _omits_optional_outputs(key, outputs_of_originals):
            yield f"{_label(key)} was not there"


def _outputs_of_unread_shapes(graph: GraphProto) -> Iterator[str]:
    """Yield the outputs, which no node reads, of the Shape nodes that memplan adds to keep a value alive."""
    outputs = [node.output[0] for node in graph.node if _has_form_of_reader(node)]
    if outputs:
        read = {name for inner in graphs(graph) for node in inner.node for name in node.input}
        read.update(value.name for inner in graphs(graph) for value in inner.output)
        yield from (name for name in outputs if name not in read)


def _has_form_of_reader(node: NodeProto) -> bool:
    """Whether a node is a Shape from ``<name>`` to ``<name>__memplan_read``, maybe with a number behind."""
    if node.op_type != "Shape" or node.domain or node.attribute:
        return False
    if len(node.input) != 1 or len(node.output) != 1:
        return False
    value, result = node.input[0], node.output[0]
    suffix = result.removeprefix(value)
    return result.startswith(value) and _READER_SUFFIX.fullmatch(suffix) is not None


def _outputs_by_computation(keys: Iterable[NodeKey]) -> dict[NodeKey, list[tuple[str, ...]]]:
    """Return the outputs of each node, by its key without outputs. Equal nodes have an entry each."""
    outputs: dict[NodeKey, list[tuple[str, ...]]] = {}
    for key in keys:
        outputs.setdefault(key._replace(outputs=()), []).append(key.outputs)
    return outputs


def _omits_optional_outputs(
    key: NodeKey, outputs_of_originals: Iterable[tuple[str, ...]]
) -> bool:
    """Whether a node has the outputs of one of the original's nodes, but for optional ones that it omits.

    The list of outputs keeps its length: an omitted output has the name ``""``.

    Args:
        key: The node.
        outputs_of_originals: The outputs of each node of the original with the same operator, inputs and
            attributes.
    """
    optional_positions = lookup(key.domain, key.op_type).optional_outputs
    for originals in outputs_of_originals:
        if len(originals) != len(key.outputs):
            continue
        pairs = enumerate(zip(key.outputs, originals, strict=True))
        if all(
            output == original or (not output and position in optional_positions)
            for position, (output, original) in pairs
        ):
            return True
    return False


def _has_same_nodes(one: GraphProto, other: GraphProto) -> bool:
    """Whether two graphs have the same nodes to the byte, in any order: the usual case."""
    if one == other:
        return True
    before = Counter([node.SerializeToString(deterministic=True) for node in one.node])
    after = Counter([node.SerializeToString(deterministic=True) for node in other.node])
    return before == after


def _value_names(graph: GraphProto) -> Iterator[str]:
    """Yield the names of all values of a graph and its subgraphs."""
    for inner in graphs(graph):
        yield from (value.name for value in inner.input)
        yield from (tensor.name for tensor in inner.initializer)
        yield from (sparse.values.name for sparse in inner.sparse_initializer)
        yield from (name for node in inner.node for name in node.output)


def _interface_differences(original: ModelProto, written: ModelProto) -> Iterator[str]:
    """Yield which of opsets, inputs, functions, outputs and initializers differ.

    Further outputs at the end, and other places of external data, are no difference.
    """
    old, new = original.graph, written.graph
    if sorted(map(str, original.opset_import)) != sorted(map(str, written.opset_import)):
        yield "the opsets differ"
    old_inputs, new_inputs = ([(v.name, v.type) for v in graph.input] for graph in (old, new))
    if old_inputs != new_inputs:
        yield "the inputs differ"
    if list(original.functions) != list(written.functions):
        yield "the functions differ"
    old_outputs, new_outputs = (
        [(v.name, v.type) for v in graph.output] for graph in (old, new)
    )
    if new_outputs[: len(old_outputs)] != old_outputs:
        yield "the outputs differ"
    if not _has_same_weights(old, new):
        yield "the initializers differ"


_TENSOR_FIELDS = (
    *("name", "data_type", "dims", "data_location"),
    *("raw_data", "float_data", "double_data"),
    *("int32_data", "int64_data", "uint64_data", "string_data"),
)
"""The fields of a tensor that are compared: all but the place of external data."""


def _has_same_weights(old: GraphProto, new: GraphProto) -> bool:
    """Whether two graphs have the same weights; external data may have moved."""
    before, after = list(_weights(old)), list(_weights(new))
    return len(before) == len(after) and all(
        getattr(one, field) == getattr(other, field)
        for one, other in zip(before, after, strict=True)
        for field in _TENSOR_FIELDS
    )


def _weights(graph: GraphProto) -> Iterator[TensorProto]:
    """Yield the initializers of a graph, then values and indices of the sparse ones."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def _serialized_weight(tensor: TensorProto) -> bytes:
    """Return the bytes of a tensor without the place of its external data."""
    bare = deepcopy(tensor)
    bare.ClearField("external_data")
    return bytes(bare.SerializeToString(deterministic=True))


def _key(node: NodeProto, names: _OriginalNames) -> NodeKey:
    """Return what a node computes, with recomputed values under their original names."""
    return NodeKey(
        node.op_type,
        canonical_domain(node.domain),
        tuple(map(names.of, node.input)),
        tuple(map(names.of, node.output)),
        tuple(sorted((a.name, _attribute_key(a, names)) for a in node.attribute)),
    )


def _attribute_key(attribute: AttributeProto, names: _OriginalNames) -> tuple[object, ...]:
    """Return the content of an attribute in a form that is equal in the original and the written model."""
    bodies = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
    if bodies:
        return tuple(_graph_key(body, names) for body in bodies)
    return (attribute.SerializeToString(deterministic=True),)


def _graph_key(graph: GraphProto, names: _OriginalNames) -> tuple[object, ...]:
    """Return what a subgraph computes, whatever the order of its nodes.

    The key of a subgraph is the same in the original and the written model. There, the subgraph may read and
    return copies of values that are recomputed; ``names`` maps these to the names of the original.
    """
    return (
        tuple(value.name for value in graph.input),
        tuple(names.of(value.name) for value in graph.output),
        tuple(map(_serialized_weight, _weights(graph))),
        # As text: keys of attributes with and without subgraphs cannot be sorted together.
        tuple(sorted(repr(_key(node, names)) for node in graph.node)),
    )


def _label(key: NodeKey) -> str:
    outputs = ", ".join(repr(name[:80]) for name in key.outputs)
    return f"the {key.op_type} that makes {outputs}"
