"""The graph that a session ran, read from the record of that run.

The observation of the run (sizes, iteration counts) is attached to the graph if nodes have distinct
names, by which each recorded kernel is assigned to its node.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

from memplan_cli.core.program import Block
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import block_paths
from memplan_cli.runtime.graph.dumps import read_dump, with_distinct_names
from memplan_cli.runtime.simulate.observation import executions_of, observation_of
from memplan_cli.runtime.simulate.planner import default_order
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_observation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto

    from memplan_cli.core.program import Op, Program
    from memplan_cli.runtime.run.run_model import RunRecord
    from memplan_cli.runtime.workers.session_profile import Kernel


def graph_of_run(record: RunRecord, dims: Mapping[str, int]) -> ExecutedGraph:
    """Return the graph that was run, with the sizes and iteration counts that its first run had (`RunObservation`).

    The graph has none (``observed`` is None) if no size or iteration count depends on data, or if recorded kernels
    cannot be assigned to nodes, because names of nodes are missing or occur twice.

    Args:
        record: of a run that collected ``kernels`` and ``graph``.
        dims: values of symbolic dims.
    """
    file, session = record.spec.graph, record.spec.session
    assert file is not None  # noqa: S101 - the caller has collected it
    graph = read_dump(file, record.shapes or {}, session, dims)
    # `read_dump` renames values in the same way, so they have the same names here.
    outputs = _outputs_by_node(with_distinct_names(load_model(file)))
    if outputs is None or not needs_observation(graph):
        return graph
    executions = executions_of(_kernels_of_first_run(record), outputs)
    return replace(graph, observed=observation_of(graph.program, executions))


def _kernels_of_first_run(record: RunRecord) -> Sequence[Kernel]:
    """Return the kernels of the first run of a record, none if none were recorded."""
    return record.kernels[0] if record.kernels else ()


def _outputs_by_node(model: ModelProto) -> dict[str, tuple[str, ...]] | None:
    """Return the ids of the outputs of each node of all blocks; None if a node has no name of its own.

    An id is that of a `Program`: ``path/name`` in a subgraph, the name in the main graph.
    """
    outputs: dict[str, tuple[str, ...]] = {}
    for path, graph in block_paths(model.graph):
        prefix = f"{path}/" if path else ""
        for node in graph.node:
            if not node.name or node.name in outputs:
                return None
            outputs[node.name] = tuple(prefix + name for name in node.output if name)
    return outputs


def with_recorded_order(graph: ExecutedGraph, record: RunRecord) -> ExecutedGraph | None:
    """Return a graph with its main ops in the order in which a run executed them.

    The execution order ``PRIORITY_BASED`` depends on node indices. A dump of an optimized graph does not have them,
    so this order is read from a run. None if names do not identify all nodes.
    """
    main_ops = graph.program.body.ops
    ops = {op.name: op for op in main_ops}
    by_start = sorted(_kernels_of_first_run(record), key=attrgetter("start"))
    names = [kernel.node for kernel in by_start if kernel.node in ops]
    if len(names) != len(main_ops) or len(set(names)) != len(names):
        return None
    return replace(graph, program=graph.program.with_ops(ops[name] for name in names))


def with_file_order(
    graph: ExecutedGraph, file_nodes: Sequence[str], written: Program
) -> ExecutedGraph:
    """Return the predicted optimized graph of a written file, which has the original's nodes in another order.

    ONNX Runtime orders nodes by index. A node of the file has its place in the file as index. Nodes that
    optimization adds have higher indices, which are unknown: these are assumed to ascend in the order of
    ``graph``. Where the order cannot be predicted so, the graph is returned unchanged.

    Args:
        graph: the optimized graph of the original file.
        file_nodes: names of the original file's nodes, in its order.
        written: the program of the written file.
    """
    ops = graph.program.body.ops
    has_distinct_names = len({op.name for op in ops if op.name}) == len(ops)
    if not graph.in_run_order or not has_distinct_names:
        return graph
    # A test of the assumption: it must lead from the original file to the known order of the ops.
    if _default_order_of_file(graph.program, file_nodes) != ops:
        return graph
    written_nodes = [op.name for op in written.body.ops]
    order = _default_order_of_file(graph.program, written_nodes)
    return replace(graph, program=graph.program.with_ops(order))


def _default_order_of_file(program: Program, file_nodes: Sequence[str]) -> tuple[Op, ...]:
    """Return a dump's ops in ``ExecutionOrder.DEFAULT`` if the file has these nodes in order."""
    index = {name: place for place, name in enumerate(file_nodes)}
    body = program.body
    ops = sorted(body.ops, key=lambda op: index.get(op.name, len(index)))
    return default_order(Block(body.inputs, body.outputs, tuple(ops)))
