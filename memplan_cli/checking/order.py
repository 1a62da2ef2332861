"""Checks of a plan's order and releases against the nodes of the written model."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from memplan_cli.core.program import own_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import Block, Node, PlannedModel

COPY_MARK = "__recompute"
"""Occurs in the names of a recomputed node's outputs, followed by the number of the copy."""

COPY_SUFFIX = re.compile(rf"{COPY_MARK}\d*$")
"""Matches the end of the names of a recomputed node's outputs."""


def unique_names(nodes: Iterable[NodeProto]) -> set[str]:
    """Return the names by which a plan's order refers to nodes of a block.

    These occur once in the block and do not look like an index. The entry of any other node is
    ``#7``: its index in the original file.
    """
    counts = Counter(node.name for node in nodes)
    return {name for name, count in counts.items() if count == 1 and own_name(name)}


def check_order(planned: PlannedModel) -> Iterator[str]:
    """Yield where the plan's blocks and nodes differ from those of the written model.

    The indices of nodes without a unique name are checked if the original graph is available.
    """
    blocks, orders = planned.timeline.blocks, planned.plan.order
    if len(blocks) != len(orders):
        yield f"the order has {len(orders)} blocks, the model has {len(blocks)}"
        return
    for block, order in zip(blocks, orders, strict=True):
        # `name_blocks` has set ``block.path`` to ``order.block``: this path must fit the block's place in the model.
        if not path_fits_model(block):
            path = _path_in_model(block)
            yield f"the order has a block {order.block[:120]!r}, the model has {path[:120]!r}"
        yield from _check_entries(block, order.nodes)
    if any(len(b.nodes) != len(o.nodes) for b, o in zip(blocks, orders, strict=True)):
        return  # `_check_entries` has yielded a message for these blocks
    if planned.original is not None and planned.original.graph is not None:
        yield from _check_indices(planned, planned.original.graph)


def path_fits_model(block: Block) -> bool:
    """Return whether the plan's path of a block names the node and attribute of its subgraph.

    For example ``loop1.body/If#3.then_branch``: the path of the outer block, then the node and the
    attribute. A node without a name of its own is ``Type#index``, with its index in the original
    file; any index is valid here. A path that another block has already gets quotes at its end:
    ``loop1.body'``. The path of the main graph is empty.
    """
    node = block.parent
    if node is None:
        return not block.path
    name = own_name(node.proto.name)
    label = re.escape(name) if name else rf"{re.escape(node.proto.op_type)}#\d+"
    outer_path = re.escape(f"{node.block.path}/" if node.block.path else "")
    attribute = re.escape(block.attribute)
    return bool(re.fullmatch(rf"{outer_path}{label}\.{attribute}'*", block.path))


def _path_in_model(block: Block) -> str:
    """Return the path of a block for a message, without the index of a node without a name."""
    node = block.parent
    if node is None:
        return ""
    label = own_name(node.proto.name) or node.proto.op_type
    return node.block.tensor_id(f"{label}.{block.attribute}")


def node_labels(planned: PlannedModel) -> dict[int, str]:
    """Return the labels of nodes in reports, by tick: the first and the last tick of each node.

    A label is the node's own name, or its type and its entry in the plan's order, ``#7``: ``Relu#7``.
    """
    labels: dict[int, str] = {}
    for block, order in zip(planned.timeline.blocks, planned.plan.order, strict=True):
        for node, entry in zip(block.nodes, order.nodes, strict=True):
            label = own_name(node.proto.name) or f"{node.proto.op_type}{entry}"
            labels[node.start] = labels[node.last] = label
    return labels


def is_in_file_order(planned: PlannedModel) -> bool | None:
    """Return whether the nodes of each block have the order of the original; None if it is not known.

    Not known if the original graph is not available, or a node of the written model is not in it.
    """
    if planned.original is None or planned.original.graph is None:
        return None
    are_kept = [*_orders_kept(planned.model.graph, planned.original.graph)]
    return None if None in are_kept else all(are_kept)


def _orders_kept(graph: GraphProto, original: GraphProto) -> Iterator[bool | None]:
    """Yield for a graph and each of its subgraphs whether its nodes have the order of the original.

    None if a node is not in the original, where it is found by the name of its first output.
    """
    indices = {
        name: index for index, node in enumerate(original.node) for name in node.output if name
    }
    first_outputs = [next(filter(None, node.output), "") for node in graph.node]
    order = [indices.get(name) for name in first_outputs]
    known = [index for index in order if index is not None]
    has_unknown = len(known) < len(order)
    yield None if has_unknown else known == sorted(known)
    for node, index in zip(graph.node, order, strict=True):
        if index is not None:
            originals = subgraphs_of(original.node[index])
            for subgraph, original_subgraph in zip(
                subgraphs_of(node), originals, strict=False
            ):
                yield from _orders_kept(subgraph, original_subgraph)


def _check_entries(block: Block, entries: Sequence[str]) -> Iterator[str]:
    """Yield where the plan's entries of a block are not its nodes in order: their unique names, else ``#<index>``."""
    where = f" of block {block.path[:120]!r}" if block.path else ""
    if len(entries) != len(block.nodes):
        yield f"the order{where} has {len(entries)} nodes, the model has {len(block.nodes)}"
        return
    named = unique_names(node.proto for node in block.nodes)
    for node, entry in zip(block.nodes, entries, strict=True):
        name = node.proto.name
        if name in named:
            if entry != name:
                yield (
                    f"the order{where} has {entry[:120]!r} at place {node.index}, the model "
                    f"has {name[:120]!r} there"
                )
        elif not re.fullmatch(r"#\d+", entry):  # the index is checked by `_check_indices`
            yield (
                f"the order{where} has {entry[:120]!r} at place {node.index}, the model has a "
                f"{node.proto.op_type} without a unique name there"
            )


def _check_indices(planned: PlannedModel, original: GraphProto) -> Iterator[str]:
    """Yield each index in the plan's order at which the original graph has another node.

    An entry of the order is a node's own name, which is not checked here, or ``#7``, its index in the original.
    A node with subgraphs is found in the original by the name of one of its outputs. Its subgraphs are
    not checked if it is not found, or has another number of subgraphs there.
    """
    # `id` of a block -> the same block in the original file. A block comes before its subgraphs.
    originals: dict[int, GraphProto] = {id(planned.timeline.main): original}
    for block, order in zip(planned.timeline.blocks, planned.plan.order, strict=True):
        graph = originals.get(id(block))
        if graph is None:
            continue
        original_nodes = list(graph.node)
        producers = {name: node for node in original_nodes for name in node.output if name}
        for node, entry in zip(block.nodes, order.nodes, strict=True):
            is_own_name = entry and entry == own_name(node.proto.name)
            if not is_own_name:
                yield from _check_index(node, entry, original_nodes)
            names = _output_names(node.proto)
            original_node = next(
                (producers[name] for name in names if name in producers), None
            )
            inner = subgraphs_of(original_node) if original_node is not None else []
            if len(inner) == len(node.subgraphs):
                originals.update(zip(map(id, node.subgraphs), inner, strict=True))


def _check_index(node: Node, entry: str, original_nodes: Sequence[NodeProto]) -> Iterator[str]:
    """Yield a message unless the original has, at ``entry`` (``#index``), a node of this type with all outputs of ``node``.

    ``original_nodes`` are the nodes of the same block in the original, which messages call "the model's file".
    """
    index = int(entry[1:]) if re.fullmatch(r"#\d{1,9}", entry) else -1
    if not 0 <= index < len(original_nodes):
        yield (
            f"the order has {entry[:120]!r}, the model's file has {len(original_nodes)} "
            "nodes there"
        )
        return
    original = original_nodes[index]
    outputs, original_outputs = _output_names(node.proto), _output_names(original)
    # The outputs of a recomputed copy can be fewer: a copy omits outputs that nothing reads.
    has_other_outputs = not set(outputs) <= set(original_outputs)
    if original.op_type != node.proto.op_type or has_other_outputs:
        yield (
            f"the order has {entry} at place {node.index}, which makes {_quoted(original_outputs)}, "
            f"and the model has there what makes {_quoted(outputs)}"
        )


def _output_names(node: NodeProto) -> list[str]:
    """Return the outputs of a node; for a recomputed copy, those of the copied node."""
    return [COPY_SUFFIX.sub("", name) for name in node.output if name]


def _quoted(names: Sequence[str]) -> str:
    """Return at most three names, quoted and cut, for a message; ``"nothing"`` without names."""
    return ", ".join(repr(name[:120]) for name in names[:3]) or "nothing"


def subgraphs_of(node: NodeProto) -> list[GraphProto]:
    """Return the graphs in a node's attributes, in the order of `Node.subgraphs`."""
    graphs: list[GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs.extend(attribute.graphs)
    return graphs


def check_releases(planned: PlannedModel) -> Iterator[str]:
    """Yield a message for each tick after which the plan does not release exactly the dead tensors, each once.

    A tensor is released at the last tick of the last node of its block that needs it, itself or in
    subgraphs. Pinned tensors, and inputs and outputs of their own block, are never released.
    """
    inputs_and_outputs = {
        value
        for block in planned.timeline.blocks
        for value in (*block.inputs, *block.outputs)
        if value.block is block  # not a value of an outer block that a subgraph returns
    }
    dead_tensors: defaultdict[int, set[str]] = defaultdict(set)  # by the tick of the release
    for tensor_id, (row, value) in planned.tensors.items():
        if row.pinned is None and value not in inputs_and_outputs:
            nodes = value.block.nodes
            # ``end`` is the tick after the last use: nodes that start at it or later do not need the tensor.
            index_of_next = bisect_left(nodes, value.end, key=lambda node: node.start)
            last_user = nodes[index_of_next - 1]
            dead_tensors[last_user.last].add(tensor_id)  # ``last``: the last tick of the node
    releases = {release.step: release for release in planned.plan.releases}  # a step is a tick
    if len(releases) != len(planned.plan.releases):
        yield "releases: one step occurs twice"
    labels = node_labels(planned)
    for tick in sorted(dead_tensors.keys() | releases.keys()):
        release = releases.get(tick)
        released = () if release is None else release.tensors
        wrong = dead_tensors[tick].symmetric_difference(released)
        if wrong:
            name = min(wrong)
            verb = "is" if name in dead_tensors[tick] else "is not"
            yield f"releases: tensor {name[:120]!r} {verb} dead after step {tick}"
        elif len(released) != len(dead_tensors[tick]):
            yield f"releases: a tensor is released twice after step {tick}"
        elif release is not None and release.node != labels.get(tick):
            yield (
                f"releases: step {tick} is recorded as {release.node[:120]!r}, the model has "
                f"{labels.get(tick, '')[:120]!r} there"
            )
