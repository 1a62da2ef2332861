"""The graph and tensors that a certificate is about: a model's nodes in the order of a plan.

The errors of proofs are here too: the other modules of this package raise them, and `verify` turns
them into verdicts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.operators import IN_PLACE_INPUTS
from memplan_cli.checking.order import path_fits_model, subgraphs_of, unique_names
from memplan_cli.checking.sharing import view_bases
from memplan_cli.checking.timeline import (
    ValueKind,
    build_timeline,
    exposed_outputs,
    name_blocks,
)
from memplan_cli.core.symbolic.bounds import largest_size
from memplan_cli.core.symbolic.sizes import Size, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onnx import GraphProto, NodeProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.checking.timeline import TensorTypes, Timeline, Value
    from memplan_cli.core.results.placements import BlockOrder, Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

    Arrange = Callable[[Sequence[NodeProto], Sequence[str]], Sequence[NodeProto]]
    """Returns the nodes of a block in the order of the plan's entries for it, one for each node."""


class ProofError(Exception):
    """A proof does not show its bound. The text is the reason."""


class UnknownSizeError(ProofError):
    """A proof cannot be checked because the model does not contain the size of a tensor."""


def require(condition: object, reason: str) -> None:
    """Raise a `ProofError` with this reason unless the condition is true."""
    if not condition:
        raise ProofError(reason)


@dataclass(frozen=True, slots=True)
class CertifiedModel:
    """The model of a plan, as far as a certificate needs it.

    Attributes:
        graph: the main graph. Its nodes are moved by `planned_graph`.
        arrange: `keep_written_order` for the model that was written with the plan,
            `move_to_planned_order` for the model that was planned.
        types: dtype and shape by name, for each block by its path.
        bounds: bounds of the dims for which the plan's sizes are the largest.
    """

    graph: GraphProto
    arrange: Arrange
    types: Mapping[str, TensorTypes]
    bounds: Bounds


class SizedTensor(NamedTuple):
    """A tensor of a plan with the size that it has in the model."""

    row: Placement
    size: Size

    @property
    def bytes(self) -> int:
        """The bytes of the tensor, as a multiple of its symbols if it has some."""
        return self.size.coefficient


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A model in the order of a plan, with the plan's tensors.

    Attributes:
        tensors: the tensors of the plan by id.
        view_bases: for each tensor that is not pinned, the tensor whose bytes it has: itself, or
            the start of a chain of views. At levels 0 and 1 views have bytes of their own.
        in_place_inputs: operator -> inputs over which its first output may be written; empty at
            levels 0 and 1.
    """

    plan: Plan
    timeline: Timeline
    tensors: Mapping[str, SizedTensor]
    view_bases: Mapping[str, str]
    in_place_inputs: Mapping[str, tuple[int, ...]]

    def own_bytes(self, tensor: str) -> int:
        """Return the bytes that a tensor has of its own: 0 for views and pinned tensors."""
        return self.tensors[tensor].bytes if self.view_bases.get(tensor) == tensor else 0


def planned_graph(plan: Plan, model: CertifiedModel) -> PlannedGraph:
    """Put a model's graph into the plan's order and match the plan's tensors to its values.

    The nodes of the model's graph are moved.

    Raises:
        ProofError: the plan's order or tensors are not those of the model.
    """
    timeline = _planned_timeline(plan, model)
    tensors = _sized_tensors(timeline, plan, model)
    # A pinned tensor is live at every step, and is counted apart from the others.
    sizes = {name: t.size for name, t in tensors.items() if t.row.pinned is None}
    if plan.report.level == 2:  # a view shares the bytes of another tensor, its base
        bases = view_bases(timeline, sizes)
        return PlannedGraph(plan, timeline, tensors, bases, IN_PLACE_INPUTS)
    # At levels 0 and 1 views have bytes of their own, and no output is written over an input.
    own_bases = {name: name for name in sizes}
    return PlannedGraph(plan, timeline, tensors, own_bases, in_place_inputs={})


def _planned_timeline(plan: Plan, model: CertifiedModel) -> Timeline:
    """Put a model's nodes into the plan's order, in place, and return the timeline.

    Raises:
        ProofError: the plan's order is not an order of the graph's nodes.
    """
    orders = plan.order
    require(len({order.block for order in orders}) == len(orders), "two blocks have one path")
    remaining = iter(orders)
    _arrange_blocks(model.graph, remaining, model.arrange)  # consumes one order for each block
    require(next(remaining, None) is None, "the plan's order has too many blocks")
    timeline = build_timeline(model.graph, exposed_outputs(plan))
    if timeline.errors:
        raise ProofError(f"in the planned order {timeline.errors[0]}")
    name_blocks(timeline, orders)  # sets the path of each block, as the plan has it
    for block in timeline.blocks:
        require(
            path_fits_model(block),
            f"the plan's order has a block {block.path[:120]!r} where the model has another one",
        )
    return timeline


def _arrange_blocks(graph: GraphProto, orders: Iterator[BlockOrder], arrange: Arrange) -> None:
    """Move the nodes of a graph and of its subgraphs, in place, into the order of the plan's blocks.

    The next of ``orders`` is for the graph itself. Those after it are for the subgraphs of its nodes, node by
    node in their new order, each followed by those of its own subgraphs. All of them are consumed.

    ``arrange`` returns the nodes in the order of a block. If it returns the list that it was called
    with, they are in this order already.

    Raises:
        ProofError: a block is missing, or has another number of nodes than the graph.
    """
    order = next(orders, None)
    if order is None:
        raise ProofError("the plan's order has too few blocks")
    nodes = list(graph.node)
    require(
        len(order.nodes) == len(nodes),
        f"the plan's order has {len(order.nodes)} nodes, the model has {len(nodes)}",
    )
    arranged = arrange(nodes, order.nodes)
    if arranged is not nodes:
        # Copied first: nodes that were deleted from a graph can no longer be read.
        copies = [type(node).FromString(node.SerializeToString()) for node in arranged]
        del graph.node[:]
        graph.node.extend(copies)
    for node in graph.node:
        for subgraph in subgraphs_of(node):
            _arrange_blocks(subgraph, orders, arrange)


def keep_written_order(
    nodes: Sequence[NodeProto], entries: Sequence[str]
) -> Sequence[NodeProto]:
    """Return the nodes of a model that was written with the plan, which are in its order already.

    The plan has as many entries as there are nodes. The entry of a node without a unique name is
    its index in the original file, ``#7``. The original is not at hand, so the index is not checked.

    Raises:
        ProofError: the plan has another order.
    """
    named = unique_names(nodes)
    for index, (node, entry) in enumerate(zip(nodes, entries, strict=True)):
        is_same = entry == node.name if node.name in named else entry.startswith("#")
        require(
            is_same,
            f"the plan's order has {entry[:120]!r} at place {index}, the model has another node",
        )
    return nodes


def move_to_planned_order(
    nodes: Sequence[NodeProto], entries: Sequence[str]
) -> Sequence[NodeProto]:
    """Return the nodes of the model that was planned, in the order of a plan's entries.

    An entry is the unique name of a node, or ``#7``: the index of a node without one.

    Raises:
        ProofError: the plan's order does not contain every node once.
    """
    named = unique_names(nodes)
    indices = {node.name: index for index, node in enumerate(nodes) if node.name in named}
    order = [_node_index(entry, indices, len(nodes)) for entry in entries]
    require(
        sorted(order) == list(range(len(nodes))),
        "the plan's order does not have every node once",
    )
    return [nodes[index] for index in order]


def _node_index(entry: str, indices: Mapping[str, int], node_count: int) -> int:
    """Return the index of the node of an entry, which is a unique name or ``#index``.

    Raises:
        ProofError: there is no such node.
    """
    if entry in indices:
        return indices[entry]
    digits = entry[1:]
    is_index = entry[:1] == "#" and digits.isascii() and digits.isdigit()
    require(
        is_index and len(digits) <= len(str(node_count)) and int(digits) < node_count,
        f"the plan's order has {entry[:120]!r}, which is not a node of the model",
    )
    return int(digits)


def _sized_tensors(
    timeline: Timeline, plan: Plan, model: CertifiedModel
) -> Mapping[str, SizedTensor]:
    """Return the plan's tensors by id, with the sizes of the model.

    Raises:
        ProofError: a tensor is not in the model, or has another type, size or live range there.
        UnknownSizeError: the model does not contain the size of a tensor.
    """
    values = {value.tensor_id: value for value in timeline.values()}
    tensors: dict[str, SizedTensor] = {}
    for row in plan.tensors:
        name = f"tensor {row.id[:120]!r}"
        value = values.get(row.id)
        if value is None:
            raise ProofError(f"{name} of the plan is not a value of the model")
        require(
            value.kind is not ValueKind.WEIGHT, f"{name} of the plan is a weight of the model"
        )
        size = _checked_size(row, plan.units[row.arena], value, model)
        first, end = timeline.whole_run if row.pinned else (value.first, value.end)
        require(
            (row.first, row.last) == (first, end),  # both half-open
            f"{name} is live from tick {first} to {end}, the plan says from {row.first} to {row.last}",
        )
        tensors[row.id] = SizedTensor(row, size)
    return tensors


def _checked_size(row: Placement, unit: str, value: Value, model: CertifiedModel) -> Size:
    """Return the size of a tensor in the model; the plan must have the same size and type.

    The plan has a size as bytes, times the unit of the arena: "1", or "batch*seq".

    Raises:
        ProofError: the plan has another size or type.
        UnknownSizeError: the model does not contain the size.
    """
    name = f"tensor {row.id[:120]!r}"
    types = model.types.get(value.block.path, {})
    dtype, shape = types.get(value.name, ("unknown", None))
    exact_size = size_of(shape, dtype)
    if exact_size is None:
        raise UnknownSizeError(f"the model does not contain the size of {name}")
    size = largest_size(exact_size, model.bounds)
    has_size = (row.bytes, unit) == (size.coefficient, size.unit)
    require(
        has_size and (dtype, shape) == (row.dtype, row.shape),
        f"{name} has {size} bytes in the model, and {row.bytes}*{unit} in the plan",
    )
    return size
