"""The timeline of a model, and its values matched to the tensors of a plan.

A node takes one tick. A node with subgraphs takes a first tick, then the ticks of its subgraphs
one after the other, and a last tick at which its outputs exist. The inputs, outputs and captures of
a repeated subgraph are live from the first to the last tick of its node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.checking.operators import (
    DROPOUT_INPUTS_WITH_TRAINING_MODE,
    RANDOM,
    REPEATED_SUBGRAPH,
    SELECTED_SUBGRAPH,
    STANDARD,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from onnx import (  # noqa: TID251 - types only; onnx_io makes them
        GraphProto,
        ModelProto,
        NodeProto,
    )

    from memplan_cli.core.binding_options import InputShape
    from memplan_cli.core.program import Shape
    from memplan_cli.core.results.placements import BlockOrder, Placement
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.bounds import Bounds

    TensorTypes = Mapping[str, tuple[str, Shape | None]]
    """Dtype and shape of the values of one block, by name."""


class ValueKind(Enum):
    """How a value is defined."""

    MODEL_INPUT = "input of the model"
    WEIGHT = "initializer or Constant node"
    NODE_OUTPUT = "output of a node"
    SUBGRAPH_INPUT = "input of a subgraph"


@dataclass(slots=True, eq=False)
class Value:
    """A value of one block.

    Attributes:
        kind: how the value is defined.
        first: tick of the first use, -1 if there is no use yet.
        end: tick after the last use.
        producer: the node with this output; None for inputs and initializers.
        depends_on_control_flow: the value is in a subgraph or computed from the output of a node
            with subgraphs, so its shape can differ from run to run.
        tensor_id: ``block path/name``, as in a plan; the name alone in the main graph.
    """

    name: str
    block: Block
    kind: ValueKind
    first: int = -1
    end: int = 0
    producer: Node | None = None
    depends_on_control_flow: bool = False
    tensor_id: str = ""

    @property
    def is_computed(self) -> bool:
        """Whether a run computes the value: it is an intermediate or an output of the model."""
        return self.kind in (ValueKind.NODE_OUTPUT, ValueKind.SUBGRAPH_INPUT)

    def extend_to(self, tick: int) -> None:
        """Extend the live range of this value to include a tick."""
        self.first = tick if self.first < 0 else min(self.first, tick)
        self.end = max(self.end, tick + 1)


@dataclass(slots=True, eq=False)
class Node:
    """A node with its first and last tick, and its index in its block.

    An omitted input or output is None.
    """

    proto: NodeProto
    block: Block
    index: int
    start: int
    last: int = field(init=False)
    inputs: Sequence[Value | None] = ()
    outputs: Sequence[Value | None] = ()
    subgraphs: list[Block] = field(default_factory=list)

    @property
    def operator(self) -> str:
        """The operator type in the standard ONNX domain; empty for other domains."""
        return str(self.proto.op_type) if self.proto.domain in STANDARD else ""

    @property
    def title(self) -> str:
        """The name of the node, or its operator type if it has none, cut for messages."""
        return str(self.proto.name or self.proto.op_type)[:120]

    @property
    def repeats(self) -> bool:
        """Whether the node can run its subgraphs several times."""
        return bool(self.subgraphs) and self.proto.op_type in REPEATED_SUBGRAPH

    @property
    def selects_subgraph(self) -> bool:
        """Whether the node runs exactly one of its subgraphs, once."""
        return bool(self.subgraphs) and self.operator in SELECTED_SUBGRAPH

    @property
    def draws_random_numbers(self) -> bool:
        """Whether the node itself can draw from the random generator of the run."""
        if self.operator == "Dropout":
            return len(self.proto.input) >= DROPOUT_INPUTS_WITH_TRAINING_MODE
        return self.operator in RANDOM

    def with_nodes_inside(self) -> Iterator[Node]:
        """Yield the node and all nodes of its subgraphs, nested ones included."""
        yield self
        for subgraph in self.subgraphs:
            for node in subgraph.nodes:
                yield from node.with_nodes_inside()

    def reads(self) -> Iterator[Value]:
        """Yield the inputs of the node, and the values of outer blocks that its subgraphs read."""
        yield from (value for value in self.inputs if value is not None)
        for subgraph in self.subgraphs:
            yield from subgraph.captured.values()


@dataclass(slots=True, eq=False)
class Block:
    """The main graph or a subgraph, with its nodes in the order of the file.

    Attributes:
        parent: the node whose attribute holds the subgraph; None for the main graph.
        attribute: name of that attribute, with the index in a list of graphs.
        values: the values defined in this block, by name.
        captured: the values of outer blocks that are read here or deeper, by ``id``.
        path: the name of the block in the plan.
        index: position among all blocks, in the order in which they run.
    """

    graph: GraphProto
    parent: Node | None = None
    attribute: str = ""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    captured: dict[int, Value] = field(default_factory=dict)
    path: str = ""
    index: int = 0

    def tensor_id(self, name: str) -> str:
        """Return the id in the plan of a value of this block."""
        return f"{self.path}/{name}" if self.path else name

    def resolve(self, name: str) -> Value | None:
        """Return the value of a name in this block or the nearest outer one, None if undefined.

        A value of an outer block is added to ``captured`` of all blocks in between.
        """
        block: Block | None = self
        inner_blocks: list[Block] = []
        while block is not None:
            value = block.values.get(name)
            if value is not None:
                for inner in inner_blocks:
                    inner.captured[id(value)] = value
                return value
            inner_blocks.append(block)
            block = None if block.parent is None else block.parent.block
        return None


@dataclass(slots=True)
class Timeline:
    """All blocks of a model on one clock.

    Attributes:
        blocks: the main graph first, then subgraphs in the order in which they run.
        ticks: the number of ticks.
        errors: why the graph is invalid, e.g. a value that is read before it is defined.
    """

    blocks: list[Block] = field(default_factory=list)
    ticks: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def whole_run(self) -> tuple[int, int]:
        """The half-open live range of a pinned tensor, which is not empty even without nodes."""
        return 0, max(self.ticks, 1)

    @property
    def main(self) -> Block:
        """The main graph."""
        return self.blocks[0]

    def values(self) -> Iterator[Value]:
        """Yield every value of every block."""
        for block in self.blocks:
            yield from block.values.values()

    def nodes(self) -> Iterator[Node]:
        """Yield every node of every block."""
        for block in self.blocks:
            yield from block.nodes

    def intermediates(self) -> Iterator[Value]:
        """Yield the values that a plan has to place: computed, and no output of the model."""
        outputs = {id(value) for value in self.main.outputs}
        for value in self.values():
            if value.is_computed and id(value) not in outputs:
                yield value


def build_timeline(graph: GraphProto, exposed: Collection[str] = ()) -> Timeline:
    """Return the timeline of a main graph. Faults of the graph are listed in its ``errors``.

    ``exposed`` are names of graph outputs that the plan places as intermediates.
    """
    timeline = Timeline()
    main = Block(graph)
    _add_block_inputs(main, timeline)
    _add_nodes(main, timeline)
    last_tick = max(timeline.ticks - 1, 0)
    # Exposed outputs are intermediates, which end at their last use.
    main.outputs = [value for value in main.outputs if value.name not in exposed]
    for value in main.outputs:
        value.extend_to(last_tick)
    return timeline


def name_blocks(timeline: Timeline, orders: Sequence[BlockOrder]) -> None:
    """Set the ``path`` of each block to its path in a plan's order, and the ids of all values."""
    for block, order in zip(timeline.blocks, orders, strict=False):
        block.path = order.block
    for value in timeline.values():
        value.tensor_id = value.block.tensor_id(value.name)


def _add_block_inputs(block: Block, timeline: Timeline) -> None:
    """Append a block to the timeline, and define its initializers and inputs as values of the block."""
    block.index = len(timeline.blocks)
    timeline.blocks.append(block)
    graph, parent = block.graph, block.parent
    weights = [tensor.name for tensor in graph.initializer]
    weights += [tensor.values.name for tensor in graph.sparse_initializer]
    for name in weights:
        _define(block, name, ValueKind.WEIGHT, timeline)
    kind = ValueKind.MODEL_INPUT if parent is None else ValueKind.SUBGRAPH_INPUT
    for proto in graph.input:
        if parent is None and proto.name in block.values:
            continue  # an initializer that the file lists among the inputs too
        value = _define(block, proto.name, kind, timeline)
        # Live from the first tick of the model, or of the node with the subgraph, until readers extend the range.
        value.extend_to(0 if parent is None else parent.start)
        block.inputs.append(value)


def _define(block: Block, name: str, kind: ValueKind, timeline: Timeline) -> Value:
    """Add a value to a block and return it. A second definition of a name is an error."""
    if name in block.values:
        timeline.errors.append(f"value {name[:120]!r} is defined twice")
    value = block.values[name] = Value(name, block, kind)
    value.depends_on_control_flow = block.parent is not None
    return value


def _add_nodes(block: Block, timeline: Timeline) -> None:
    """Add the nodes of a block and of its subgraphs to the timeline, in the order of the file.

    A node reads its inputs at its first tick and writes its outputs at its last one. A node without subgraphs
    has one tick, which is both. The ticks of subgraphs are between the first and the last tick of their node.
    """
    for index, proto in enumerate(block.graph.node):
        node = Node(proto, block, index, start=timeline.ticks)
        block.nodes.append(node)
        node.inputs = [_read_input(name, node, timeline) for name in proto.input]
        timeline.ticks += 1  # the first tick
        _add_subgraphs(node, timeline)
        if node.subgraphs:
            timeline.ticks += 1  # the last tick, after those of the subgraphs
        node.last = timeline.ticks - 1
        _extend_subgraph_outputs(node)
        is_constant = node.operator == "Constant"
        kind = ValueKind.WEIGHT if is_constant else ValueKind.NODE_OUTPUT
        node.outputs = [_define_output(name, node, kind, timeline) for name in proto.output]
        if node.repeats:  # the captures of its subgraphs are known now
            _extend_over_repeats(node)
    for output in block.graph.output:
        value = block.resolve(output.name)
        if value is None:
            timeline.errors.append(f"the graph output {output.name[:120]!r} is not defined")
        else:
            block.outputs.append(value)


def _read_input(name: str, node: Node, timeline: Timeline) -> Value | None:
    """Return the value of a node's input, and extend its live range to the node's first tick.

    None for an omitted input. None, with an error in the timeline, for an undefined name.
    """
    if not name:
        return None
    value = node.block.resolve(name)
    if value is None:
        timeline.errors.append(
            f"node {node.title!r} reads {name[:120]!r} before it is defined"
        )
        return None
    value.extend_to(node.start)
    return value


def _define_output(name: str, node: Node, kind: ValueKind, timeline: Timeline) -> Value | None:
    """Add an output of a node to its block and return it, or None if the output is omitted.

    Its live range is the node's last tick alone, until readers extend it. An output depends on control flow if
    its node is in a subgraph (set by `_define`), has subgraphs, or has an input that depends on control flow.
    """
    if not name:
        return None
    value = _define(node.block, name, kind, timeline)
    value.extend_to(node.last)
    value.producer = node
    if node.subgraphs or any(v.depends_on_control_flow for v in node.inputs if v is not None):
        value.depends_on_control_flow = True
    return value


def _add_subgraphs(node: Node, timeline: Timeline) -> None:
    """Add the subgraphs of a node to the node and to the timeline, in the order of its attributes."""
    for attribute in node.proto.attribute:
        graphs = [(attribute.name, attribute.g)] if attribute.HasField("g") else []
        graphs += [
            (f"{attribute.name}[{index}]", graph)
            for index, graph in enumerate(attribute.graphs)
        ]
        for name, graph in graphs:
            subgraph = Block(graph, node, name)
            node.subgraphs.append(subgraph)
            _add_block_inputs(subgraph, timeline)
            _add_nodes(subgraph, timeline)


def _extend_subgraph_outputs(node: Node) -> None:
    """Keep the outputs of a node's subgraphs live until its last tick, at which its own outputs are written."""
    for subgraph in node.subgraphs:
        for value in subgraph.outputs:
            value.extend_to(node.last)


def _extend_over_repeats(node: Node) -> None:
    """Keep values live from the first to the last tick of a node that repeats its subgraphs.

    These are its inputs and outputs, and the inputs and captures of its subgraphs. Outputs are live
    at the last tick already, and all others at the first.
    """
    for output in node.outputs:
        if output is not None:
            output.extend_to(node.start)
    values = list(node.inputs)
    for subgraph in node.subgraphs:
        values += [*subgraph.inputs, *subgraph.captured.values()]
    for value in values:
        if value is not None:
            value.extend_to(node.last)


@dataclass(frozen=True, slots=True)
class OriginalModel:
    """The model file that a plan was made for.

    Attributes:
        graph: its main graph; None if the written model is not a reordering of this graph, because
            ONNX Runtime optimized it or caches were turned into buffers.
        sha256: digest of the file; ``graph_sha256`` is that of the graph.
        free_inputs: its inputs with a symbolic dimension, as it declares them.
        dims: the names of its dims, and those in the shapes that the settings give its inputs.
        outputs: the names of its outputs.
        config: the session options that ONNX Runtime reads from it, ``ort_config``.
        was_optimized: whether the written model is the graph that ONNX Runtime made of it.
    """

    graph: GraphProto | None
    sha256: str
    graph_sha256: str
    free_inputs: tuple[InputShape, ...]
    dims: frozenset[str]
    outputs: frozenset[str]
    config: str | None
    was_optimized: bool


class PlacedTensor(NamedTuple):
    """A tensor of a plan with the value of the model that it stands for."""

    placement: Placement
    value: Value


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A written model and its plan.

    Attributes:
        types: dtype and shape by name, for each block of the timeline.
        bounds: bounds of dims; sizes in the plan are the largest within these bounds.
        tensors: the plan's tensors that are intermediates of the model, by id.
        original: the file that the plan was made for, if available.
    """

    model: ModelProto
    plan: Plan
    timeline: Timeline
    types: Sequence[TensorTypes]
    bounds: Bounds
    tensors: Mapping[str, PlacedTensor]
    original: OriginalModel | None = None

    def type_of(self, value: Value) -> tuple[str, Shape | None]:
        """Return dtype and shape of a value; ``"unknown"`` and None where the model does not determine them.

        With the setting ``profile_shapes``, the plan has the shapes of a run, and the model determines less:

        - the shape of a weight, which is that of its data;
        - no shape of a value that depends on control flow: it can differ from run to run;
        - of other shapes the dims that are numbers; a symbol, whose value in the run is not recorded, is None.
        """
        dtype, shape = self.types[value.block.index].get(value.name, ("unknown", None))
        was_recorded = bool(self.plan.settings.get("profile_shapes"))
        if value.kind is ValueKind.WEIGHT or not was_recorded:
            return dtype, shape
        if value.depends_on_control_flow or shape is None:
            return dtype, None
        return dtype, tuple(None if isinstance(dim, str) else dim for dim in shape)


def planned_model(
    model: ModelProto,
    plan: Plan,
    types: Sequence[TensorTypes],
    bounds: Bounds,
    original: OriginalModel | None = None,
) -> PlannedModel:
    """Build the timeline of a written model and match the plan's tensors to its values.

    ``types`` has dtype and shape by name for each block: the main graph first, then subgraphs in the
    order in which they run. The plan's sizes are the largest within ``bounds`` of dims.
    """
    timeline = build_timeline(model.graph, exposed_outputs(plan))
    name_blocks(timeline, plan.order)
    intermediates = {value.tensor_id: value for value in timeline.intermediates()}
    tensors = {
        row.id: PlacedTensor(row, intermediates[row.id])
        for row in plan.tensors
        if row.id in intermediates
    }
    return PlannedModel(model, plan, timeline, types, bounds, tensors, original)


def exposed_outputs(plan: Plan) -> set[str]:
    """Return the names of intermediates that the written model has as additional outputs."""
    if not plan.settings.get("expose"):
        return set()
    return {row.name for row in plan.tensors if row.pinned and not row.block}
