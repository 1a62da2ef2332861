"""Trained parameters and their final gradients, recognized by the structure of the graph.

Let ``f(a, P)`` be an op of the forward part with a parameter ``P``. A graph output is taken for
the gradient of ``P``, or for the updated ``P``, if

1. it has the dtype and shape of ``P``,
2. it depends on ``a``, the other operand of ``f``, outside of the forward part, and
3. it depends on a value between ``f`` and the loss, outside of the forward part.

    a ---+
         +--> f --> h --> loss
    P ---+          |
    a, h ---------> g (shape of P) --> new P

A second head of an inference network has at most two of these properties.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal

from memplan_cli.core.operators import Family, operator
from memplan_cli.core.program import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memplan_cli.core.program import Dataflow, Op, Program, Shape, Var, VarId

OPTIMIZERS = frozenset(
    {
        "Adagrad", "Adam", "AdamOptimizer", "AdamWOptimizer", "InPlaceAccumulator",
        "InPlaceAccumulatorV2", "LambOptimizer", "Momentum", "SGDOptimizer",
        "SGDOptimizerV2",
    }
)  # fmt: skip
"""Operators of a whole optimizer step (ai.onnx.preview.training, onnxruntime-training)."""

Certainty = Literal["known", "guessed"]
"""Whether the loss was named as such (``known``), or is just some scalar output (``guessed``)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters and their final gradients; both are empty for an inference graph."""

    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()


def find_trained(program: Program, forward: Collection[int], loss: Certainty) -> Trained:
    """Return the parameters that a graph trains, and their final gradients.

    The final gradient is the value that the parameter's update reads: the last one before a
    graph input or initializer of the parameter's shape (the parameter, a momentum) is combined
    with it, without scalar factors such as the learning rate. If the graph has no update, the
    final gradient is a graph output.

    Only the main graph is considered. ``forward`` has the indices of the ops that the loss depends
    on. A guessed loss needs stronger evidence than a named one.
    """
    evidence = _Evidence(program, forward)
    updates = _Updates(evidence)
    # The weaker evidence of an update counts only if the loss was named.
    if not evidence.proves_gradients() and (
        loss == "guessed" or not evidence.suggests_updates(updates.sources)
    ):
        return Trained()
    parameters: dict[VarId, None] = {}
    gradients: dict[VarId, None] = {}
    for index, output in enumerate(evidence.outputs):
        candidates = evidence.parameters_like(output)
        sources = updates.sources.get(output, frozenset())
        updated = [var for var in candidates if var in sources]
        if updated:  # the output is the new value of these parameters
            final_gradients = updates.gradients(output)
            gradients.update(dict.fromkeys(final_gradients))
            parameters.update(dict.fromkeys(updated if final_gradients else ()))
        # An output with other sources than these parameters is a new momentum or the like.
        elif not sources:  # the output may itself be a gradient
            fitting = [var for var in candidates if evidence.is_dependent(var, index)]
            if fitting:
                gradients[output] = None
                parameters.update(dict.fromkeys(fitting))
    order = {var: place for place, var in enumerate(program.vars)}
    return Trained(tuple(sorted(parameters, key=order.__getitem__)), tuple(gradients))


class _Evidence:
    """The candidate parameters of a graph, and the outputs that depend on their op's values.

    Attributes:
        program, forward: the model, and the indices of the ops of its forward part.
        outputs: the float graph outputs that are not computed by the forward part. Sets of them are
            bit masks: bit i stands for ``outputs[i]``.
        dataflow: producers and consumers of the main graph.
        candidates: the vars that may be parameters.
    """

    def __init__(self, program: Program, forward: Collection[int]) -> None:
        """Find the candidate parameters, and which outputs depend on the values of their ops.

        The op of a candidate ``P`` is an op ``f(a, P)`` of the forward part, see the module.

        ``forward`` has the indices of the ops of the forward part in the main graph.
        """
        self.program, self.forward = program, forward
        self.dataflow = dataflow = program.dataflow
        self.outputs = tuple(
            var
            for var in dict.fromkeys(program.body.outputs)
            if var in dataflow.producer
            and dataflow.producer[var] not in forward
            and is_float(program.vars[var])
        )
        self._root = _roots(dataflow)
        """Result of a reshape, cast and the like -> the var that it was computed from."""
        self._on_results: dict[VarId, int] = {}
        """Candidate parameter -> mask of outputs that depend on a value between its op and the loss."""
        self._on_operands: dict[VarId, int] = {}
        """Candidate parameter -> mask of outputs that depend on another operand of its op."""
        # The candidates are the keys of both tables, which `_find_candidates` fills.
        self.candidates: Collection[VarId] = self._on_results
        self._by_type: dict[tuple[str, Shape | None], list[VarId]] = {}
        """Dtype and shape -> candidates."""
        if self.outputs:
            self._find_candidates()

    def proves_gradients(self) -> bool:
        """Return whether some output can only be a gradient or an updated parameter.

        That is: it has all three properties for a parameter of more than one element. Both tables
        hold bit masks, in which bit ``index`` stands for ``self.outputs[index]``.
        """
        return any(
            (self._on_results[var] & self._on_operands[var]) >> index & 1
            for index, output in enumerate(self.outputs)
            for var in self.parameters_like(output)
            if elements(self.program.vars[var]) != 1
        )

    def suggests_updates(self, sources: Mapping[VarId, Collection[VarId]]) -> bool:
        """Return whether some output is a candidate combined with an operand of its op.

        If the loss is linear, no other trace of training is left: the gradients depend on no
        value that the forward part computes.
        """
        return any(
            var in sources.get(output, ()) and self._on_operands[var] >> index & 1
            for index, output in enumerate(self.outputs)
            for var in self.parameters_like(output)
        )

    def parameters_like(self, output: VarId) -> tuple[VarId, ...]:
        """Return the candidate parameters with the dtype and shape of an output."""
        var = self.program.vars[output]
        return tuple(self._by_type.get((var.dtype, var.shape), ()))

    def is_dependent(self, parameter: VarId, output_index: int) -> bool:
        """Return whether an output depends on anything that a gradient of the parameter may.

        ``output_index`` is the index of the output in ``self.outputs``.
        """
        dependent_outputs = self._on_results[parameter] | self._on_operands[parameter]
        return bool(dependent_outputs >> output_index & 1)

    def _find_candidates(self) -> None:
        """Fill the tables of candidates from each op ``f(a, P)`` of the forward part.

        ``P`` is any operand that may be a parameter, ``a`` any other operand. Ops that only reshape
        or cast are not such ops: their results count as their input.
        """
        dataflow = self.dataflow
        outputs_of_var = self._outputs_by_var()
        outputs_of_op = self._outputs_by_op(outputs_of_var)
        varying = _varying(dataflow, self.program.body.inputs)
        for index in sorted(self.forward):
            if _is_value_preserving(dataflow.ops[index]):
                continue
            operands = {self._root.get(var, var) for var in dataflow.reads[index]}
            for var in filter(self._may_be_parameter, operands):
                on_operands = 0
                for other in operands - {var}:
                    if other in varying:  # a constant operand says nothing about training
                        on_operands |= outputs_of_var.get(other, 0)
                self._on_results[var] = self._on_results.get(var, 0) | outputs_of_op[index]
                self._on_operands[var] = self._on_operands.get(var, 0) | on_operands
        for parameter in self._on_results:
            var_record = self.program.vars[parameter]
            dtype_and_shape = var_record.dtype, var_record.shape
            self._by_type.setdefault(dtype_and_shape, []).append(parameter)

    def _may_be_parameter(self, name: VarId) -> bool:
        """Return whether a var is a float graph input, or a float initializer of several elements.

        A scalar initializer is a constant; a scalar input may be learned.
        """
        var = self.program.vars[name]
        if not is_float(var) or var.shape is None:
            return False
        return var.origin is Origin.INPUT or (
            var.origin is Origin.WEIGHT and elements(var) != 1
        )

    def _outputs_by_var(self) -> dict[VarId, int]:
        """Return, per var, the outputs that depend on it through ops outside the forward part.

        They are a bit mask of ``self.outputs``. Vars that only reshape or cast another one count as
        that one.
        """
        dataflow = self.dataflow
        bit = {var: 1 << index for index, var in enumerate(self.outputs)}
        outputs_of_op = [0] * len(dataflow.ops)
        outputs_of_var: dict[VarId, int] = {}
        for index in range(len(dataflow.ops) - 1, -1, -1):
            if index in self.forward:
                continue
            mask = 0
            for var in dataflow.ops[index].outputs:
                mask |= bit.get(var, 0)
                for consumer in dataflow.consumers.get(var, ()):
                    mask |= outputs_of_op[consumer]
            outputs_of_op[index] = mask
            for var in dataflow.reads[index]:
                root = self._root.get(var, var)
                outputs_of_var[root] = outputs_of_var.get(root, 0) | mask
        return outputs_of_var

    def _outputs_by_op(self, outputs_of_var: Mapping[VarId, int]) -> dict[int, int]:
        """Return, per forward op, the outputs that depend on its results or on later ones.

        They are a bit mask of ``self.outputs``. ``outputs_of_var`` is the result of
        `_outputs_by_var`, which counts a reshaped or cast var as the var that it was computed from.
        """
        outputs_of_op: dict[int, int] = {}
        for index in sorted(self.forward, reverse=True):
            mask = 0
            for var in self.dataflow.ops[index].outputs:
                if var not in self._root:
                    mask |= outputs_of_var.get(var, 0)
                for consumer in self.dataflow.consumers.get(var, ()):
                    mask |= outputs_of_op.get(consumer, 0)
            outputs_of_op[index] = mask
        return outputs_of_op


class _Updates:
    """How optimizer ops combine stored tensors (parameters, momenta) with gradients.

    Attributes:
        sources: per var outside the forward part, the graph inputs and initializers that were
            combined into it by elementwise ops of its shape, or by a whole optimizer op.
        _beyond_forward: the indices of the ops outside the forward part.
    """

    def __init__(self, evidence: _Evidence) -> None:
        """Find the sources of all vars, by following stored tensors through the ops of updates.

        Args:
            evidence: The model and its forward part. Its ``candidates``, the vars that may be
                parameters, count as stored tensors even if they are scalars; other scalars, such
                as a learning rate, do not.
        """
        self._vars, self._dataflow = evidence.program.vars, evidence.dataflow
        all_ops = frozenset(range(len(self._dataflow.ops)))
        self._beyond_forward = all_ops.difference(evidence.forward)
        self.sources: dict[VarId, frozenset[VarId]] = {}
        for index, op in enumerate(self._dataflow.ops):
            if index in self._beyond_forward and _may_update(op):
                self._propagate(op, evidence.candidates)

    def gradients(self, output: VarId) -> tuple[VarId, ...]:
        """Return the final gradients from which an updated parameter is computed.

        Starting at the graph output, vars with stored tensors among their sources are followed
        backwards. Their other operands that ops compute are gradients, perhaps times scalars such as a
        learning rate, which are stripped.
        """
        final_gradients: dict[VarId, None] = {}
        stack, seen = [output], {output}
        while stack:
            var = stack.pop()
            for operand in self._operands(
                self._dataflow.ops[self._dataflow.producer[var]], var
            ):
                if operand in self.sources and operand not in seen:
                    seen.add(operand)
                    stack.append(operand)
                elif operand not in self.sources and self._is_computed(operand):
                    final_gradients[self._without_factors(operand)] = None
        return tuple(final_gradients)

    def _propagate(self, op: Op, candidates: Collection[VarId]) -> None:
        """Set the sources of an op's outputs: those of its operands, and operands that are stored.

        A stored scalar counts only if it is a candidate: others are factors, as a learning rate is.
        """
        for output in filter(None, op.outputs):
            sources: frozenset[VarId] = frozenset()
            for operand in self._operands(op, output):
                sources |= self.sources.get(operand, frozenset())
                var = self._vars[operand]
                is_stored = var.origin in (Origin.INPUT, Origin.WEIGHT)
                if is_stored and (elements(var) != 1 or operand in candidates):
                    sources |= {operand}
            if sources:
                self.sources[output] = sources

    def _operands(self, op: Op, output: VarId) -> tuple[VarId, ...]:
        """Return the inputs of an op with the shape of its output; all of an optimizer op's."""
        operands = tuple(dict.fromkeys(filter(None, op.inputs)))
        if op.type in OPTIMIZERS:
            return operands
        shape = self._vars[output].shape
        return tuple(var for var in operands if self._vars[var].shape == shape)

    def _is_computed(self, var: VarId) -> bool:
        """Return whether a var is a float result of an op outside the forward part."""
        producer = self._dataflow.producer.get(var, -1)
        return producer in self._beyond_forward and is_float(self._vars[var])

    def _without_factors(self, var: VarId) -> VarId:
        """Follow a gradient backwards through elementwise ops whose other operands are scalars."""
        while True:
            op = self._dataflow.ops[self._dataflow.producer[var]]
            tensors = {v for v in filter(None, op.inputs) if elements(self._vars[v]) != 1}
            if not _may_update(op) or len(tensors) != 1:
                return var
            operand = tensors.pop()
            if not self._is_computed(operand):
                return var
            var = operand


def _is_value_preserving(op: Op) -> bool:
    """Return whether an op only reshapes, permutes, repeats or casts its first input."""
    traits = operator(op)
    return (
        traits.is_view
        or traits.family in (Family.PERMUTATION, Family.REPETITION)
        or traits.name == "Cast"
    )


def _may_update(op: Op) -> bool:
    """Return whether an op may belong to an optimizer step: elementwise, or a whole step."""
    return op.type in OPTIMIZERS or operator(op).is_elementwise


def is_float(var: Var) -> bool:
    """Return whether a var is a tensor of a floating-point type (not a sequence or optional)."""
    return "float" in var.dtype and "(" not in var.dtype


def elements(var: Var) -> int | None:
    """Return the number of elements of a var, or None if its shape is unknown or symbolic."""
    if var.shape is None or not all(isinstance(dim, int) for dim in var.shape):
        return None
    return prod(dim for dim in var.shape if isinstance(dim, int))


def _roots(flow: Dataflow) -> dict[VarId, VarId]:
    """Map each result of reshapes, casts and the like to the var that they were applied to."""
    roots: dict[VarId, VarId] = {}
    for op in flow.ops:
        if _is_value_preserving(op) and op.inputs and op.outputs:
            roots[op.outputs[0]] = roots.get(op.inputs[0], op.inputs[0])
    return roots


def _varying(flow: Dataflow, inputs: Collection[VarId]) -> set[VarId]:
    """Return the vars that depend on a graph input; all others are constant."""
    varying = set(inputs)
    for op, reads in zip(flow.ops, flow.reads, strict=True):
        if not varying.isdisjoint(reads):
            varying.update(op.outputs)
    return varying
