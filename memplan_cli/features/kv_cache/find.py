"""Decoder caches of a graph, recognised by what its nodes do, never by a name.

A cache is an input that an output extends along one axis, ``Concat(past, new)``, with moves and
changes of type around it, or the past and present of an operator that extends it itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.operators import (
    MICROSOFT,
    ONNX,
    STANDARD_DOMAINS,
    Family,
    canonical_domain,
    operator,
)
from memplan_cli.core.results.rewrites import KeptCache
from memplan_cli.features.kv_cache.graph import Index, attribute

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from onnx import GraphProto, ModelProto, NodeProto

OPERATORS: Mapping[tuple[str, str], tuple[tuple[int, int, int], ...]] = {
    (ONNX, "Attention"): ((4, 1, 2), (5, 2, 2)),
    (MICROSOFT, "MultiHeadAttention"): ((6, 1, 2), (7, 2, 2)),
    (MICROSOFT, "GroupQueryAttention"): ((3, 1, 2), (4, 2, 2)),
    (MICROSOFT, "Attention"): ((4, 1, 3),),
}
"""Operator -> the places of a past and its present, and the axis that grows."""

SHARED = ((MICROSOFT, "GroupQueryAttention"),)
"""They write a present into its past where both are one buffer."""

_SELECTIONS = frozenset({Family.GATHER, Family.SLICE})


@dataclass(frozen=True, slots=True)
class Found:
    """A cache, and the nodes that extend it.

    Attributes:
        input, output: of the graph.
        axis: along which the output is longer, of the input and the output.
        form: one of `FORMS`.
        node: the Concat or the operator; -1 for a constant.
        before: nodes from the input to it, first first.
        after: nodes from its result to the output.
    """

    input: str
    output: str
    axis: int
    form: str
    node: int = -1
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """The caches of a graph, and what looks like one and cannot be updated in place."""

    found: tuple[Found, ...]
    kept: tuple[KeptCache, ...]


def find_caches(model: ModelProto, excluded: Collection[str] = ()) -> Search:
    """Look at every output of a model's graph.

    Args:
        model: Its weights may be absent.
        excluded: Tensors whose value must stay when the next step writes its own.
    """
    graph = model.graph
    index = Index.of(graph)
    looked = [each for value in graph.output for each in _looked_at(value.name, index)]
    found = [each for each in looked if isinstance(each, Found)]
    kept = [each for each in looked if isinstance(each, KeptCache)]
    extended = Counter(each.input for each in found)
    good: list[Found] = []
    for each in found:
        why = ""
        if extended[each.input] > 1:
            why = "several outputs extend or repeat it: each needs the old values"
        elif {each.input, each.output} & set(excluded):
            why = "it is excluded: its value must outlive the step"
        if why:
            kept.append(KeptCache(each.input, each.output, why))
        else:
            good.append(each)
    return Search(tuple(good), tuple(kept))


def _looked_at(output: str, index: Index) -> Iterator[Found | KeptCache]:
    root, after = index.traced(output)
    if root in index.ranks:
        if after and not index.rounds(after) and _is_plain(index, after, root):
            yield Found(root, output, 0, "constant", after=after)
        return
    node = index.made_by(root)
    if node is None:
        return
    if node.op_type == "Concat" and node.domain in STANDARD_DOMAINS:
        yield from _concatenated(output, node, after, index)
    elif _kind(node) in OPERATORS:
        yield from _of_operator(output, root, after, index)
    elif operator(node).family in _SELECTIONS:
        yield from _rearranged(output, node, index)
    else:
        yield from _in_subgraph(output, node, index)


def _concatenated(
    output: str, node: NodeProto, after: tuple[int, ...], index: Index
) -> Iterator[Found | KeptCache]:
    """Yield the cache that a Concat extends, or why that cannot be in place."""
    root, before = index.traced(node.input[0])
    if root not in index.ranks:
        yield from _not_at_the_front(output, node, root, index)
        return
    rank = index.ranks[root]
    moved, back = index.permutation(before, rank), index.permutation(after, rank)
    at = index.producer[node.output[0]]
    (axis,) = attribute(node, "axis") or (0,)
    if len(node.input) < 2 or len(moved) != rank or not -rank <= axis < rank:
        return
    if tuple(moved[place] for place in back) != tuple(range(rank)):
        yield KeptCache(root, output, "the output has its axes in another order")
        return
    form = "cast" if index.rounds((*before, *after)) else "concat"
    cache = Found(root, output, moved[axis % rank], form, at, before, after)
    yield _judged(cache, index.graph)


def _of_operator(
    output: str, root: str, after: tuple[int, ...], index: Index
) -> Iterator[Found | KeptCache]:
    """Yield the cache that an operator extends by itself."""
    at = index.producer[root]
    node = index.nodes[at]
    for taken, given, axis in OPERATORS[_kind(node)]:
        if len(node.output) <= given or node.output[given] != root:
            continue
        if len(node.input) <= taken or not node.input[taken]:
            return
        past, before = index.traced(node.input[taken])
        if past not in index.ranks:
            return
        rank = index.ranks[past]
        moved, back = index.permutation(before, rank), index.permutation(after, rank)
        if tuple(moved[place] for place in back) != tuple(range(rank)) or axis >= rank:
            yield KeptCache(past, output, "the output has its axes in another order")
            return
        shared = _kind(node) in SHARED and not before and not after
        form = "shared" if shared else "operator"
        cache = Found(past, output, moved[axis], form, at, before, after)
        yield _judged(cache, index.graph)


def _judged(cache: Found, graph: GraphProto) -> Found | KeptCache:
    """Return a cache, or why its buffer cannot have another length."""
    given = next(value for value in graph.input if value.name == cache.input)
    made = next(value for value in graph.output if value.name == cache.output)
    tensor, result = given.type.tensor_type, made.type.tensor_type
    why = ""
    if tensor.elem_type != result.elem_type:
        why = "the output has another element type"
    elif cache.axis == 0:
        why = "it grows along its first axis, along which TensorScatter counts rows"
    elif tensor.shape.dim[cache.axis].HasField("dim_value"):
        length = tensor.shape.dim[cache.axis].dim_value
        why = f"the file fixes its length at {length}"
    return KeptCache(cache.input, cache.output, why) if why else cache


def _not_at_the_front(
    output: str, node: NodeProto, root: str, index: Index
) -> Iterator[KeptCache]:
    """Say why a Concat that does not begin with an input extends no buffer in place."""
    maker = index.made_by(root)
    if maker is not None and operator(maker).family in _SELECTIONS:
        yield from _rearranged(output, maker, index)
        return
    for name in node.input[1:]:
        past, _ = index.traced(name)
        if past in index.ranks:
            yield KeptCache(past, output, "new values go in front of the old ones")
            return


def _rearranged(output: str, node: NodeProto, index: Index) -> Iterator[KeptCache]:
    """Say what a Gather or a Slice does to a cache, where it is one."""
    source, _ = index.traced(node.input[0])
    maker = index.made_by(source)
    if maker is not None and maker.op_type == "Concat":
        source, _ = index.traced(maker.input[0])
    if source not in index.ranks:
        return
    if operator(node).family is Family.GATHER:
        yield KeptCache(
            source, output, f"a {node.op_type} reorders its rows (beams): old values move"
        )
    elif maker is not None and maker.op_type == "Concat":
        yield KeptCache(source, output, f"a {node.op_type} drops its oldest values")


def _in_subgraph(output: str, node: NodeProto, index: Index) -> Iterator[KeptCache]:
    """Say that a cache is extended inside an If or a Loop, where it is."""
    for each in node.attribute:
        if not each.HasField("g"):
            continue
        inner = Index.of(each.g)
        place = list(node.output).index(output) if output in node.output else 0
        if place >= len(each.g.output):
            continue
        root, _ = inner.traced(each.g.output[place].name)
        maker = inner.made_by(root)
        if maker is None or maker.op_type != "Concat":
            continue
        past, _ = inner.traced(maker.input[0])
        if past in index.ranks:
            reason = f"a subgraph of {node.op_type} {node.name or output!r} extends it"
            yield KeptCache(past, output, reason)
            return


def _is_plain(index: Index, path: tuple[int, ...], root: str) -> bool:
    rank = index.ranks[root]
    return index.permutation(path, rank) == tuple(range(rank))


def _kind(node: NodeProto) -> tuple[str, str]:
    return canonical_domain(node.domain), node.op_type


def without(search: Search, names: Collection[str], reason: str) -> Search:
    """Return a search with the caches of some inputs kept as they are."""
    kept = [KeptCache(f.input, f.output, reason) for f in search.found if f.input in names]
    found = tuple(f for f in search.found if f.input not in names)
    return replace(search, found=found, kept=(*search.kept, *kept))
