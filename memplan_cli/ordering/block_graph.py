"""Build the `TaskGraph` of a block, with subgraphs reduced to the memory that they need.

`storage_facts` determines once per program which variables share bytes in every order.
`task_graph` numbers the ops and tensors of one block. An op with subgraphs is one op of its
block's graph; `chosen_step_bytes` and `least_step_bytes` return the bytes that its step needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import Aliasing, share_storage
from memplan_cli.analysis.precedence import predecessors, successors
from memplan_cli.core.problem import LiveRange
from memplan_cli.core.program import VarId, blocks
from memplan_cli.ordering.task_graph import TaskGraph

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memplan_cli.core.program import Block, Op, Program
    from memplan_cli.core.symbolic.sizes import Size
    from memplan_cli.ordering.records import PlannedVars
    from memplan_cli.ordering.task_graph import OpIndex, TensorIndex


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """Facts about the planned variables of a program that hold in every order.

    Attributes:
        roots: for each planned variable that is not pinned, the one whose bytes it shows: itself,
            or what it is a view of.
        sizes: sizes as they are, possibly symbolic. Only variables of equal size share in place.
        counted_bytes: bytes to count for each variable, with numbers in place of symbols.
        aliasing: the rules by which variables share bytes.
        pinned_bytes: total bytes of the variables that are live for the whole run.
        results: the program's outputs, which never share bytes.
    """

    roots: Mapping[VarId, VarId]
    sizes: Mapping[VarId, Size]
    counted_bytes: Mapping[VarId, int]
    aliasing: Aliasing
    pinned_bytes: int
    results: Collection[VarId] = ()

    def own_bytes(self, var: VarId) -> int:
        """Return the bytes to count for a variable; 0 if it is a view, pinned or not planned."""
        return self.counted_bytes[var] if self.roots.get(var) == var else 0


@dataclass(frozen=True, slots=True)
class SubgraphMemory:
    """The memory that a subgraph needs.

    Attributes:
        inputs: bytes of its inputs.
        peak: most bytes of its other variables, results included, that are live at one step in
            the order chosen for it.
        results: bytes of its results.
        bound: a lower bound on ``peak`` over all orders of its ops.
    """

    inputs: int
    peak: int
    results: int
    bound: int


def storage_facts(
    program: Program, planned_vars: PlannedVars, counted_bytes: Mapping[VarId, int]
) -> StorageFacts:
    """Return the facts about the storage of a program's planned variables that hold in every order.

    ``counted_bytes`` has the bytes of each planned variable as a number. The sizes in ``planned_vars``, which may
    have symbols, only decide which variables may share bytes. Pinned variables, which have storage of their own
    for the whole run, share none.
    """
    sizes, aliasing = planned_vars.sizes, planned_vars.aliasing
    pinned = frozenset(planned_vars.pinned)
    results = frozenset(var for var in program.body.outputs if var in sizes) - pinned
    # Neither pinned variables nor the program's outputs are treated as views of another variable.
    may_be_views = {
        var: size for var, size in sizes.items() if var not in pinned and var not in results
    }
    # An output may be written over an input in some orders only, so both count. The result of an If's branch and the
    # If's output, which share bytes, both count too: `best_order` measures Ifs again.
    only_views = Aliasing(aliasing.views, in_place={}, branches=())
    # Whether a variable is a view does not depend on live ranges, so all get the same one.
    any_range = dict.fromkeys(may_be_views, LiveRange(0, 1))
    buffer_of = share_storage(program, may_be_views, only_views, any_range)
    return StorageFacts(
        # The id of a buffer is the id of the oldest variable in it, of which the others are views.
        roots={var: VarId(buffer_of.get(var, var)) for var in sizes if var not in pinned},
        sizes=sizes,
        counted_bytes=counted_bytes,
        aliasing=aliasing,  # with the in-place rules, which are applied to each order
        pinned_bytes=sum(counted_bytes[var] for var in pinned if var in counted_bytes),
        results=results,
    )


def task_graph(
    block: Block, facts: StorageFacts, control_flow_bytes: Mapping[OpIndex, int]
) -> TaskGraph:
    """Return a block's ops and tensors as numbers, with the bytes of each tensor and of each op's step.

    The bytes of a step are those that become live when the op runs. Ops are numbered as in the block.

    Args:
        block: The main graph of a program, or a subgraph.
        facts: From `storage_facts`, for the whole program.
        control_flow_bytes: For each op with subgraphs, by index, the bytes of its step, results included.
    """
    numbering = _TensorNumbering(facts)
    initial_bytes = 0
    if not block.path:  # the inputs of a subgraph count in the step of the op around it
        initial_bytes = facts.pinned_bytes + numbering.add_inputs(block.inputs)
    accesses = tuple([numbering.add_op(op) for op in block.ops])
    results = numbering.results(block.outputs)
    size = numbering.tensor_bytes  # of all tensors, now that all ops are added
    is_result = tuple([tensor in results for tensor in range(len(size))])
    access_counts = list(map(int, is_result))  # the caller of the block reads its results too
    for accessed in accesses:
        for tensor in accessed:
            access_counts[tensor] += 1
    step_bytes = [sum([size[t] for t in defined]) for defined in numbering.defines]
    for index, total in control_flow_bytes.items():
        step_bytes[index] = total  # the op's outputs, and what runs inside
    preds = predecessors(block)
    in_place_inputs = tuple([numbering.in_place_inputs(op, results) for op in block.ops])
    return TaskGraph(
        preds=preds,
        succs=successors(preds),
        defines=tuple(numbering.defines),
        accesses=accesses,
        in_place_inputs=in_place_inputs,
        # An op that writes its first output over an input saves the bytes of the output.
        in_place_bytes=tuple(
            facts.counted_bytes[op.outputs[0]] if inputs else 0
            for op, inputs in zip(block.ops, in_place_inputs, strict=True)
        ),
        step_bytes=tuple(step_bytes),
        tensor_bytes=tuple(size),
        access_counts=tuple(access_counts),
        is_result=is_result,
        initial_bytes=initial_bytes,
    )


def tensor_names(block: Block, facts: StorageFacts) -> tuple[VarId, ...]:
    """Return the variable of each tensor of ``task_graph(block, facts, ...)``, by number."""
    inputs = () if block.path else block.inputs
    defined = (*inputs, *(var for op in block.ops for var in op.outputs))
    return tuple(filter(facts.own_bytes, defined))


def chosen_step_bytes(op: Op, facts: StorageFacts, bodies: Sequence[SubgraphMemory]) -> int:
    """Return the bytes that an op's step needs with the chosen orders of its subgraphs; too many for some Ifs.

    In a plan, the branches of an If run one after the other, and the results of each stay live until the op
    ends. For example, branches with peaks of 5 and 4 bytes and results of 3 and 2 bytes, and an output of 3
    bytes, need max(5, 3 + 4, 3 + 2 + 3) bytes. Outer variables that the subgraphs read are not counted here.
    """
    # Only the subgraphs of Loop and Scan declare inputs.
    inputs = sum(body.inputs for body in bodies)
    outputs = sum(map(facts.own_bytes, op.outputs))
    results_so_far, peak_of_bodies = 0, 0
    for body in bodies:
        peak_of_bodies = max(peak_of_bodies, results_so_far + body.peak)
        results_so_far += body.results
    if op.repeats:
        # The outputs of a Loop or Scan grow while its subgraph runs, so they count beside it.
        return inputs + peak_of_bodies + outputs
    # The outputs of an If are written at its last tick, while the results of all branches are live. A result
    # that shares the bytes of an output counts twice here.
    return inputs + max(peak_of_bodies, results_so_far + outputs)


def least_step_bytes(op: Op, facts: StorageFacts, bodies: Sequence[SubgraphMemory]) -> int:
    """Return a lower bound on the bytes that an op's step needs, over all orders of its subgraphs.

    The bytes count on top of all tensors of the outer block that the op and its subgraphs read. ``bodies`` may
    be empty if nothing is known about the subgraphs.
    """
    if not op.repeats:
        # In an If, a tensor that only one branch reads may be dead at the peak of the other branch, and when the
        # outputs are written. So neither a branch nor the outputs count on top of all tensors that are read.
        return 0
    # The subgraph of a Loop or Scan runs while its inputs are live, and while the outputs grow.
    inputs = sum(body.inputs for body in bodies)
    body_bound = max((body.bound for body in bodies), default=0)
    outputs = sum(map(facts.own_bytes, op.outputs))
    return inputs + body_bound + outputs


class _TensorNumbering:
    """Numbers the tensors of a block in the order in which their live ranges begin.

    A tensor is a planned variable with bytes of its own, together with all its views. Views,
    unplanned variables and variables without bytes get no number.

    Attributes:
        tensor_bytes: size of each tensor that is numbered so far.
        defines: for each op that was added, the tensors that it defines.
        _number: the tensor of each variable that has bytes of its own.
    """

    def __init__(self, facts: StorageFacts) -> None:
        self.tensor_bytes: list[int] = []
        self.defines: list[tuple[TensorIndex, ...]] = []
        self._facts = facts
        self._number: dict[VarId, TensorIndex] = {}

    def add_inputs(self, inputs: Sequence[VarId]) -> int:
        """Number the block's inputs, and return their total bytes."""
        tensors = [self._add(var) for var in inputs]
        return sum(self.tensor_bytes[tensor] for tensor in tensors if tensor is not None)

    def add_op(self, op: Op) -> tuple[TensorIndex, ...]:
        """Number the outputs of the next op, and return all tensors that it accesses, ascending.

        The accesses of an op with subgraphs include those of all ops inside. Appends to ``defines``.
        """
        outputs = [self._add(var) for var in op.outputs]
        self.defines.append(tuple([tensor for tensor in outputs if tensor is not None]))
        roots, number = self._facts.roots, self._number
        variables = _nested_vars(op) if op.bodies else op.inputs + op.outputs
        # A view accesses the tensor of its root, the variable whose bytes it shows.
        accessed_roots = {roots.get(var, var) for var in variables}
        # Roots without a number count no bytes in this block.
        return tuple(sorted([number[root] for root in accessed_roots if root in number]))

    def _add(self, var: VarId) -> TensorIndex | None:
        """Number a variable and return the number; None if it has no bytes of its own."""
        own_bytes = self._facts.own_bytes(var)
        if not own_bytes:
            return None
        self._number[var] = len(self.tensor_bytes)
        self.tensor_bytes.append(own_bytes)
        return self._number[var]

    def results(self, outputs: Sequence[VarId]) -> set[TensorIndex]:
        """Return the tensors that hold the block's outputs."""
        roots = {self._facts.roots[var] for var in outputs if var in self._facts.roots}
        return {self._number[root] for root in roots if root in self._number}

    def in_place_inputs(
        self, op: Op, block_results: Collection[TensorIndex]
    ) -> tuple[TensorIndex, ...]:
        """Return the tensors that the op's first output may be written over if they die there.

        Whether a tensor dies at the op depends on the order. All other conditions are those of
        `share_storage`. ``block_results`` has the tensors that hold outputs of the op's block.
        """
        facts = self._facts
        positions = facts.aliasing.in_place_inputs(op)
        if not positions or not op.outputs:
            return ()
        output = op.outputs[0]
        # An output without a number is a view, which writes nothing, or has no bytes. Outputs of the program
        # never share bytes.
        if output not in self._number or output in facts.results:
            return ()
        # The root of an input is the variable whose bytes it shows; `_number` has the tensor of each root.
        input_roots = [facts.roots.get(var, var) for var in op.inputs]
        tensors = []
        for position in positions:
            if position >= len(input_roots):  # an optional input that the op does not have
                continue
            tensor = self._number.get(input_roots[position])
            if tensor is None or tensor in block_results:  # without bytes, or needed later
                continue
            if self._may_overwrite(op, position, positions, input_roots):
                tensors.append(tensor)
        return tuple(dict.fromkeys(tensors))  # a tensor may be at several positions

    def _may_overwrite(
        self,
        op: Op,
        position: int,
        positions: Sequence[int],
        input_roots: Sequence[VarId],
    ) -> bool:
        """Return whether the first output may be written over the input at ``position``, if sizes are equal.

        In ``Add(x, x)`` it may: an element of x is read at both positions before it is overwritten. In
        ``Add(x, v)`` with a view ``v`` of x it may not: ``v`` may have the elements in another order.

        Args:
            op: The op.
            position: The input to write over.
            positions: All inputs that the operator allows to write over.
            input_roots: For each input, the variable whose bytes it shows.
        """
        sizes, inputs = self._facts.sizes, op.inputs
        var, root = inputs[position], input_roots[position]
        if sizes[var] != sizes[op.outputs[0]]:
            return False
        # At a position that does not allow it, the tensor would be read after it is written.
        reads_of_tensor = [index for index, other in enumerate(input_roots) if other == root]
        return all(inputs[index] == var and index in positions for index in reads_of_tensor)


def _nested_vars(op: Op) -> Iterable[VarId]:
    """Return the variables that an op with subgraphs accesses: its own, and those of all ops inside.

    The outputs of the subgraphs are added: such an output may be a variable of the outer block that no op
    inside reads. Their inputs need not be added, as variables of the subgraph alone have no tensor in the
    outer block.
    """
    variables = [*op.inputs, *op.outputs]
    for body in op.bodies:
        for block in blocks(body):  # also those nested in it
            variables += block.outputs
            for inner in block.ops:
                variables += inner.inputs
                variables += inner.outputs
    return variables
