"""Trained parameters and their final gradients, recognized by the structure of the graph.

Let ``f(a, P)`` be an op of the forward part with a parameter ``P``. A graph output is very likely the
gradient of ``P``, or the updated ``P``, if it has three properties:

1. it has the dtype and shape of ``P``,
2. it depends on ``a``, the other operand of ``f``, outside of the forward part, and
3. it depends on a value between ``f`` and the loss, outside of the forward part.

    a ---+
         +--> f --> h --> loss
    P ---+          |
    a, h ---------> g (shape of P) --> new P

The gradient of the ``P`` of a product ``a P`` is ``a`` transposed times the gradient of the product, and
the latter depends on later values unless all ops up to the loss are linear. A graph without such an output
counts as an inference graph. A second head of an inference network may depend on later values too, but hardly
ever has the shape of a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import TYPE_CHECKING

from memplan_cli.core.operators import Family, operator
from memplan_cli.core.program import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memplan_cli.core.program import Dataflow, Op, Program, Shape, Var, VarId

OPTIMIZERS = frozenset(
    {
        "Adagrad", "Adam", "AdamOptimizer", "AdamWOptimizer", "InPlaceAccumulator",
        "InPlaceAccumulatorV2", "LambOptimizer", "Momentum", "SGDOptimizer",
        "SGDOptimizerV2",
    }
)  # fmt: skip
"""Operators of a whole optimizer step (ai.onnx.preview.training, onnxruntime-training)."""

_MIN_EXAMINED = 50
"""Outputs that are examined for being gradients in any case."""

MAX_VISITS = 2_000_000
"""Ops that are visited in total to examine more outputs. The first outputs tell, as a training step has a gradient
for each parameter."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters and their final gradients; both are empty for an inference graph."""

    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()


def find_trained(
    program: Program, forward: Collection[int], max_visits: int = MAX_VISITS
) -> Trained:
    """Return the parameters that a graph trains, and their final gradients.

    An update adds a gradient to stored tensors, its *sources*: the parameter itself, a momentum. The
    final gradient is the value that is added, before it is scaled, for example by the learning rate.
    An output that no update computes may be the gradient of a *candidate*: a float input or weight that is used.

    Args:
        program: The model. Only its main graph is considered.
        forward: The indices of the ops that the loss depends on.
        max_visits: The ops that may be visited in total to examine outputs.
    """
    evidence = _Evidence(program, forward)
    # A graph trains if it has a likely gradient: as for ``P`` in ``y = MatMul(a, P)``, an output that is computed
    # from ``a`` and from ``y``.
    examined = evidence.outputs_to_examine(max_visits)
    if not any(map(evidence.is_likely_gradient, examined)):
        return Trained()
    # Of the other outputs only the type of a candidate is asked: the gradient of a bias ``b`` in ``Add(a, b)``
    # is not computed from ``a``.
    updates = _Updates(evidence)
    parameters: dict[VarId, None] = {}
    gradients: dict[VarId, None] = {}
    for output in evidence.outputs:
        candidates = evidence.candidates_of_type(output)  # with its dtype and shape
        sources = updates.sources.get(output, frozenset())
        trained = [var for var in candidates if var in sources]
        if trained:  # the output is the new value of these parameters
            final_gradients = updates.gradients(output)
        elif not sources:  # no update computes the output: a gradient, if it has candidates
            trained = list(candidates)  # all: its type does not tell whose gradient it is
            final_gradients = (output,)
        else:  # the new value of another tensor, such as a momentum
            continue
        # A new value without a gradient, as ``0.99 * P``, trains nothing: the parameter only decays.
        if trained and final_gradients:
            gradients.update(dict.fromkeys(final_gradients))
            parameters.update(dict.fromkeys(trained))
    order = {var: place for place, var in enumerate(program.vars)}
    return Trained(tuple(sorted(parameters, key=order.__getitem__)), tuple(gradients))


class _Evidence:
    """The vars of a graph that may be parameters, and the outputs that may be their gradients.

    Attributes:
        program: the model.
        forward: the indices of the ops of its forward part in the main graph.
        dataflow: producers and consumers of the main graph.
        outputs: the float graph outputs that ops outside of the forward part compute: each may be a
            gradient or the new value of a parameter.
    """

    def __init__(self, program: Program, forward: Collection[int]) -> None:
        """Find the outputs that may be gradients or new values, and the vars that may be their parameters.

        ``forward`` has the indices of the ops that the loss depends on.
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
        self._uncast = _originals(dataflow)
        """Result of a reshape, cast and the like -> the var that it was computed from."""
        self._varying = _varying(dataflow, program.body.inputs)
        """The vars that depend on a graph input."""
        self.candidates: dict[VarId, list[int]] = {}
        """A var that may be a parameter -> the indices of the forward ops that read it or a cast of it."""
        self._by_type: dict[tuple[str, Shape | None], list[VarId]] = {}
        """Dtype and shape -> the vars that may be parameters."""
        if not self.outputs:  # without gradients there are no parameters
            return
        for index in sorted(forward):
            if _is_value_preserving(dataflow.ops[index]):
                continue
            for parameter in filter(self._may_be_parameter, self._operands(index)):
                self.candidates.setdefault(parameter, []).append(index)
        for parameter in self.candidates:
            var = program.vars[parameter]
            self._by_type.setdefault((var.dtype, var.shape), []).append(parameter)

    def is_likely_gradient(self, output: VarId) -> bool:
        """Return whether an output is very likely the gradient or the new value of a parameter.

        The gradient of ``P`` in ``y = MatMul(a, P)`` is ``MatMul(Transpose(a), dy)``. So the output must have the
        dtype and shape of ``P``, and be computed from ``a``, behind the forward part, and from ``y``, on which
        ``dy`` depends. Any other forward op may stand in place of MatMul.
        """
        parameters = self.candidates_of_type(output)  # with its dtype and shape
        is_scalar = elements(self.program.vars[output]) == 1
        if not parameters or is_scalar:  # many outputs are scalars
            return False
        needed_ops = self.dataflow.ancestors((output,))
        vars_read_behind_forward = {
            self._uncast.get(var, var)  # a reshape or cast of a var counts as the var
            for index in needed_ops.difference(self.forward)
            for var in self.dataflow.reads[index]
        }
        for parameter in parameters:
            for forward_op in self.candidates[parameter]:  # the forward ops that read it
                # Of its other operands, constants show nothing: they do not depend on a graph input.
                operands = (self._operands(forward_op) - {parameter}) & self._varying
                is_computed_from_operand = not operands.isdisjoint(vars_read_behind_forward)
                is_computed_from_result = forward_op in needed_ops
                if is_computed_from_operand and is_computed_from_result:
                    return True
        return False

    def outputs_to_examine(self, max_visits: int) -> Iterator[VarId]:
        """Yield the first outputs with the dtype and shape of a candidate: at least `_MIN_EXAMINED`.

        `is_likely_gradient` visits the ops behind an output, at most all: more outputs are yielded while that
        stays within ``max_visits``.
        """
        count = max(_MIN_EXAMINED, max_visits // max(len(self.dataflow.ops), 1))
        return islice(filter(self.candidates_of_type, self.outputs), count)

    def candidates_of_type(self, output: VarId) -> tuple[VarId, ...]:
        """Return the vars that may be parameters and have the dtype and shape of an output."""
        var = self.program.vars[output]
        return tuple(self._by_type.get((var.dtype, var.shape), ()))

    def _operands(self, index: int) -> set[VarId]:
        """Return the vars that an op reads. In place of a reshape or cast, this is the var that it was applied to."""
        return {self._uncast.get(var, var) for var in self.dataflow.reads[index]}

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


class _Updates:
    """How optimizer ops combine stored tensors (parameters, momenta) with gradients.

    Attributes:
        sources: for each var that an update computes, the stored tensors that it is computed from:
            the graph inputs and initializers that elementwise ops of its shape, or a whole
            optimizer op, combine into it. Only results of ops have an entry.
    """

    def __init__(self, evidence: _Evidence) -> None:
        """Find the sources of all vars: the stored tensors from which elementwise or optimizer ops derive them.

        Ops of the forward part are left out.
        """
        self._vars = evidence.program.vars
        self._dataflow = evidence.dataflow
        self._forward = evidence.forward
        self.sources: dict[VarId, frozenset[VarId]] = {}
        for index, op in enumerate(self._dataflow.ops):
            if index not in self._forward and _is_elementwise_or_optimizer(op):
                self._add_sources(op, evidence.candidates.keys())

    def gradients(self, output: VarId) -> tuple[VarId, ...]:
        """Return the final gradients from which an updated parameter is computed: ``g`` of ``w - lr * g``.

        The ops are followed backwards from ``output``, the updated parameter. An operand with an entry in
        ``sources`` is computed from a stored tensor, so it is a part of the update and followed too. Any other
        computed operand, such as ``lr * g``, is a gradient after `_unscaled` has removed factors. Operands of
        another shape, such as a learning rate or an epsilon, are skipped.
        """
        final_gradients: dict[VarId, None] = {}
        stack, seen = [output], {output}
        while stack:
            var = stack.pop()
            for operand in self._operands_of_shape(self._producer_of(var), var):
                if operand in self.sources:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append(operand)
                elif self._is_computed(operand):
                    final_gradients[self._unscaled(operand)] = None
        return tuple(final_gradients)

    def _add_sources(self, op: Op, candidates: Collection[VarId]) -> None:
        """Add to ``sources`` the stored tensors (parameters, momenta) from which an op's outputs are computed.

        These are the stored operands of the op, and the sources of its other operands. A stored scalar counts
        only if it may be a parameter, a member of ``candidates``. Other scalars are factors.
        """
        for output in filter(None, op.outputs):
            sources: frozenset[VarId] = frozenset()
            for operand in self._operands_of_shape(op, output):
                sources |= self.sources.get(operand, frozenset())
                var = self._vars[operand]
                is_stored = var.origin in (Origin.INPUT, Origin.WEIGHT)
                if is_stored and (elements(var) != 1 or operand in candidates):
                    sources |= {operand}
            if sources:
                self.sources[output] = sources

    def _operands_of_shape(self, op: Op, output: VarId) -> tuple[VarId, ...]:
        """Return the inputs of an op with the shape of ``output``, each once: parameters, gradients or states.

        Inputs of another shape are broadcast: scalars and other factors, such as a learning rate. An optimizer
        op has a parameter, a gradient and states for each of its outputs, in shapes of their own: all its
        inputs are returned.
        """
        operands = tuple(dict.fromkeys(filter(None, op.inputs)))
        if op.type in OPTIMIZERS:
            return operands
        shape = self._vars[output].shape
        return tuple(var for var in operands if self._vars[var].shape == shape)

    def _is_computed(self, var: VarId) -> bool:
        """Return whether a var is a float result of an op outside the forward part."""
        producer = self._dataflow.producer.get(var)
        is_outside = producer is not None and producer not in self._forward
        return is_outside and is_float(self._vars[var])

    def _unscaled(self, var: VarId) -> VarId:
        """Return the gradient ``g`` from which a computed var such as ``rate * g`` is computed.

        Goes backwards through elementwise and optimizer ops, as long as their operands are one tensor and
        scalars. The tensor may be an operand twice: Adam computes its second moment from ``Mul(g, g)``.
        """
        while True:
            op = self._producer_of(var)
            tensors = {v for v in filter(None, op.inputs) if elements(self._vars[v]) != 1}
            if not _is_elementwise_or_optimizer(op) or len(tensors) != 1:
                return var
            operand = tensors.pop()
            if not self._is_computed(operand):
                return var
            var = operand

    def _producer_of(self, var: VarId) -> Op:
        """Return the op that computes a var; there must be one."""
        return self._dataflow.ops[self._dataflow.producer[var]]


def _is_value_preserving(op: Op) -> bool:
    """Return whether an op only reshapes, permutes, repeats or casts its first input."""
    traits = operator(op)
    return (
        traits.is_view
        or traits.family in (Family.PERMUTATION, Family.REPETITION)
        or traits.name == "Cast"
    )


def _is_elementwise_or_optimizer(op: Op) -> bool:
    """Return whether an op is elementwise or a whole optimizer step, so that an update may have it."""
    return op.type in OPTIMIZERS or operator(op).is_elementwise


def is_float(var: Var) -> bool:
    """Return whether a var is a tensor of a floating-point type (not a sequence or optional)."""
    return "float" in var.dtype and "(" not in var.dtype


def elements(var: Var) -> int | None:
    """Return the number of elements of a var, or None if its shape is unknown or symbolic."""
    if var.shape is None or not all(isinstance(dim, int) for dim in var.shape):
        return None
    return prod(dim for dim in var.shape if isinstance(dim, int))


def _originals(flow: Dataflow) -> dict[VarId, VarId]:
    """Map each result of reshapes, casts and the like to the var that they were applied to."""
    originals: dict[VarId, VarId] = {}
    for op in flow.ops:
        if _is_value_preserving(op) and op.inputs and op.outputs:
            originals[op.outputs[0]] = originals.get(op.inputs[0], op.inputs[0])
    return originals


def _varying(flow: Dataflow, inputs: Collection[VarId]) -> set[VarId]:
    """Return the vars that depend on a graph input; all others are constant."""
    varying = set(inputs)
    for op, reads in zip(flow.ops, flow.reads, strict=True):
        if not varying.isdisjoint(reads):
            varying.update(op.outputs)
    return varying
