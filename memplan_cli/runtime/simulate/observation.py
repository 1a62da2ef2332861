"""Data-dependent facts of one run: branches, iteration counts, sizes, packed weights.

Each op of a block is executed once in every frame (execution) of that block, so the n-th execution
of an op belongs to the n-th frame of its block, whatever the order of the ops within a frame.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import xor
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin, VarId, walk
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.simulate.trace import bytes_of, is_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Op, Program
    from memplan_cli.runtime.workers.session_profile import Kernel, TensorTypes


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor that an op wrote.

    Attributes:
        bytes: its size.
        key: the exclusive or of its dims. The runtime finds the memory pattern of a run by the
            exclusive or of the dims of all feeds.
    """

    bytes: int
    key: int


@dataclass(frozen=True, slots=True)
class RunObservation:
    """The sizes, iteration counts and packed weights of one run, which depend on its inputs.

    Attributes:
        written: for each variable, the tensor written in each frame of its block, in order.
        iterations: for each subgraph, by path, how often it ran in each execution of its
            control-flow op.
        packed: weights that were freed before the run, because all kernels that read them had packed copies.
    """

    written: Mapping[VarId, tuple[WrittenTensor, ...]] = field(default_factory=dict)
    iterations: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    packed: frozenset[VarId] = frozenset()


@dataclass(frozen=True, slots=True)
class OpExecution:
    """A kernel of a run that was assigned to the op that it executed.

    Attributes:
        outputs: ids of the outputs that the op has; those that it leaves out are not listed.
        read: the tensors that it read.
        wrote: the tensors that it wrote.
    """

    outputs: tuple[str, ...]
    read: TensorTypes
    wrote: TensorTypes


def executions_of(
    kernels: Iterable[Kernel], outputs_of_node: Mapping[str, tuple[str, ...]]
) -> Iterator[OpExecution]:
    """Yield the kernels of a run, each with the outputs of its node; those of other nodes are left out."""
    for kernel in kernels:
        outputs = outputs_of_node.get(kernel.node)
        if outputs is not None:
            yield OpExecution(outputs, kernel.read, kernel.wrote)


def observation_of(program: Program, executions: Iterable[OpExecution]) -> RunObservation:
    """Return the sizes, iteration counts and packed weights that one run of a program shows.

    Args:
        program: the program that ran.
        executions: in the order in which they ended, so those of a subgraph come before the one
            of their control-flow op. Executions of unknown ops are ignored.
    """
    producer = {var: op for _, op in walk(program.body) for var in op.outputs if var}
    ran: list[tuple[Op, OpExecution]] = []
    for execution in executions:
        op = producer.get(VarId(execution.outputs[0])) if execution.outputs else None
        if op is not None:
            ran.append((op, execution))
    packed = {
        weight for op, execution in ran for weight in _packed_weights(program, op, execution)
    }
    return RunObservation(
        _written_tensors(program, ran), _iteration_counts(program, ran), frozenset(packed)
    )


def _iteration_counts(
    program: Program, ran: Iterable[tuple[Op, OpExecution]]
) -> dict[str, tuple[int, ...]]:
    """Return how often each body ran in each execution of its control-flow op, by the path of the body.

    A body has run as often as one of its ops, the counted one; 0 times if that has no execution.
    """
    counted_body = _bodies_by_counted_op(program)
    # Runs of each body since the last execution of its control-flow op.
    new_runs: Counter[str] = Counter()
    iterations: dict[str, list[int]] = defaultdict(list)
    for op, execution in ran:
        first_output = VarId(execution.outputs[0])
        if first_output in counted_body:
            new_runs[counted_body[first_output]] += 1
        for body in op.bodies:
            iterations[body.path].append(new_runs.pop(body.path, 0))
    return {path: tuple(counts) for path, counts in iterations.items()}


def _bodies_by_counted_op(program: Program) -> dict[VarId, str]:
    """Return the path of each body, by the first output of one of its ops.

    The executions of that op are counted: a body ran as often as each of its ops.
    """
    paths: dict[VarId, str] = {}
    for _, parent in walk(program.body):
        for body in parent.bodies:
            outputs = [var for op in body.ops for var in op.outputs if var]
            if outputs:
                paths[outputs[0]] = body.path
    return paths


def _written_tensors(
    program: Program, ran: Iterable[tuple[Op, OpExecution]]
) -> dict[VarId, tuple[WrittenTensor, ...]]:
    """Return the tensors that executions wrote into each variable, in order. Sequences and optionals are left out.

    A tensor has its bytes and a key: the exclusive or of its dims, by which the runtime finds memory patterns. An
    execution is left out if the profile lists more or fewer tensors than outputs: which is which is not known.
    """
    written: dict[VarId, list[WrittenTensor]] = defaultdict(list)
    for op, execution in ran:
        outputs = [var for var in op.outputs if var and is_tensor(program.vars[var])]
        if len(outputs) != len(execution.wrote):
            continue
        for var, (type_name, dims) in zip(outputs, execution.wrote, strict=True):
            size = bytes_of(dtype_of(type_name), tuple(dims), {})
            if size is not None:
                written[var].append(WrittenTensor(size, key=reduce(xor, dims, 0)))
    return {var: tuple(tensors) for var, tensors in written.items()}


def _packed_weights(program: Program, op: Op, execution: OpExecution) -> Iterator[VarId]:
    """Yield the weights among an op's inputs that were freed when the session was created.

    A weight is freed when all kernels that read it have packed copies, so every execution of its readers lacks it.
    ``execution.read`` lists the shapes of the inputs that exist, in order. An input that is no weight is always
    listed; a weight is listed if the next shape in the list is its own. Ops with subgraphs are not examined.
    """
    listed = [tuple(dims) for _, dims in execution.read]
    inputs = [var for var in op.inputs if var and is_tensor(program.vars[var])]
    if op.bodies or len(inputs) <= len(listed):
        return
    for var in inputs:
        is_weight = program.vars[var].origin is Origin.WEIGHT
        if not is_weight or (listed and listed[0] == program.vars[var].shape):
            listed = listed[1:]  # the entry of this input
        else:
            yield var
