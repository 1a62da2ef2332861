"""The graph that a session ran, read from the record of that run.

The observation of the run (sizes, iteration counts) is attached to the graph if each recorded kernel
can be assigned to its node: by the node's name, or by the order of the kernels if nodes have no
distinct names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.core.program import Block, blocks, walk
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.shapes.light_model import block_paths
from memplan_cli.runtime.graph.dumps import read_dump, with_distinct_names
from memplan_cli.runtime.graph.offline import GENERATED_NUMBER
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.simulate.observation import OpExecution, observation_of
from memplan_cli.runtime.simulate.planner import default_order
from memplan_cli.runtime.simulate.predict import ExecutedGraph, needs_run

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.program import Op, Program
    from memplan_cli.runtime.run.run_model import RunRecord, RuntimeShapes
    from memplan_cli.runtime.workers.session_profile import Kernel

_DEFAULT = "DEFAULT"
"""The execution order in which the kernels of a dump can be assigned without names."""


def graph_of_run(record: RunRecord, dims: Mapping[str, int]) -> ExecutedGraph:
    """Return the graph that was run, with the observation of its first run.

    ``observed`` is None if nothing depends on data, or if the kernels cannot be assigned to
    nodes. In the second case nothing can be predicted from the graph.

    Args:
        record: of a run that collected ``kernels`` and ``graph``.
        dims: values of symbolic dims.
    """
    file, session = record.spec.graph, record.spec.session
    assert file is not None  # noqa: S101 - the caller has collected it
    kernels = (record.kernels or ((),))[0]
    model = load_model(file)
    model = with_distinct_names(model) or model
    nodes = _nodes_by_name(model)
    shapes = record.shapes or _shapes_of_run(nodes or {}, kernels)
    graph = read_dump(file, shapes, session, dims)
    if not needs_run(graph):
        return graph
    executions: Iterable[OpExecution] | None = None
    if nodes is not None:
        executions = _executions_by_name(nodes, kernels)
    elif session.settings.session.get("execution_order", _DEFAULT) == _DEFAULT:
        executions = executions_by_order(graph, kernels)
    if executions is None:
        return graph
    return replace(graph, observed=observation_of(graph.program, executions))


class _DumpNode(NamedTuple):
    """The path of a node's block, and the full names of its inputs and outputs."""

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
            inputs = tuple(prefix + name for name in node.input if name)
            outputs = tuple(prefix + name for name in node.output if name)
            nodes[node.name] = _DumpNode(path, inputs, outputs)
    return nodes


def _executions_by_name(
    nodes: Mapping[str, _DumpNode], kernels: Sequence[Kernel]
) -> Iterator[OpExecution]:
    """Yield the executions of a run, each kernel assigned by the name of its node.

    Names with a generated number need care. ONNX Runtime changes the layout of filters in
    another order in each session, so ``layout_token_1`` of the dump may be ``layout_token_2`` of
    the session that ran. What such a node wrote is taken from the nodes with unambiguous names
    that read it.
    """
    known_tensors: dict[str, Any] = {}  # type and dims by value of the main graph
    for kernel in kernels:
        node = nodes.get(kernel.node)
        if node is None or node.path or GENERATED_NUMBER.search(kernel.node):
            continue
        for values, tensors in ((node.inputs, kernel.read), (node.outputs, kernel.wrote)):
            if len(values) == len(tensors):
                known_tensors |= zip(values, tensors, strict=True)
    for kernel in kernels:
        if node := nodes.get(kernel.node):
            known = [known_tensors[value] for value in node.outputs if value in known_tensors]
            is_known = len(known) == len(node.outputs)
            uses_known = is_known and GENERATED_NUMBER.search(kernel.node)
            wrote = known if uses_known else kernel.wrote
            yield OpExecution(node.outputs, kernel.read, wrote)


def _shapes_of_run(nodes: Mapping[str, _DumpNode], kernels: Sequence[Kernel]) -> RuntimeShapes:
    """Return the shapes of the main graph's values in a run, by name."""
    main_nodes = {name: node for name, node in nodes.items() if not node.path}
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    for execution in _executions_by_name(main_nodes, kernels):
        if len(execution.outputs) == len(execution.wrote):
            for value, (type_name, dims) in zip(
                execution.outputs, execution.wrote, strict=True
            ):
                shapes[value] = dtype_of(type_name), tuple(dims)
    return shapes


@dataclass(frozen=True, slots=True)
class _NestedKernel:
    """A kernel and, for a control-flow node, the kernels of its subgraphs in the order of their ends."""

    kernel: Kernel
    inner: Sequence[_NestedKernel] = ()


_Orders = Mapping[str, Sequence[Sequence["Op"]]]
"""The orders in which each block may have run, by its path; the order of the dump is first."""


def executions_by_order(
    graph: ExecutedGraph, kernels: Sequence[Kernel]
) -> list[OpExecution] | None:
    """Return the executions of a run in the default order, assigned by the order of the kernels.

    The dump has a block that was optimised in execution order, and any other block as it was
    read; both orders are tried.

    Args:
        graph: the graph that ran.
        kernels: of one run, in the order in which they ended: the kernels of a subgraph come just before
            the kernel of its control-flow node, and began after it.

    Returns:
        None if no assignment fits, or if several fit that differ in sizes.
    """
    main = graph.program.body
    orders = {block.path: [block.ops, default_order(block)] for block in blocks(main)}
    if graph.in_run_order:  # then it is known that the main graph was optimised
        orders[main.path] = [main.ops]
    control_flow = {op.name or op.type for _, op in walk(main) if op.bodies}
    nested: list[_NestedKernel] = []  # kernels that no control-flow node has taken up so far
    for kernel in kernels:
        first_inner = len(nested)
        if kernel.node in control_flow or _operator(kernel.node) in control_flow:
            while first_inner and nested[first_inner - 1].kernel.start >= kernel.start:
                first_inner -= 1
        # The kernels from `first_inner` on move into this one; none, if it is no control-flow node.
        nested[first_inner:] = [_NestedKernel(kernel, nested[first_inner:])]
    return _executions_of_frame(main, nested, orders)


def _executions_of_frame(
    block: Block, kernels: Sequence[_NestedKernel], orders: _Orders
) -> list[OpExecution] | None:
    """Assign the kernels of one execution of a block to its ops, in any order in which it may have run.

    None if no order fits, or if two orders fit in which an op read or wrote other sizes.
    """
    dump_order, *other_orders = orders[block.path]
    candidates = [dump_order, *(order for order in other_orders if order != dump_order)]
    assignments = [_executions_in_order(order, kernels, orders) for order in candidates]
    fits = [executions for executions in assignments if executions is not None]
    if not fits:
        return None
    first = _executions_by_outputs(fits[0])
    is_unambiguous = all(
        _executions_by_outputs(executions) == first for executions in fits[1:]
    )
    return fits[0] if is_unambiguous else None


def _executions_by_outputs(
    executions: Sequence[OpExecution],
) -> dict[tuple[str, ...], list[OpExecution]]:
    """Return the executions of each node, in their order."""
    grouped: dict[tuple[str, ...], list[OpExecution]] = {}
    for execution in executions:
        grouped.setdefault(execution.outputs, []).append(execution)
    return grouped


def _executions_in_order(
    order: Sequence[Op], kernels: Sequence[_NestedKernel], orders: _Orders
) -> list[OpExecution] | None:
    """Assign the kernels of one execution of a block to its ops, which ran in ``order``.

    Returns:
        The executions, those of subgraphs included; None if the number of kernels, a name, an
        operator or a subgraph does not fit.
    """
    if len(kernels) != len(order):
        return None
    executions: list[OpExecution] = []
    for op, nested in zip(order, kernels, strict=True):
        kernel = nested.kernel
        is_same_name = kernel.node == op.name
        is_same_operator = not op.name and _operator(kernel.node) == op.type
        if not is_same_name and not is_same_operator:
            return None
        if nested.inner:
            assignments = [
                _executions_of_frames(body, nested.inner, orders) for body in op.bodies
            ]
            fits = [assignment for assignment in assignments if assignment is not None]
            if len(fits) != 1:  # no body fits, or it is not known which branch of an If ran
                return None
            executions += fits[0]
        outputs = tuple(filter(None, op.outputs))
        executions.append(OpExecution(outputs, kernel.read, kernel.wrote))
    return executions


def _executions_of_frames(
    body: Block, kernels: Sequence[_NestedKernel], orders: _Orders
) -> list[OpExecution] | None:
    """Return the executions of a subgraph that ran as often as its ops fit into the kernels."""
    executions: list[OpExecution] = []
    op_count = max(len(body.ops), 1)  # kernels fit into no body without ops
    for start in range(0, len(kernels), op_count):
        frame = _executions_of_frame(body, kernels[start : start + op_count], orders)
        if frame is None:
            return None
        executions += frame
    return executions


def _operator(kernel_name: str) -> str:
    """Return the operator in the name ``<operator>_<number>`` of a kernel without a node name."""
    return kernel_name.rpartition("_")[0]


def with_recorded_order(graph: ExecutedGraph, record: RunRecord) -> ExecutedGraph | None:
    """Return a graph with its main ops in the order in which a run executed them.

    Node indices of an optimised graph are not in its dump, so an order by priority, which goes
    by them, has to be recorded. None if names do not identify all nodes.
    """
    body = graph.program.body
    ops = {op.name: op for op in body.ops}
    kernels: Sequence[Kernel] = (record.kernels or ((),))[0]
    by_start = sorted(kernels, key=attrgetter("start"))
    names = [kernel.node for kernel in by_start if kernel.node in ops]
    if len(names) != len(body.ops) or len(set(names)) != len(names):
        return None
    ordered = replace(body, ops=tuple(ops[name] for name in names))
    return replace(graph, program=replace(graph.program, body=ordered))


def with_file_order(
    graph: ExecutedGraph, file_nodes: Sequence[str], written: Program
) -> ExecutedGraph:
    """Return the predicted optimised graph of a file with the same nodes in another order.

    Nodes that optimisation adds get indices above all others, in an unknown order; the order of the
    dump is assumed. The graph is returned unchanged if names do not identify its nodes, or if its own
    order does not follow from this assumption.

    Args:
        graph: the optimised graph of the original file.
        file_nodes: names of the original file's nodes, in its order.
        written: the same nodes in the other order.
    """
    ops = graph.program.body.ops
    has_names = len({op.name for op in ops if op.name}) == len(ops)
    if not graph.in_run_order or not has_names:
        return graph
    if _default_order_of_file(graph.program, file_nodes) != ops:
        return graph
    order = _default_order_of_file(graph.program, [op.name for op in written.body.ops])
    if len(order) != len(ops):
        return graph
    return replace(graph, program=graph.program.with_ops(order))


def _default_order_of_file(program: Program, file_nodes: Sequence[str]) -> tuple[Op, ...]:
    """Return a dump's ops in ``ExecutionOrder.DEFAULT`` if the file has these nodes in order."""
    index = {name: place for place, name in enumerate(file_nodes)}
    body = program.body
    ops = sorted(body.ops, key=lambda op: index.get(op.name, len(index)))
    return default_order(Block(body.inputs, body.outputs, tuple(ops)))
