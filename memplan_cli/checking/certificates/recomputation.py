"""Bounds for any order in which any nodes may run again: what a node needs, or a kept value implies.

A proof of method ``kept`` argues about a value that is kept from a run of its producer until a
reader runs. Every other value that the reader reads was live while the kept value was produced, or
was produced since, beside the kept value. Values that do not fit beside it cannot have been
produced since. So while the kept value is produced, something is live on every path from the values
that do not fit to the values that the reader reads: at least as many bytes as a flow along these
paths carries, if no more flows through a value than its bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.checking.certificates.planned_graph import ProofError, require
from memplan_cli.checking.operators import OPTIONAL_OUTPUTS, VIEWS
from memplan_cli.checking.order import COPY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memplan_cli.checking.certificates.planned_graph import PlannedGraph
    from memplan_cli.checking.timeline import Node, Value
    from memplan_cli.core.results.certificate import ReaderFlow, RecomputeProof


def check_recomputation(planned: PlannedGraph, proof: RecomputeProof) -> None:
    """Check that a proof shows its bound for all orders with any recomputation.

    Method ``step``: one node needs the bound by itself. ``kept``: no order below the bound has room
    beside a value that is kept until one of its readers runs.

    Raises:
        ProofError: with the reason.
    """
    graph = _graph_without_copies(planned)
    if proof.method == "step":
        node = graph.nodes.get(proof.node)
        if node is None:
            raise ProofError(f"{proof.node[:120]!r} is not the first output of a node")
        needed = graph.pinned_bytes + graph.bytes_at_step(node, graph.live_values(node))
        require(
            needed >= proof.bound,
            f"the node that computes {proof.node[:120]!r} needs {needed} bytes, not {proof.bound}",
        )
        return
    # Every order below the bound has this many bytes for values that are not pinned.
    room = proof.bound - 1 - graph.pinned_bytes
    _KeptValue(graph, proof.kept, room).check(proof.ways)


@dataclass(slots=True)
class _GraphWithoutCopies:
    """The main graph without copies of nodes. Values are named by the id of their tensor.

    A view is the same value as its source, if both have the same size and level 2 shares them.
    Outputs of the model and pinned tensors are no values here.

    Attributes:
        nodes: the nodes that are not copies, by their first output.
        original_names: for each output of a copy, the same output of the original node.
        values: for each tensor, the value that it is or that it is a view of.
        producers: the node that produces each value.
        pinned_bytes: bytes that are live at every step.
    """

    planned: PlannedGraph
    nodes: dict[str, Node] = field(default_factory=dict)
    original_names: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    producers: dict[str, Node] = field(default_factory=dict)
    pinned_bytes: int = 0

    def original_name(self, value: Value) -> str:
        """Return the id of a value, or of the value that it is a recomputed copy of."""
        return self.original_names.get(value.tensor_id, value.tensor_id)

    def size(self, value: str) -> int:
        """Return the bytes of a value; 0 if the plan does not place it or its size is symbolic."""
        tensor = self.planned.tensors.get(value)
        return 0 if tensor is None or tensor.size.symbols else tensor.bytes

    def read_values(self, node: Node) -> set[str]:
        """Return the values that a node and its subgraphs read."""
        names = map(self.original_name, node.reads())
        return {self.values[name] for name in names if name in self.values}

    def output_values(self, node: Node) -> set[str]:
        """Return the values that the outputs of a node are, or are views of."""
        names = (value.tensor_id for value in node.outputs if value is not None)
        return {self.values[name] for name in names if name in self.values}

    def live_values(self, node: Node) -> set[str]:
        """Return the values that must be live at the step of a node."""
        if _runs_subgraph_once(node):
            # Values that a branch reads can end before the outputs are written.
            return self.read_values(node)
        return self.read_values(node) | self.output_values(node)

    def live_values_of_copy(self, value: str) -> set[str]:
        """Return the values that must be live at the step of a copy that produces a value.

        The copy need not have optional outputs other than this value.
        """
        node = self.producers[value]
        live = self.live_values(node)
        if node.proto.op_type not in OPTIONAL_OUTPUTS:
            return live
        first = node.outputs[0]
        needed = {value, "" if first is None else self.values.get(first.tensor_id, "")}
        return live - (self.output_values(node) - needed)

    def bytes_at_step(self, node: Node, live: Collection[str]) -> int:
        """Return the bytes of the live values, minus an input that the node may overwrite."""
        return sum(map(self.size, live)) - self._overwritten_bytes(node)

    def _overwritten_bytes(self, node: Node) -> int:
        """Return the bytes of an input that the first output may be written over; 0 if none."""
        tensors = self.planned.tensors
        output = node.outputs[0] if node.outputs else None
        if output is None or output.tensor_id not in self.values:
            return 0
        tensor = tensors.get(output.tensor_id)
        if tensor is None or tensor.size.symbols:
            return 0
        for position in self.planned.in_place_inputs.get(node.operator, ()):
            value = node.inputs[position] if position < len(node.inputs) else None
            name = "" if value is None else self.original_name(value)
            if name in self.values and name in tensors and tensors[name].size == tensor.size:
                return tensor.bytes
        return 0


def _runs_subgraph_once(node: Node) -> bool:
    """Return whether a node has subgraphs and does not repeat them, as an If."""
    return bool(node.subgraphs) and not node.repeats


def _graph_without_copies(planned: PlannedGraph) -> _GraphWithoutCopies:
    """Return the main graph of a model without recomputed copies of nodes."""
    main = planned.timeline.main
    pinned = {name: tensor for name, tensor in planned.tensors.items() if tensor.row.pinned}
    graph = _GraphWithoutCopies(planned)
    graph.pinned_bytes = sum(tensor.bytes for tensor in pinned.values())
    not_values = {value.tensor_id for value in main.outputs} | pinned.keys()
    producers: dict[str, Node] = {}
    for node in main.nodes:
        copied_outputs = _copied_outputs(node, producers, graph)
        if copied_outputs:
            graph.original_names.update(copied_outputs)
            continue
        names = [value.tensor_id for value in node.outputs if value is not None]
        if names:
            graph.nodes[names[0]] = node
        for name in names:
            producers[name] = node
            if name not in not_values:
                value = _viewed_value(node, name, graph) or name
                graph.values[name] = value
                graph.producers.setdefault(value, node)
    return graph


def _copied_outputs(
    node: Node, producers: Mapping[str, Node], graph: _GraphWithoutCopies
) -> Mapping[str, str]:
    """Return the original output of each output of a recomputed copy; empty for other nodes.

    A copy has the operator, attributes and inputs of its original, and no subgraphs. Outputs of the
    original that are not computed again are missing.
    """
    originals = {
        value.tensor_id: COPY_SUFFIX.sub("", value.tensor_id)
        for value in node.outputs
        if value is not None and COPY_SUFFIX.search(value.tensor_id)
    }
    original_nodes = [producers[name] for name in originals.values() if name in producers]
    if not original_nodes or len(original_nodes) != len(originals):
        return {}
    original = original_nodes[0]
    is_copy = (
        all(producer is original for producer in original_nodes)
        and not node.subgraphs
        and (node.proto.op_type, node.proto.domain)
        == (original.proto.op_type, original.proto.domain)
        and _input_names(node, graph) == _input_names(original, graph)
        and _attributes(node) == _attributes(original)
    )
    return originals if is_copy else {}


def _input_names(node: Node, graph: _GraphWithoutCopies) -> list[str | None]:
    """Return the inputs of a node; a copy's outputs have the names of the original's outputs."""
    return [None if value is None else graph.original_name(value) for value in node.inputs]


def _attributes(node: Node) -> list[bytes]:
    """Return the serialized attributes of a node, to compare them with those of another node."""
    return [attribute.SerializeToString() for attribute in node.proto.attribute]


def _viewed_value(node: Node, name: str, graph: _GraphWithoutCopies) -> str | None:
    """Return the value of which a tensor is a view, if its producer is a view operator.

    None if sharing is off, if ``name`` is not the node's first output, or if the plan does not
    give both tensors the same size.

    Args:
        node: the producer.
        name: the id of the tensor.
        graph: the values of all earlier tensors.
    """
    has_sharing = bool(graph.planned.in_place_inputs)
    if not has_sharing or node.operator not in VIEWS or not node.inputs:
        return None
    output, base = node.outputs[0], node.inputs[0]
    if output is None or output.tensor_id != name or base is None:
        return None
    source, tensors = graph.original_name(base), graph.planned.tensors
    if source not in tensors or name not in tensors:
        return None
    return graph.values.get(source) if tensors[source].size == tensors[name].size else None


class _KeptValue:
    """A value that is kept from a run of its producer until a reader runs.

    Args of the constructor:
        graph: the model without copies.
        name: the kept value.
        room: bytes that an order may use at most.

    Raises:
        ProofError: there is no such value, or it is the output of an If.
    """

    def __init__(self, graph: _GraphWithoutCopies, name: str, room: int) -> None:
        require(name in graph.producers, f"{name[:120]!r} is not a value that can be kept")
        self._graph, self._name, self._room = graph, name, room
        self._producer = graph.producers[name]
        require(
            not _runs_subgraph_once(self._producer),
            f"{name[:120]!r} is the output of a node with branches",
        )

    def check(self, flows: Sequence[ReaderFlow]) -> None:
        """Check that with each reader, some step needs more bytes than there is room for.

        There is a flow for each reader, and another one with ``alone`` if a copy of the producer
        needs fewer outputs than the producer.

        Raises:
            ProofError: a flow is missing or wrong, or does not show this.
        """
        graph, name = self._graph, self._name
        live, live_of_copy = (
            graph.live_values(self._producer),
            graph.live_values_of_copy(name),
        )
        readers = [
            first_output
            for first_output, node in graph.nodes.items()
            if name in graph.read_values(node) and name not in graph.output_values(node)
        ]
        require(readers, f"nothing reads {name[:120]!r}")
        cases = [False] if live == live_of_copy else [False, True]
        expected = sorted((reader, alone) for alone in cases for reader in readers)
        require(
            sorted((flow.reader, flow.alone) for flow in flows) == expected,
            f"there is not exactly one flow for each reader of {name[:120]!r}",
        )
        for flow in flows:
            live_at_producer = live_of_copy if flow.alone else live
            needed = graph.bytes_at_step(self._producer, live_at_producer)
            needed += self._flow_into_reader(flow, live_at_producer)
            require(
                needed > self._room,
                f"while {name[:120]!r} is computed for {flow.reader[:120]!r}, {needed} bytes are "
                f"needed, and there is room for {self._room}",
            )

    def _flow_into_reader(self, flow: ReaderFlow, live_at_producer: Collection[str]) -> int:
        """Return the bytes of a flow that arrive at the values that the reader reads.

        Raises:
            ProofError: a passage is not along an edge of the graph, a value passes more than its
                bytes, or a value that fits beside the kept one passes more than it receives.
        """
        graph = self._graph
        received: defaultdict[str, int] = defaultdict(int)
        passed: defaultdict[str, int] = defaultdict(int)
        read_by_reader = graph.read_values(graph.nodes[flow.reader])
        arrived = 0
        for value, target, size in flow.passages:
            name = f"{value[:120]!r}"
            require(value in graph.producers, f"{name} has a passage, but is not a value")
            require(
                value not in live_at_producer, f"{name} has a passage, but is live already"
            )
            passed[value] += size
            if not target:
                require(
                    value in read_by_reader, f"{name} is not read by {flow.reader[:120]!r}"
                )
                arrived += size
                continue
            is_produced_from_value = (
                target in graph.producers
                and target not in live_at_producer
                and value in graph.read_values(graph.producers[target])
            )
            require(is_produced_from_value, f"{target[:120]!r} is not computed from {name}")
            received[target] += size
        for value, size in passed.items():
            require(
                size <= graph.size(value),
                f"{size} bytes pass {value[:120]!r}, which has {graph.size(value)}",
            )
            require(
                size <= received[value] or not self._fits_beside(value),
                f"{value[:120]!r} can be computed beside {self._name[:120]!r}, but passes more than "
                "it receives",
            )
        return arrived

    def _fits_beside(self, value: str) -> bool:
        """Return whether a value can be produced while the kept value is live."""
        graph, producer = self._graph, self._graph.producers[value]
        is_used = self._name in graph.live_values(producer)
        beside = 0 if is_used else graph.size(self._name)
        needed = graph.bytes_at_step(producer, graph.live_values_of_copy(value))
        return needed + beside <= self._room
