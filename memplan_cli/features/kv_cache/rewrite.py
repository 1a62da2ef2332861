"""Growing caches rewritten to buffers of one size that TensorScatter updates in place.

``present = Concat(past, new)`` becomes ``present = TensorScatter(past, new, position)``, where
both are ``capacity`` long, and who read the present reads its valid part. Only entries from
``position`` on are ever written, and only those before it are read of the past: whatever the
order of the nodes, nothing is overwritten that somebody still needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.results.rewrites import CacheBuffer, Caches
from memplan_cli.features.kv_cache.graph import Index, attribute
from memplan_cli.onnx_io.graph_editor import INT64, GraphEditor, rename_reads, with_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.features.kv_cache.find import Found, Search


def in_buffers(model: ModelProto, search: Search, capacity: int) -> tuple[ModelProto, Caches]:
    """Return a copy of a model whose caches are buffers, and what its user has to know.

    Args:
        model: In an opset with TensorScatter, and the one that was searched.
        search: Its caches.
        capacity: Entries that a buffer holds.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]  # what follows from the old lengths
    rewriting = _Rewriting(copy, capacity)
    for cache in search.found:
        if cache.form != "constant":
            _REWRITES[cache.form](rewriting, cache)
    rewriting.finish()
    buffers = tuple(CacheBuffer(f.input, f.output, f.axis, f.form) for f in search.found)
    return copy, Caches(
        capacity,
        rewriting.position,
        rewriting.length,
        buffers,
        kept=search.kept,
    )


class _Rewriting(GraphEditor):
    """A graph whose caches are replaced one by one; its nodes are put in order at the end."""

    def __init__(self, model: ModelProto, capacity: int) -> None:
        super().__init__(model)
        self.capacity = capacity
        self.index = Index.of(model.graph)
        self.position = self.fresh("memplan_position")
        self.length = self.fresh("memplan_length")
        self.lengths: list[str] = []
        self.gone: set[int] = set()
        self.renamed: dict[str, str] = {}
        self.sized: dict[str, tuple[str, int, str]] = {}
        """Values whose length is a position: the buffer to ask for other dims, axis, length."""
        self.whole: set[tuple[int, str]] = set()
        """Nodes that take a buffer whole, by index, and its name."""
        self.zero, self.one = self.constant("cache_zero", [0]), self.constant("cache_one", [1])

    def axis_constant(self, axis: int) -> str:
        """Return an initializer that holds an axis."""
        if axis == 0:
            return self.zero
        if axis == 1:
            return self.one
        name = f"cache_axis_{axis}"
        known = {tensor.name for tensor in self.graph.initializer}
        return name if name in known else self.constant(name, [axis])

    def declare(self, cache: Found) -> None:
        """Declare a cache's input and output as the buffer that they are."""
        given = next(v for v in self.graph.input if v.name == cache.input)
        made = next(v for v in self.graph.output if v.name == cache.output)
        dim = given.type.tensor_type.shape.dim[cache.axis]
        dim.Clear()
        dim.dim_value = self.capacity
        made.type.CopyFrom(given.type)

    def scattered(self, cache: Found, new: str) -> str:
        """Write new entries into the buffer; return the length that is valid after it."""
        grown = self.made(
            "Shape", [new], f"{cache.output}.new", start=cache.axis, end=cache.axis + 1
        )
        length = self.made("Add", [self.position, grown], f"{cache.output}.length")
        at = self.made(
            "Expand",
            [
                self.position,
                self.made("Shape", [cache.input], f"{cache.input}.rows", start=0, end=1),
            ],
            f"{cache.input}.position",
        )
        self.node("TensorScatter", [cache.input, new, at], cache.output, axis=cache.axis)
        self.lengths.append(length)
        return length

    def cut(self, buffer: str, axis: int, span: tuple[str, str]) -> str:
        """Return a part of a buffer along an axis."""
        inputs = [buffer, *span, self.axis_constant(axis)]
        return self.made("Slice", inputs, f"{buffer}.valid")

    def present(self, cache: Found, valid: str, length: str) -> None:
        """Let all who read a present, moved by the nodes behind it or not, read this instead."""
        result = self.index.nodes[cache.node].output[0]
        self.sized[cache.output] = (cache.output, cache.axis, length)
        if not cache.after:
            self.renamed[cache.output] = valid
            return
        self.renamed[result] = valid
        self.renamed[cache.output] = self.moved_result(cache.after[-1], cache.output)

    def moved_result(self, at: int, output: str) -> str:
        """Give the last node behind a present another result, for those who read it."""
        name = self.fresh(f"{output}.valid")
        node = self.index.nodes[at]
        places = [name if each == output else each for each in node.output]
        node.output[:] = places
        return name

    def past(self, cache: Found) -> None:
        """Let those who read the past read the part of it that is valid."""
        self.sized[cache.input] = (cache.input, cache.axis, self.position)
        self.renamed.setdefault(
            cache.input, self.cut(cache.input, cache.axis, (self.zero, self.position))
        )

    def finish(self) -> None:
        """Put all nodes in an order in which each is made before it is read."""
        from onnx import helper

        graph = self.graph
        nodes = [node for at, node in enumerate(self.index.nodes) if at not in self.gone]
        kept = {id(node): at for at, node in enumerate(self.index.nodes)}
        nodes = [self._sizes(node) for node in nodes]
        for node in nodes:
            whole = {name for at, name in self.whole if kept.get(id(node)) == at}
            rename_reads([node], {k: v for k, v in self.renamed.items() if k not in whole})
        if self.lengths:
            self.node("Identity", [self.lengths[0]], self.length)
        graph.input.append(helper.make_tensor_value_info(self.position, INT64, [1]))
        graph.output.append(helper.make_tensor_value_info(self.length, INT64, [1]))
        self.set_nodes(nodes)

    def _sizes(self, node: NodeProto) -> NodeProto:
        """Return a Shape of a cache as what says it without its values, other nodes as they are."""
        if node.op_type != "Shape" or node.domain not in STANDARD_DOMAINS:
            return node
        if node.input[0] not in self.sized:
            return node
        buffer, axis, length = self.sized[node.input[0]]
        rank = _rank(self.graph, buffer)
        first, last = _span(node, rank)
        output = node.output[0]
        if not first <= axis < last:
            return with_ends(node, [buffer], output)
        parts = [length]
        if first < axis:
            parts.insert(0, self.made("Shape", [buffer], output, start=first, end=axis))
        if axis + 1 < last:
            parts.append(self.made("Shape", [buffer], output, start=axis + 1, end=last))
        from onnx import helper

        if len(parts) == 1:
            return helper.make_node("Identity", parts, [output], node.name)
        return helper.make_node("Concat", parts, [output], node.name, axis=0)


def _extended(work: _Rewriting, cache: Found) -> None:
    """Replace a Concat by an update in place, and a look at what is valid."""
    index = work.index
    concat = index.nodes[cache.node]
    rank = index.ranks[cache.input]
    order = index.permutation(cache.before, rank)
    new = concat.input[1]
    if len(concat.input) > 2:
        (axis,) = attribute(concat, "axis") or (0,)
        new = work.made("Concat", concat.input[1:], f"{cache.output}.new", axis=axis)
    moves = order != tuple(range(rank))
    if moves:
        back = [order.index(axis) for axis in range(rank)]
        new = work.made("Transpose", [new], f"{cache.output}.new", perm=back)
    work.gone.add(cache.node)
    work.declare(cache)
    length = work.scattered(cache, new)
    valid = work.cut(cache.output, cache.axis, (work.zero, length))
    if moves:
        valid = work.made("Transpose", [valid], valid, perm=list(order))
    work.past(cache)
    work.present(cache, valid, length)


def _rounded(work: _Rewriting, cache: Found) -> None:
    """Keep a Concat between Casts as it is: what is new is used before it is rounded."""
    index = work.index
    concat = index.nodes[cache.node]
    new = concat.input[1]
    if len(concat.input) > 2:
        (axis,) = attribute(concat, "axis") or (0,)
        new = work.made("Concat", concat.input[1:], f"{cache.output}.new", axis=axis)
    for at in cache.after:
        node = index.nodes[at]
        copy = with_ends(node, [new], work.fresh(f"{cache.output}.new"))
        copy.name = work.fresh(f"{copy.output[0]}/{copy.op_type}")
        work.new_nodes.append(copy)
        new = copy.output[0]
    if not cache.after:
        rank = index.ranks[cache.input]
        order = index.permutation(cache.before, rank)
        back = [order.index(axis) for axis in range(rank)]
        new = work.made("Transpose", [new], f"{cache.output}.new", perm=back)
    work.declare(cache)
    length = work.scattered(cache, new)
    work.past(cache)
    _after_itself(work, cache, length)


def _operated(work: _Rewriting, cache: Found) -> None:
    """Give an operator the valid past, and write what its present has more than that."""
    work.declare(cache)
    work.past(cache)
    last = cache.after[-1] if cache.after else cache.node
    whole = work.moved_result(last, cache.output)
    full = work.made("Shape", [whole], f"{whole}.length", start=cache.axis, end=cache.axis + 1)
    new = work.cut(whole, cache.axis, (work.position, full))
    length = work.scattered(cache, new)
    work.renamed[cache.output] = whole
    work.sized[cache.output] = (cache.output, cache.axis, length)


def _shared(work: _Rewriting, cache: Found) -> None:
    """Leave an operator that writes into its past itself: only the sizes are other ones."""
    node = work.index.nodes[cache.node]
    work.declare(cache)
    grown = work.made("Shape", [node.input[0]], f"{cache.output}.new", start=1, end=2)
    length = work.made("Add", [work.position, grown], f"{cache.output}.length")
    work.lengths.append(length)
    work.past(cache)
    work.whole.add((cache.node, cache.input))
    work.renamed[cache.output] = work.cut(cache.output, cache.axis, (work.zero, length))
    work.sized[cache.output] = (cache.output, cache.axis, length)


def _after_itself(work: _Rewriting, cache: Found, length: str) -> None:
    """Keep the nodes that made a present, for those who read it."""
    last = cache.after[-1] if cache.after else cache.node
    work.renamed[cache.output] = work.moved_result(last, cache.output)
    work.sized[cache.output] = (cache.output, cache.axis, length)


_REWRITES: Mapping[str, Callable[[_Rewriting, Found], None]] = {
    "concat": _extended,
    "cast": _rounded,
    "operator": _operated,
    "shared": _shared,
}


def _span(node: NodeProto, rank: int) -> tuple[int, int]:
    """Return the axes that a Shape says, half-open."""
    (first,) = attribute(node, "start") or (0,)
    (last,) = attribute(node, "end") or (rank,)
    first, last = (at + rank if at < 0 else at for at in (first, last))
    return max(first, 0), min(last, rank)


def _rank(graph: GraphProto, name: str) -> int:
    values = (*graph.input, *graph.output)
    return next(len(v.type.tensor_type.shape.dim) for v in values if v.name == name)
