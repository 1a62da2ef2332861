"""Decoder caches of a graph, recognized by how nodes compute them and never by their names.

A cache is a graph input (the past) that a graph output (the present) extends along one axis: by
``Concat(past, new)``, with Transposes and Casts around it, or by an attention operator that has past and
present itself. An output that passes an input on unchanged is a constant cache.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.operators import (
    MICROSOFT,
    ONNX,
    STANDARD_DOMAINS,
    Family,
    canonical_domain,
    operator,
)
from memplan_cli.core.results.rewrites import KeptCache
from memplan_cli.onnx_io.constants import constant_tensors, small_numbers
from memplan_cli.onnx_io.graph_editor import producers
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

PASSING = ("Identity", "Transpose", "Cast")
"""Operators through which a value is traced: they keep, move or round each element."""

NodePath = tuple[int, ...]
"""The indices of the nodes of `PASSING` between two values, from the first to the last."""


@dataclass(frozen=True, slots=True)
class GraphIndex:
    """The producers, input ranks and small constants of a graph, by name.

    Attributes:
        producer: the index of the node that computes each value; none for results of nodes without inputs.
        ranks: the declared rank of each graph input that has one and is not a weight.
        constants: the elements of small constants.
    """

    graph: GraphProto
    nodes: Sequence[NodeProto]
    producer: Mapping[str, int]
    ranks: Mapping[str, int]
    constants: Mapping[str, tuple[int | float, ...]]

    @classmethod
    def of(cls, graph: GraphProto) -> GraphIndex:
        """Index a graph. A node without inputs is no producer: its result is a constant."""
        nodes = list(graph.node)
        weights = {tensor.name for tensor in graph.initializer}
        ranks = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in graph.input
            if value.name not in weights
            and value.type.HasField("tensor_type")
            and value.type.tensor_type.HasField("shape")
        }
        constants = {
            name: numbers
            for name, tensor in constant_tensors(graph)
            if (numbers := small_numbers(tensor)) is not None
        }
        producer = {name: node for name, node in producers(nodes).items() if nodes[node].input}
        return cls(graph, nodes, producer, ranks, constants)

    def is_input(self, name: str) -> bool:
        """Return whether a value is a graph input of known rank, and not a weight."""
        return name in self.ranks

    def producer_of(self, name: str) -> NodeProto | None:
        """Return the node that computes a value; None for inputs, weights and results of nodes without inputs."""
        index = self.producer.get(name)
        return None if index is None else self.nodes[index]

    def trace_back(self, name: str) -> tuple[str, NodePath]:
        """Trace a value back through nodes of `PASSING`; return its source and the path from there."""
        path: list[int] = []
        while (index := self.producer.get(name)) is not None:
            node = self.nodes[index]
            if node.op_type not in PASSING or node.domain not in STANDARD_DOMAINS:
                break
            path.append(index)
            name = node.input[0]
        return name, tuple(reversed(path))

    def permutation(self, path: NodePath, rank: int) -> tuple[int, ...]:
        """Return, for each axis of the value after a path, its axis in the value before it."""
        axes = tuple(range(rank))
        for index in path:
            node = self.nodes[index]
            if node.op_type == "Transpose":
                order = attribute(node, "perm") or tuple(reversed(range(rank)))
                axes = tuple(axes[axis] for axis in order)
        return axes

    def keeps_axes(self, path: NodePath, rank: int) -> bool:
        """Return whether the Transposes on a path undo each other."""
        return self.permutation(path, rank) == tuple(range(rank))

    def has_cast(self, path: NodePath) -> bool:
        """Return whether there is a Cast on a path."""
        return any(self.nodes[index].op_type == "Cast" for index in path)


def attribute(node: NodeProto, name: str) -> tuple[int, ...]:
    """Return an int or ints attribute as a tuple; empty if the node does not have it."""
    for proto in node.attribute:
        if proto.name == name:
            return tuple(proto.ints) if proto.ints else (proto.i,)
    return ()


class OperatorCache(NamedTuple):
    """A cache of an attention operator: positions of past and present, and the axis that grows."""

    past_input: int
    present_output: int
    axis: int


OPERATORS: Mapping[tuple[str, str], tuple[OperatorCache, ...]] = {
    (ONNX, "Attention"): (OperatorCache(4, 1, 2), OperatorCache(5, 2, 2)),
    (MICROSOFT, "MultiHeadAttention"): (OperatorCache(6, 1, 2), OperatorCache(7, 2, 2)),
    (MICROSOFT, "GroupQueryAttention"): (OperatorCache(3, 1, 2), OperatorCache(4, 2, 2)),
    (MICROSOFT, "Attention"): (OperatorCache(4, 1, 3),),
}
"""Domain and type of an operator -> its caches."""

SHARED = ((MICROSOFT, "GroupQueryAttention"),)
"""Operators that write only the new entries if past and present are one buffer."""

_SELECTIONS = frozenset({Family.GATHER, Family.SLICE})


@dataclass(frozen=True, slots=True)
class CacheMatch:
    """A cache whose input and output can share one buffer, and the nodes that extend it.

    Attributes:
        input: the graph input.
        output: the graph output.
        axis: the axis of the graph input that grows; 0 for a constant cache, where it has no meaning.
        form: how the node extends the cache: ``concat``; ``cast`` (a Concat between Casts); ``operator``
            (an attention operator); ``shared`` (one of `SHARED`, which writes into the past itself);
            ``constant`` (the output passes the input on).
        node: the index of the Concat or attention operator; -1 for a constant cache.
        before: the path from the input to the node.
        after: the path from the node to the output.
    """

    input: str
    output: str
    axis: int
    form: str
    node: int = -1
    before: NodePath = ()
    after: NodePath = ()


@dataclass(frozen=True, slots=True)
class CacheSearch:
    """The caches of a graph.

    Attributes:
        matches: caches whose input and output can share one buffer.
        kept: caches whose input and output stay two tensors, with the reason.
    """

    matches: tuple[CacheMatch, ...]
    kept: tuple[KeptCache, ...]


def find_caches(model: ModelProto, excluded: Collection[str] = ()) -> CacheSearch:
    """Return the caches among the outputs of a model's main graph, whose weights may be absent.

    ``excluded`` are names of tensors that must not be overwritten by the next step.
    """
    index = GraphIndex.of(model.graph)
    matches: list[CacheMatch] = []
    kept: list[KeptCache] = []
    for value in model.graph.output:
        cache = _cache_of_output(value.name, index)
        if isinstance(cache, CacheMatch):
            matches.append(cache)
        elif cache is not None:
            kept.append(cache)
    extended = Counter(match.input for match in matches)
    in_place: list[CacheMatch] = []
    for match in matches:
        reason = ""
        if extended[match.input] > 1:
            reason = "several outputs extend or repeat it: each needs the old values"
        elif match.input in excluded or match.output in excluded:
            reason = "it is excluded: its value must outlive the step"
        if reason:
            kept.append(KeptCache(match.input, match.output, reason))
        else:
            in_place.append(match)
    return CacheSearch(tuple(in_place), tuple(kept))


def _cache_of_output(output: str, index: GraphIndex) -> CacheMatch | KeptCache | None:
    """Return the cache whose value for the next step is a graph output; None if the output is of no cache.

    A cache is a graph input. The output extends it, selects from it, or returns it unchanged (a constant cache).
    A `CacheMatch` if one buffer can hold input and output, else a `KeptCache` with the reason.
    """
    # ``after``: the indices of the Transposes, Casts and Identities between the source and the output. The
    # source, where this path begins, is a graph input or the result of another operator.
    source, after = index.trace_back(output)
    if index.is_input(source):
        keeps_axes = index.keeps_axes(after, index.ranks[source])
        # Without a path, input and output are one name: there is no second tensor to save. With moved axes or a
        # Cast the output is another tensor, and no cache. In a constant cache no axis grows: the 0 is unused.
        if after and keeps_axes and not index.has_cast(after):
            return CacheMatch(source, output, axis=0, form="constant", after=after)
        return None
    node = index.producer_of(source)
    if node is None:
        return None
    if node.op_type == "Concat" and node.domain in STANDARD_DOMAINS:
        return _concatenated_cache(output, node, after, index)
    if _operator_key(node) in OPERATORS:
        return _operator_cache(output, source, after, index)
    if operator(node).family in _SELECTIONS:  # a Gather or Slice of a cache
        return _rearranged_cache(output, node, index)
    return _cache_in_subgraph(output, source, index)


def _concatenated_cache(
    output: str, concat: NodeProto, after: NodePath, index: GraphIndex
) -> CacheMatch | KeptCache | None:
    """Return the cache that a Concat extends: a graph input (past), its first operand, and new entries behind it.

    - A `CacheMatch` if one buffer can hold the past and the graph output ``output`` (`_in_place_or_kept`). There may
      be Transposes and Casts before the Concat, and from the Concat to ``output``: ``after`` has their indices.
    - A `KeptCache` if one buffer cannot, or if the first operand is a Gather of the past.
    - None if that operand is not from a graph input, nothing is appended, or the model is invalid.
    """
    # ``before`` are the indices of the Transposes and Casts from the past to the Concat.
    past, before = index.trace_back(concat.input[0])
    if not index.is_input(past):
        producer = index.producer_of(past)
        if producer is None or operator(producer).family not in _SELECTIONS:
            return None
        return _rearranged_cache(output, producer, index)
    if len(concat.input) < 2:
        return None  # nothing is appended
    rank, axis_values = index.ranks[past], attribute(concat, "axis")
    if len(axis_values) != 1 or not -rank <= axis_values[0] < rank:
        return None  # an invalid model
    # For each axis of the operand, the axis of the past. They differ if it is transposed before the Concat.
    axes = index.permutation(before, rank)
    if len(axes) != rank:
        return None  # an invalid model: a Transpose of another rank
    axis = axes[axis_values[0]]
    form = "cast" if index.has_cast((*before, *after)) else "concat"
    node_index = index.producer[concat.output[0]]
    match = CacheMatch(past, output, axis, form, node_index, before, after)
    return _in_place_or_kept(match, index)


def _operator_cache(
    output: str, result: str, after: NodePath, index: GraphIndex
) -> CacheMatch | KeptCache | None:
    """Return the cache that an attention operator extends, if ``result`` is its present: past and new entries.

    The graph output ``output`` follows from ``result`` through Transposes and Casts, whose indices are
    ``after``. None if the past is from no graph input, or if the model is invalid. A `KeptCache` if past and
    present cannot be one buffer (`_in_place_or_kept`).
    """
    node_index = index.producer[result]
    node = index.nodes[node_index]
    position = list(node.output).index(result)
    caches = {cache.present_output: cache for cache in OPERATORS[_operator_key(node)]}
    cache = caches.get(position)
    if cache is None or len(node.input) <= cache.past_input:  # no present, or no past
        return None
    # ``before`` are the indices of the Transposes and Casts from the graph input to the operator's past.
    past, before = index.trace_back(node.input[cache.past_input])
    if not index.is_input(past):  # such as "", an omitted past
        return None
    # ``axes[i]`` is the axis of the graph input that is axis i of the operator's past.
    axes = index.permutation(before, index.ranks[past])
    if len(axes) <= cache.axis:  # an invalid model: the past has too few axes for the operator
        return None
    # An operator in `SHARED` can write the new entries into the past itself, but only if its past and present
    # are the graph input and output (form ``shared``). Else a TensorScatter writes them (form ``operator``).
    is_shared = _operator_key(node) in SHARED and not before and not after
    form = "shared" if is_shared else "operator"
    match = CacheMatch(past, output, axes[cache.axis], form, node_index, before, after)
    return _in_place_or_kept(match, index)


def _in_place_or_kept(cache: CacheMatch, index: GraphIndex) -> CacheMatch | KeptCache:
    """Return a growing cache if one buffer can hold its input and output, else a `KeptCache` with the reason."""
    past = next(value for value in index.graph.input if value.name == cache.input)
    present = next(value for value in index.graph.output if value.name == cache.output)
    past_type, present_type = past.type.tensor_type, present.type.tensor_type
    growing_dim = past_type.shape.dim[cache.axis]
    # The nodes from the input to the output, without the node that extends the cache. Some may be Transposes.
    path = (*cache.before, *cache.after)
    if not index.keeps_axes(path, index.ranks[cache.input]):
        reason = "the output has its axes in another order"
    elif past_type.elem_type != present_type.elem_type:
        reason = "the output has another element type"
    elif cache.axis == 0:  # the batch: TensorScatter writes into each row, and adds none
        reason = "it grows along its first axis, along which TensorScatter counts rows"
    elif growing_dim.HasField("dim_value"):
        reason = f"the file fixes its length at {growing_dim.dim_value}"
    else:
        return cache
    return KeptCache(cache.input, cache.output, reason)


def _rearranged_cache(
    output: str, selection: NodeProto, index: GraphIndex
) -> KeptCache | None:
    """Return the cache that a Gather reorders or a Slice shortens, which cannot be updated in place.

    ``selection``, the Gather or Slice, reads the past or a Concat that extends the past. The result is None if the past
    is no graph input, or if a Slice reads the past itself.
    """
    past, _ = index.trace_back(selection.input[0])
    producer = index.producer_of(past)
    concat = producer if producer is not None and producer.op_type == "Concat" else None
    if concat is not None:
        past, _ = index.trace_back(concat.input[0])
    if not index.is_input(past):
        return None
    if operator(selection).family is Family.GATHER:
        reason = f"a {selection.op_type} reorders its rows (beams): old values move"
        return KeptCache(past, output, reason)
    if concat is not None:
        return KeptCache(past, output, f"a {selection.op_type} drops its oldest values")
    return None


def _cache_in_subgraph(output: str, result: str, index: GraphIndex) -> KeptCache | None:
    """Return the cache that a subgraph of If or Loop extends, which stays two tensors; None if none does.

    ``result`` is the result of the node from which a path leads to the output. The subgraph computes it by
    a Concat of the past, a graph input that the subgraph captures, and new entries.
    """
    node = index.nodes[index.producer[result]]
    position = list(node.output).index(result)
    if node.op_type == "Loop":  # the body returns the condition first
        position += 1
    for _, body in subgraphs(node):
        if position >= len(body.output):
            continue
        inner = GraphIndex.of(body)
        source, _ = inner.trace_back(body.output[position].name)
        concat = inner.producer_of(source)
        if concat is None or concat.op_type != "Concat":
            continue
        past, _ = inner.trace_back(concat.input[0])
        if index.is_input(past):
            reason = f"a subgraph of {node.op_type} {node.name or output!r} extends it"
            return KeptCache(past, output, reason)
    return None


def _operator_key(node: NodeProto) -> tuple[str, str]:
    """Return domain and type of a node, as the keys of `OPERATORS`."""
    return canonical_domain(node.domain), node.op_type
