"""The graph that a session ran, read from the record of that run.

The observation of the run (sizes, iteration counts) is attached to the graph if nodes have distinct
names, by which each recorded kernel is assigned to its node.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.light_model import block_paths
from memplan_cli.runtime.graph.dumps import read_dump, with_distinct_names
from memplan_cli.runtime.graph.offline import GENERATED_NUMBER
from memplan_cli.runtime.simulate.observation import OpExecution, observation_of
from memplan_cli.runtime.simulate.planner import default_order
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_observation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.core.program import Op, Program
    from memplan_cli.runtime.run.run_model import RunRecord
    from memplan_cli.runtime.workers.session_profile import Kernel


def graph_of_run(record: RunRecord, dims: Mapping[str, int]) -> ExecutedGraph:
    """Return the graph that was run, with the observation of its first run.

    The graph has no observation if nothing depends on data, or if recorded kernels cannot be assigned to
    nodes, because names of nodes are missing or occur twice.

    Args:
        record: of a run that collected ``kernels`` and ``graph``.
        dims: values of symbolic dims.
    """
    file, session = record.spec.graph, record.spec.session
    assert file is not None  # noqa: S101 - the caller has collected it
    kernels = _kernels_of_first_run(record)
    model = load_model(file)
    # `read_dump` renames values in the same way, so their names in `nodes` and in `graph` are the same.
    nodes = _nodes_by_name(with_distinct_names(model) or model)
    graph = read_dump(file, record.shapes or {}, session, dims)
    if nodes is not None and needs_observation(graph):
        observed = observation_of(graph.program, _executions_by_name(nodes, kernels))
        graph = replace(graph, observed=observed)
    return graph


def _kernels_of_first_run(record: RunRecord) -> Sequence[Kernel]:
    """Return the kernels of the first run of a record, none if none were recorded."""
    return record.kernels[0] if record.kernels else ()


class _DumpNode(NamedTuple):
    """A node of a dump, without optional inputs and outputs that it does not have.

    Attributes:
        path: of its block; empty for the main graph.
        inputs: the names of its inputs. An input may come from any graph around the node, so its id is
            known only in the main graph, where it is the name.
        outputs: the ids of its outputs in a `Program`: ``path/name`` in a subgraph.
    """

    path: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def _nodes_by_name(model: ModelProto) -> dict[str, _DumpNode] | None:
    """Return the nodes of all blocks by name; None if a name is missing or occurs twice."""
    nodes: dict[str, _DumpNode] = {}
    for path, graph in block_paths(model.graph, ""):
        prefix = f"{path}/" if path else ""
        for node in graph.node:
            if not node.name or node.name in nodes:
                return None
            inputs = tuple(name for name in node.input if name)
            # A node defines its outputs in its own block, whose path is a part of their ids.
            output_ids = tuple(prefix + name for name in node.output if name)
            nodes[node.name] = _DumpNode(path, inputs, output_ids)
    return nodes


def _executions_by_name(
    nodes: Mapping[str, _DumpNode], kernels: Sequence[Kernel]
) -> Iterator[OpExecution]:
    """Yield the executions of a run, each kernel assigned by the name of its node.

    Names with a generated number are ambiguous: ``layout_token_1`` of the dump may be ``layout_token_2`` of the
    session that ran, because ONNX Runtime changes the layout of filters in another order in each session. What
    such a node wrote is taken from what the other nodes of the main graph have read of it. If they read nothing,
    it is what the kernel of that name wrote.

    What such a node read is taken from the kernel of that name: it only shows whether weights were packed, which
    is the same for all nodes whose names differ in the number alone.
    """
    known_tensors: dict[str, Any] = {}  # type and dims of values of the main graph, by name
    for kernel in kernels:
        node = nodes.get(kernel.node)
        if node is None or node.path or _is_ambiguous(kernel):
            continue
        for values, tensors in ((node.inputs, kernel.read), (node.outputs, kernel.wrote)):
            if len(values) == len(tensors):
                known_tensors |= zip(values, tensors, strict=True)
    for kernel in kernels:
        node = nodes.get(kernel.node)
        if node is None:
            continue
        wrote = kernel.wrote
        if _is_ambiguous(kernel) and all(value in known_tensors for value in node.outputs):
            wrote = [known_tensors[value] for value in node.outputs]
        yield OpExecution(node.outputs, kernel.read, wrote)


def _is_ambiguous(kernel: Kernel) -> bool:
    """Return whether the name of a kernel's node has a number that differs between sessions."""
    return GENERATED_NUMBER.search(kernel.node) is not None


def with_recorded_order(graph: ExecutedGraph, record: RunRecord) -> ExecutedGraph | None:
    """Return a graph with its main ops in the order in which a run executed them.

    Node indices of an optimized graph are not in its dump, so an order by priority, which goes
    by them, has to be recorded. None if names do not identify all nodes.
    """
    body = graph.program.body
    ops = {op.name: op for op in body.ops}
    by_start = sorted(_kernels_of_first_run(record), key=attrgetter("start"))
    names = [kernel.node for kernel in by_start if kernel.node in ops]
    if len(names) != len(body.ops) or len(set(names)) != len(names):
        return None
    ordered = replace(body, ops=tuple(ops[name] for name in names))
    return replace(graph, program=replace(graph.program, body=ordered))


def with_file_order(
    graph: ExecutedGraph, file_nodes: Sequence[str], written: Program
) -> ExecutedGraph:
    """Return the predicted optimized graph of a file with the same nodes in another order.

    ONNX Runtime orders nodes by their indices: nodes of the file have their places in the file, and nodes
    that optimization adds have higher ones, which are unknown. They are assumed to ascend in the order of
    ``graph``. The graph is returned unchanged if its nodes have no distinct names, if the order in which they
    run is unknown, or if the assumption leads to another order of its own nodes.

    Args:
        graph: the optimized graph of the original file.
        file_nodes: names of the original file's nodes, in its order.
        written: the same nodes in the other order.
    """
    ops = graph.program.body.ops
    has_distinct_names = len({op.name for op in ops if op.name}) == len(ops)
    if not graph.in_run_order or not has_distinct_names:
        return graph
    if _default_order_of_file(graph.program, file_nodes) != ops:
        return graph
    order = _default_order_of_file(graph.program, [op.name for op in written.body.ops])
    return replace(graph, program=graph.program.with_ops(order))


def _default_order_of_file(program: Program, file_nodes: Sequence[str]) -> tuple[Op, ...]:
    """Return a dump's ops in ``ExecutionOrder.DEFAULT`` if the file has these nodes in order."""
    index = {name: place for place, name in enumerate(file_nodes)}
    body = program.body
    ops = sorted(body.ops, key=lambda op: index.get(op.name, len(index)))
    return default_order(Block(body.inputs, body.outputs, tuple(ops)))
