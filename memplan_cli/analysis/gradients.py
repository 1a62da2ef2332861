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
    """Return the parameters that a graph trains, and their final gradients; empty if it trains none.

    A *candidate* is a var that may be a parameter: a float input or weight that the forward part reads. First,
    one output must be very likely the gradient or the new value of a candidate. Then every output with the
    dtype and shape of candidates is judged by the ops that compute it (`_Updates.trained_by`).

    Args:
        program: The model. Only its main graph is considered.
        forward: The indices of the ops that the loss depends on.
        max_visits: The ops that may be visited in total to examine outputs.
    """
    evidence = _Evidence(program, forward)
    examined = evidence.outputs_to_examine(max_visits)
    if not any(map(evidence.is_likely_gradient, examined)):
        return Trained()
    # The graph trains. `is_likely_gradient` is strict, to be sure of that: it does not accept the gradient of a bias
    # ``b`` in ``Add(a, b)``, which is not computed from ``a``. `trained_by` accepts this gradient too.
    updates = _Updates(evidence)
    parameters: set[VarId] = set()
    gradients: dict[VarId, None] = {}  # in the order of the outputs
    for output in evidence.outputs:
        candidates = evidence.candidates_of_type(output)
        if candidates:
            trained = updates.trained_by(output, candidates)
            parameters.update(trained.parameters)
            gradients.update(dict.fromkeys(trained.gradients))
    return Trained(tuple([var for var in program.vars if var in parameters]), tuple(gradients))


class _Evidence:
    """The vars of a graph that may be parameters (*candidates*), and the outputs that may be their gradients.

    Attributes:
        program: the model.
        forward: the indices of the ops of its forward part in the main graph.
        dataflow: producers and consumers of the main graph.
        outputs: the float graph outputs that ops outside of the forward part compute: each may be a
            gradient or the updated value of a parameter.
        candidates: each var that may be a parameter -> the indices of the forward ops that read it, or a reshape
            or cast of it.
        _uncast: the result of a reshape, cast and the like -> the var that it was computed from.
        _varying: the vars that depend on a graph input.
        _by_type: dtype and shape -> the candidates.
    """

    def __init__(self, program: Program, forward: Collection[int]) -> None:
        """Find the outputs that may be gradients, and the vars that may be parameters: the candidates."""
        self.program, self.forward = program, forward
        self.dataflow = dataflow = program.dataflow
        self.outputs = tuple(
            var
            for var in dict.fromkeys(program.body.outputs)
            if var in dataflow.producer
            and dataflow.producer[var] not in forward
            and is_float(program.vars[var])
        )
        # An op that reads a reshape or cast of a candidate counts as an op that reads the candidate.
        self._uncast = _originals(dataflow)
        self._varying = _varying(dataflow, program.body.inputs)
        # Without outputs that may be gradients there are no parameters.
        self.candidates = self._find_candidates() if self.outputs else {}
        self._by_type: dict[tuple[str, Shape | None], list[VarId]] = {}
        for candidate in self.candidates:
            var = program.vars[candidate]
            self._by_type.setdefault((var.dtype, var.shape), []).append(candidate)

    def _find_candidates(self) -> dict[VarId, list[int]]:
        """Return each var that may be a parameter -> the indices of the forward ops that read it or a cast of it."""
        candidates: dict[VarId, list[int]] = {}
        for index in sorted(self.forward):
            # A cast does not count itself; the ops that read its result do.
            if _is_value_preserving(self.dataflow.ops[index]):
                continue
            for var in filter(self._may_be_parameter, self._operands(index)):
                candidates.setdefault(var, []).append(index)
        return candidates

    def is_likely_gradient(self, output: VarId) -> bool:
        """Return whether an output is very likely the gradient or the new value of a parameter.

        The gradient of ``P`` in ``y = MatMul(a, P)`` is ``MatMul(Transpose(a), dy)``. So the output must have the
        dtype and shape of ``P``, and be computed from ``a``, behind the forward part, and from ``y``, on which
        ``dy`` depends. Any other forward op may stand in place of MatMul.
        """
        needed_ops = self.dataflow.ancestors((output,))
        vars_read_behind_forward = {
            self._uncast.get(var, var)  # a reshape or cast of a var counts as the var
            for index in needed_ops.difference(self.forward)
            for var in self.dataflow.reads[index]
        }
        for parameter in self.candidates_of_type(output):
            for forward_op in self.candidates[parameter]:  # the forward ops that read it
                # Of its other operands, constants show nothing: they do not depend on a graph input.
                operands = (self._operands(forward_op) - {parameter}) & self._varying
                is_computed_from_operand = not operands.isdisjoint(vars_read_behind_forward)
                is_computed_from_result = forward_op in needed_ops
                if is_computed_from_operand and is_computed_from_result:
                    return True
        return False

    def outputs_to_examine(self, max_visits: int) -> Iterator[VarId]:
        """Yield the first outputs of several elements with the dtype and shape of a var that may be a parameter.

        Their number is limited so that `is_likely_gradient` visits at most ``max_visits`` ops behind all of them
        together. But the first `_MIN_EXAMINED` outputs are yielded in any case.
        """
        # Behind one output `is_likely_gradient` visits each op at most once.
        visits_per_output = max(len(self.dataflow.ops), 1)
        max_outputs = max(_MIN_EXAMINED, max_visits // visits_per_output)
        examinable = (
            output
            for output in self.outputs
            # One element, as of a metric, shows nothing. An unknown number of elements (None) counts as several.
            if self.candidates_of_type(output) and elements(self.program.vars[output]) != 1
        )
        return islice(examinable, max_outputs)

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
    """The ops after the forward part that combine stored tensors (parameters, momenta) with gradients.

    With ``v1 = Add(v, g)`` and ``w1 = Sub(w, v1)``, the *sources* of ``w1`` are the stored ``w`` and ``v``.

    Attributes:
        sources: each result of these ops -> the inputs and weights of the graph that it is computed from. A
            result of other ops, such as ``g``, has no entry; neither has a stored tensor itself.
    """

    def __init__(self, evidence: _Evidence) -> None:
        """Find `sources` for the results of elementwise and optimizer ops after the forward part.

        The sources of a result are the stored tensors of its shape that it is computed from by such ops.
        """
        self._vars = evidence.program.vars
        self._dataflow = evidence.dataflow
        self._forward = evidence.forward
        # Without scalars that are no candidates for parameters: they are factors, such as a learning rate.
        stored = {
            name
            for name, var in self._vars.items()
            if var.origin in (Origin.INPUT, Origin.WEIGHT)
            and (elements(var) != 1 or name in evidence.candidates)
        }
        self.sources: dict[VarId, frozenset[VarId]] = {}
        for index, op in enumerate(self._dataflow.ops):
            if index in self._forward or not _is_elementwise_or_optimizer(op):
                continue
            for output in filter(None, op.outputs):
                operands = self._operands_of_shape(op, output)
                sources = stored.intersection(operands)
                sources.update(*[self.sources.get(operand, ()) for operand in operands])
                if sources:
                    self.sources[output] = frozenset(sources)

    def trained_by(self, output: VarId, candidates: tuple[VarId, ...]) -> Trained:
        """Return the parameters that an output trains, and their gradients; empty if it trains none.

        ``candidates`` are the vars that may be parameters and have the dtype and shape of the output.
        """
        # Stored tensors, such as parameters and momenta, from which an update computes the output.
        sources = self.sources.get(output)
        if sources is None:
            # No update computes the output, so the output itself is a gradient. It may be that of any candidate.
            return Trained(candidates, (output,))
        parameters = tuple([var for var in candidates if var in sources])
        if not parameters:  # the updated value of another tensor, such as a momentum
            return Trained()
        gradients = self.gradients(output)
        # Without a gradient, as in ``0.99 * P``, the parameter only decays.
        return Trained(parameters, gradients) if gradients else Trained()

    def gradients(self, output: VarId) -> tuple[VarId, ...]:
        """Return the final gradients from which an updated parameter is computed: ``g`` of ``w - lr * g``.

        The ops are followed backwards from ``output``, the updated parameter::

            output = Sub(w, v1)          v1 has the source v, so it is a part of the update, and followed
            v1 = Add(v, Mul(rate, g))    Mul(rate, g) has no sources, so it is a gradient: g without its factor

        Stored tensors, here ``v`` and ``w``, and operands of another shape are no gradients.
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
