"""Trained parameters and their final gradients, recognized by the structure of the graph.

Let ``f(a, P)`` be an op of the forward part with a parameter ``P``: an *op of* ``P``. A graph output
is taken for the gradient of ``P``, or for the updated ``P``, if it has three properties:

1. it has the dtype and shape of ``P``,
2. it depends on ``a``, the other operand of ``f``, outside of the forward part, and
3. it depends on a value between ``f`` and the loss, outside of the forward part.

    a ---+
         +--> f --> h --> loss
    P ---+          |
    a, h ---------> g (shape of P) --> new P

The gradient of the ``P`` of a product ``a P`` is ``a`` transposed times the gradient of the product, and
the latter depends on later values unless all ops up to the loss are linear. A second head of an
inference network may depend on such values too, but hardly ever has the shape of a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Literal, NamedTuple

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
"""Whether the loss is named or recorded as such (``known``), or just some scalar output (``guessed``)."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters and their final gradients; both are empty for an inference graph."""

    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()


def find_trained(
    program: Program, forward: Collection[int], *, certainty: Certainty
) -> Trained:
    """Return the parameters that a graph trains, and their final gradients.

    An update adds a gradient to stored tensors, its *sources*: the parameter itself, a momentum. The
    final gradient is the value that is added, before it is scaled, for example by the learning rate.
    An output without an update that computes it may be a final gradient itself.

    Args:
        program: The model. Only its main graph is considered.
        forward: The indices of the ops that the loss depends on.
        certainty: If the loss is only guessed, some output must be very likely a gradient
            (`_Evidence.has_likely_gradient`), or the graph counts as an inference graph. If the loss is
            known, an output that looks like an update is enough (`_Evidence.suggests_updates`).
    """
    evidence = _Evidence(program, forward)
    updates = _Updates(evidence)
    is_trained = evidence.has_likely_gradient() or (
        certainty == "known" and evidence.suggests_updates(updates.sources)
    )
    if not is_trained:
        return Trained()
    parameters: dict[VarId, None] = {}
    gradients: dict[VarId, None] = {}
    for output in evidence.outputs:
        candidates = evidence.parameters_like(output)
        sources = updates.sources.get(output, frozenset())
        trained = [var for var in candidates if var in sources]
        if trained:  # the output is the new value of these parameters
            final_gradients = updates.gradients(output)
        elif not sources:  # no update computes the output, so it may itself be a gradient
            trained = [var for var in candidates if evidence.may_be_gradient(output, var)]
            final_gradients = (output,)
        else:  # the new value of another tensor, such as a momentum
            continue
        # A new value without a gradient, as ``0.99 * P``, trains nothing: the parameter only decays.
        if trained and final_gradients:
            gradients.update(dict.fromkeys(final_gradients))
            parameters.update(dict.fromkeys(trained))
    order = {var: place for place, var in enumerate(program.vars)}
    return Trained(tuple(sorted(parameters, key=order.__getitem__)), tuple(gradients))


OutputMask = int
"""A set of outputs, with one bit for each: `_Evidence.bit`."""


class _Dependents(NamedTuple):
    """The outputs that depend on the values at the ops ``f(a, P)`` of a candidate parameter ``P``.

    Dependences inside the forward part do not count.

    Attributes:
        of_operands: the outputs that depend on ``a`` of some op: property 2 of the module.
        of_results: the outputs that depend on a value between some op and the loss: property 3.
    """

    of_operands: OutputMask = 0
    of_results: OutputMask = 0


class _Evidence:
    """The candidate parameters of a graph, and the outputs that may be their gradients.

    Attributes:
        program: the model.
        forward: the indices of the ops of its forward part in the main graph.
        dataflow: producers and consumers of the main graph.
        outputs: the float graph outputs that ops outside of the forward part compute: each may be a
            gradient or the new value of a parameter.
        bit: the bit of each output in an `OutputMask`.
        dependents: the vars that may be parameters, with the outputs that depend on their ops.
    """

    def __init__(self, program: Program, forward: Collection[int]) -> None:
        """Find the vars that may be parameters, and the outputs that may be their gradients or new values.

        ``forward`` has the indices of the ops that the loss depends on. Their own results are no
        gradients, and neither are outputs of other types than floats.
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
        self.bit: dict[VarId, OutputMask] = {
            output: 1 << index for index, output in enumerate(self.outputs)
        }
        self._uncast = _originals(dataflow)
        """Result of a reshape, cast and the like -> the var that it was computed from."""
        self.dependents = self._find_dependents() if self.outputs else {}
        self._by_type: dict[tuple[str, Shape | None], list[VarId]] = {}
        """Dtype and shape -> the vars that may be parameters."""
        for parameter in self.dependents:
            var_record = program.vars[parameter]
            dtype_and_shape = var_record.dtype, var_record.shape
            self._by_type.setdefault(dtype_and_shape, []).append(parameter)

    def has_likely_gradient(self) -> bool:
        """Return whether some output is very likely the gradient or the new value of a parameter.

        Such an output has all three properties of the module's docstring:

        1. It has the dtype and shape of the parameter.
        2. It depends on another operand of a forward op that reads the parameter.
        3. It depends on the result of that op, or on a later value up to the loss.

        Scalar parameters are left out, because many outputs are scalars.
        """
        return any(
            elements(self.program.vars[parameter]) != 1
            and self.depends_on_operand(output, parameter)
            and self.depends_on_result(output, parameter)
            for output in self.outputs
            for parameter in self.parameters_like(output)
        )

    def suggests_updates(self, sources: Mapping[VarId, Collection[VarId]]) -> bool:
        """Return whether some output looks like the new value of a parameter of a linear op.

        If ``f(a, P)`` and all later ops are linear, the gradient of ``P`` is ``a`` times constants. The
        new ``P`` then depends on ``a``, but not on the result of ``f``, so `has_likely_gradient`
        finds nothing. Instead, the new value must be computed from the parameter itself.

        ``sources`` are those of `_Updates`.
        """
        return any(
            parameter in sources.get(output, ()) and self.depends_on_operand(output, parameter)
            for output in self.outputs
            for parameter in self.parameters_like(output)
        )

    def parameters_like(self, output: VarId) -> tuple[VarId, ...]:
        """Return the candidate parameters with the dtype and shape of an output: property 1."""
        var = self.program.vars[output]
        return tuple(self._by_type.get((var.dtype, var.shape), ()))

    def may_be_gradient(self, output: VarId, parameter: VarId) -> bool:
        """Return whether an output like a parameter has property 2 or 3. Those of linear ops and biases lack one."""
        return self.depends_on_operand(output, parameter) or self.depends_on_result(
            output, parameter
        )

    def depends_on_operand(self, output: VarId, parameter: VarId) -> bool:
        """Return whether an output depends on ``a`` of an op ``f(a, parameter)``: property 2."""
        return bool(self.dependents[parameter].of_operands & self.bit[output])

    def depends_on_result(self, output: VarId, parameter: VarId) -> bool:
        """Return whether an output depends on a value between an op of a parameter and the loss.

        That is property 3.
        """
        return bool(self.dependents[parameter].of_results & self.bit[output])

    def _find_dependents(self) -> dict[VarId, _Dependents]:
        """Return, per var that may be a parameter, the outputs that depend on its ops.

        The ops of ``P`` are the forward ops ``f(a, P)`` that read it or a reshape or cast of it; reshapes and
        casts themselves do not count. The outputs that depend on an ``a`` are joined to the mask
        ``of_operands``, those that depend on a result or a later forward value to ``of_results``.
        """
        dataflow = self.dataflow
        outputs_of_var = self._outputs_by_var()
        outputs_of_op = self._outputs_by_op(outputs_of_var)
        varying = _varying(dataflow, self.program.body.inputs)
        candidates: dict[VarId, _Dependents] = {}
        for index in sorted(self.forward):
            if _is_value_preserving(dataflow.ops[index]):
                continue
            operands = {self._uncast.get(var, var) for var in dataflow.reads[index]}
            for parameter in filter(self._may_be_parameter, operands):
                of_operands, of_results = candidates.get(parameter, _Dependents())
                for other in operands - {parameter}:
                    if other in varying:  # a constant operand says nothing about training
                        of_operands |= outputs_of_var.get(other, 0)
                of_results |= outputs_of_op[index]
                candidates[parameter] = _Dependents(of_operands, of_results)
        return candidates

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

    def _outputs_by_var(self) -> dict[VarId, OutputMask]:
        """Return, per var, the outputs that depend on it through ops outside the forward part.

        Forward ops are skipped: else an output that depends on the loss would depend on every parameter.
        The readers of a reshape or cast count for the var that it was applied to.
        """
        dataflow = self.dataflow
        outputs_of_op: list[OutputMask] = [0] * len(dataflow.ops)
        outputs_of_var: dict[VarId, OutputMask] = {}
        for index in reversed(range(len(dataflow.ops))):
            if index in self.forward:
                continue
            mask: OutputMask = 0
            for var in dataflow.ops[index].outputs:
                mask |= self.bit.get(var, 0)  # if the var is an output itself
                for consumer in dataflow.consumers.get(var, ()):
                    mask |= outputs_of_op[consumer]
            outputs_of_op[index] = mask
            for var in dataflow.reads[index]:
                original = self._uncast.get(var, var)
                outputs_of_var[original] = outputs_of_var.get(original, 0) | mask
        return outputs_of_var

    def _outputs_by_op(
        self, outputs_of_var: Mapping[VarId, OutputMask]
    ) -> dict[int, OutputMask]:
        """Return, per forward op, the outputs that depend on a value between the op and the loss.

        These values are its results and those of the forward ops after it. ``outputs_of_var`` is the
        result of `_outputs_by_var`.
        """
        outputs_of_op: dict[int, OutputMask] = {}
        for index in sorted(self.forward, reverse=True):
            mask = 0
            for var in self.dataflow.ops[index].outputs:
                mask |= outputs_of_var.get(var, 0)
                for consumer in self.dataflow.consumers.get(var, ()):
                    mask |= outputs_of_op.get(consumer, 0)
            outputs_of_op[index] = mask
        return outputs_of_op


class _Updates:
    """How optimizer ops combine stored tensors (parameters, momenta) with gradients.

    Attributes:
        sources: for each var that an update computes, the stored tensors that it is computed from:
            the graph inputs and initializers that elementwise ops of its shape, or a whole
            optimizer op, combine into it. Only results of ops have an entry.
        _beyond_forward: the indices of the ops outside the forward part.
    """

    def __init__(self, evidence: _Evidence) -> None:
        """Find the sources of all vars: the stored tensors from which elementwise or optimizer ops derive them.

        Forward ops do not count. ``evidence`` is of the model: scalars among its candidate parameters
        count as stored tensors; other scalars, such as a learning rate, do not.
        """
        self._vars, self._dataflow = evidence.program.vars, evidence.dataflow
        all_ops = frozenset(range(len(self._dataflow.ops)))
        self._beyond_forward = all_ops.difference(evidence.forward)
        self.sources: dict[VarId, frozenset[VarId]] = {}
        for index, op in enumerate(self._dataflow.ops):
            if index in self._beyond_forward and _is_elementwise_or_step(op):
                self._add_sources(op, evidence.dependents)

    def gradients(self, output: VarId) -> tuple[VarId, ...]:
        """Return the final gradients from which an updated parameter is computed.

        ``output`` is the updated parameter, a key of ``sources``. Going backwards from it, an
        operand with sources is a part of the update. Any other operand that an op computes is a
        gradient, perhaps scaled.
        """
        final_gradients: dict[VarId, None] = {}
        stack, seen = [output], {output}
        while stack:
            var = stack.pop()
            for operand in self._main_operands(self._producer_of(var), var):
                if operand in self.sources:
                    if operand not in seen:
                        seen.add(operand)
                        stack.append(operand)
                elif self._is_computed(operand):
                    final_gradients[self._unscaled(operand)] = None
        return tuple(final_gradients)

    def _add_sources(self, op: Op, candidates: Collection[VarId]) -> None:
        """Add the sources of an op's outputs: those of its operands, and operands that are stored.

        A stored scalar counts only if it is a candidate: others are factors, as a learning rate is.
        """
        for output in filter(None, op.outputs):
            sources: frozenset[VarId] = frozenset()
            for operand in self._main_operands(op, output):
                sources |= self.sources.get(operand, frozenset())
                var = self._vars[operand]
                is_stored = var.origin in (Origin.INPUT, Origin.WEIGHT)
                if is_stored and (elements(var) != 1 or operand in candidates):
                    sources |= {operand}
            if sources:
                self.sources[output] = sources

    def _main_operands(self, op: Op, output: VarId) -> tuple[VarId, ...]:
        """Return the inputs of an op that can be parameters, gradients or states, each once.

        They have the shape of ``output``. Inputs of another shape are broadcast: scalars and other
        factors, such as a learning rate. An optimizer op has a parameter, a gradient and states for
        each of its outputs, in shapes of their own: all its inputs are returned.
        """
        operands = tuple(dict.fromkeys(filter(None, op.inputs)))
        if op.type in OPTIMIZERS:
            return operands
        shape = self._vars[output].shape
        return tuple(var for var in operands if self._vars[var].shape == shape)

    def _is_computed(self, var: VarId) -> bool:
        """Return whether a var is a float result of an op outside the forward part."""
        producer = self._dataflow.producer.get(var, -1)
        return producer in self._beyond_forward and is_float(self._vars[var])

    def _unscaled(self, var: VarId) -> VarId:
        """Return the gradient ``g`` from which a var such as ``rate * g`` is computed.

        Goes backwards through elementwise ops with one tensor, whose other operands are scalars. The
        tensor may be an operand twice: Adam computes its second moment from ``Mul(g, g)``.
        """
        while True:
            op = self._producer_of(var)
            tensors = {v for v in filter(None, op.inputs) if elements(self._vars[v]) != 1}
            if not _is_elementwise_or_step(op) or len(tensors) != 1:
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


def _is_elementwise_or_step(op: Op) -> bool:
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
