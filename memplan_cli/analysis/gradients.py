"""Trained parameters and their final gradients, recognised by the graph's structure.

A gradient is recognised by what it needs, not by its name. The gradient of a parameter
``P`` that an op multiplies with ``a`` needs ``a``, and it needs something the loss computes
behind that op, and it has the shape and type of ``P``. A second head of an inference
network has at most two of the three.

    a ---+
         +--> f --> h --> loss
    P ---+          |
    a, h ---------> g (shape of P) --> new P
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

OPTIMISERS = frozenset(
    {
        "Adagrad", "Adam", "AdamOptimizer", "AdamWOptimizer", "InPlaceAccumulator",
        "InPlaceAccumulatorV2", "LambOptimizer", "Momentum", "SGDOptimizer",
        "SGDOptimizerV2",
    }
)  # fmt: skip
"""Whole optimiser steps as one op: ai.onnx.preview.training and onnxruntime-training."""

Certainty = Literal["known", "guessed"]
"""A loss is known if somebody called it one, and guessed if it is only a scalar."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Parameters and their final gradients; both empty where nothing is trained."""

    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()


def find_trained(program: Program, forward: Collection[int], loss: Certainty) -> Trained:
    """Return what a graph trains, given the ops that its loss needs.

    The final gradient of a parameter is what the update reads: the last value before
    something of the parameter's shape that the graph was given (the parameter, a momentum)
    is mixed in, less its factors (a learning rate). Without an update it is the output.
    """
    evidence = _Evidence(program, forward)
    updates = _Updates(evidence)
    if not evidence.proves_gradients() and (
        loss == "guessed" or not evidence.suggests_updates(updates.taint)
    ):
        return Trained()
    parameters: dict[VarId, None] = {}
    gradients: dict[VarId, None] = {}
    for at, target in enumerate(evidence.targets):
        alike = evidence.alike(target)
        mixed = updates.taint.get(target, frozenset())
        if changed := [var for var in alike if var in mixed]:
            found = updates.gradients(target)
            gradients.update(dict.fromkeys(found))
            parameters.update(dict.fromkeys(changed if found else ()))
        elif not mixed and (fitting := [v for v in alike if evidence.fits(v, at)]):
            gradients[target] = None
            parameters.update(dict.fromkeys(fitting))
    order = {var: place for place, var in enumerate(program.vars)}
    return Trained(tuple(sorted(parameters, key=order.__getitem__)), tuple(gradients))


class _Evidence:
    """For every parameter, the outputs that look like it; sets of outputs are bit masks."""

    def __init__(self, program: Program, forward: Collection[int]) -> None:
        self.program, self.forward = program, forward
        self.flow = flow = program.dataflow
        results = dict.fromkeys(program.body.outputs)
        self.targets = tuple(
            var
            for var in results
            if var in flow.producer
            and flow.producer[var] not in forward
            and is_float(program.vars[var])
        )
        self.root = _roots(flow)
        self._behind: dict[VarId, int] = {}
        """Outputs that need something the loss computes behind the parameter."""
        self._beside: dict[VarId, int] = {}
        """Outputs that need something the parameter meets in an op."""
        self.given: Collection[VarId] = self._behind
        self._kinds: dict[tuple[str, Shape | None], list[VarId]] = {}
        if self.targets:
            self._collect()

    def proves_gradients(self) -> bool:
        """Whether some output can only be a gradient or an updated parameter."""
        return any(
            (self._behind[var] & self._beside[var]) >> at & 1
            for at, target in enumerate(self.targets)
            for var in self.alike(target)
            if elements(self.program.vars[var]) != 1
        )

    def suggests_updates(self, mixed: Mapping[VarId, Collection[VarId]]) -> bool:
        """Whether some output is a given tensor changed by something it met.

        That is all that is left of a training step whose loss is linear: its gradients
        need nothing that the loss computes.
        """
        return any(
            var in mixed.get(target, ()) and self._beside[var] >> at & 1
            for at, target in enumerate(self.targets)
            for var in self.alike(target)
        )

    def alike(self, target: VarId) -> tuple[VarId, ...]:
        """Return what the loss was given that has the output's type and shape."""
        var = self.program.vars[target]
        return tuple(self._kinds.get((var.dtype, var.shape), ()))

    def fits(self, parameter: VarId, at: int) -> bool:
        """Whether an output needs anything that a gradient of the parameter may need."""
        return bool((self._behind[parameter] | self._beside[parameter]) >> at & 1)

    def _collect(self) -> None:
        read = self._masks_of_reads()
        below = self._masks_below(read)
        varying = _varying(self.flow, self.program.body.inputs)
        for at in sorted(self.forward):
            if _is_carrier(self.flow.ops[at]):
                continue
            roots = {self.root.get(var, var) for var in self.flow.reads[at]}
            for var in filter(self._may_be_parameter, roots):
                beside = 0
                for other in roots - {var}:
                    beside |= read.get(other, 0) if other in varying else 0
                self._behind[var] = self._behind.get(var, 0) | below[at]
                self._beside[var] = self._beside.get(var, 0) | beside
        for parameter in self._behind:
            facts = self.program.vars[parameter]
            self._kinds.setdefault((facts.dtype, facts.shape), []).append(parameter)

    def _may_be_parameter(self, identity: VarId) -> bool:
        var = self.program.vars[identity]
        if not is_float(var) or var.shape is None:
            return False
        # A scalar in the file is a constant; one that is given may be learned.
        return var.origin is Origin.INPUT or (
            var.origin is Origin.WEIGHT and elements(var) != 1
        )

    def _masks_of_reads(self) -> dict[VarId, int]:
        """Return, for each var of the forward part, the outputs that need it directly."""
        bit = {var: 1 << at for at, var in enumerate(self.targets)}
        leads_to = [0] * len(self.flow.ops)
        read: dict[VarId, int] = {}
        for at in range(len(self.flow.ops) - 1, -1, -1):
            if at in self.forward:
                continue
            mask = 0
            for var in self.flow.ops[at].outputs:
                mask |= bit.get(var, 0)
                for consumer in self.flow.consumers.get(var, ()):
                    mask |= leads_to[consumer]
            leads_to[at] = mask
            for var in self.flow.reads[at]:
                origin = self.root.get(var, var)
                read[origin] = read.get(origin, 0) | mask
        return read

    def _masks_below(self, read: Mapping[VarId, int]) -> dict[int, int]:
        """Return, for each forward op, the outputs that need what it makes, or later."""
        below: dict[int, int] = {}
        for at in sorted(self.forward, reverse=True):
            mask = 0
            for var in self.flow.ops[at].outputs:
                if var not in self.root:
                    mask |= read.get(var, 0)
                for consumer in self.flow.consumers.get(var, ()):
                    mask |= below.get(consumer, 0)
            below[at] = mask
        return below


class _Updates:
    """What optimisers mix: given tensors (parameters, momenta) and gradients."""

    def __init__(self, evidence: _Evidence) -> None:
        self._vars, self._flow = evidence.program.vars, evidence.flow
        self._rest = frozenset(range(len(self._flow.ops))) - frozenset(evidence.forward)
        self.taint: dict[VarId, frozenset[VarId]] = {}
        for at, op in enumerate(self._flow.ops):
            if at in self._rest and _may_update(op):
                self._spread(op, evidence.given)

    def _spread(self, op: Op, trainable: Collection[VarId]) -> None:
        for output in filter(None, op.outputs):
            found: frozenset[VarId] = frozenset()
            for var in self._alike(op, output):
                facts, mixed = self._vars[var], self.taint.get(var)
                if mixed:
                    found = found | mixed if found else mixed
                given = facts.origin is Origin.INPUT or facts.origin is Origin.WEIGHT
                if given and (elements(facts) != 1 or var in trainable):
                    found |= {var}
            if found:
                self.taint[output] = found

    def gradients(self, target: VarId) -> tuple[VarId, ...]:
        """Return the values of the backward part that an updated value is made of."""
        found: dict[VarId, None] = {}
        stack, seen = [target], {target}
        while stack:
            var = stack.pop()
            for source in self._alike(self._flow.ops[self._flow.producer[var]], var):
                if source in self.taint and source not in seen:
                    seen.add(source)
                    stack.append(source)
                elif source not in self.taint and self._is_computed(source):
                    found[self._without_factors(source)] = None
        return tuple(found)

    def _alike(self, op: Op, var: VarId) -> tuple[VarId, ...]:
        sources = tuple(dict.fromkeys(filter(None, op.inputs)))
        if op.type in OPTIMISERS:
            return sources
        shape = self._vars[var].shape
        return tuple([source for source in sources if self._vars[source].shape == shape])

    def _is_computed(self, var: VarId) -> bool:
        return self._flow.producer.get(var, -1) in self._rest and is_float(self._vars[var])

    def _without_factors(self, var: VarId) -> VarId:
        while True:
            op = self._flow.ops[self._flow.producer[var]]
            others = {v for v in filter(None, op.inputs) if elements(self._vars[v]) != 1}
            if not _may_update(op) or len(others) != 1:
                return var
            source = others.pop()
            if not self._is_computed(source):
                return var
            var = source


def _is_carrier(op: Op) -> bool:
    """Whether an op's result is the whole value of its first input in another form."""
    traits = operator(op)
    return (
        traits.is_view
        or traits.family in (Family.PERMUTATION, Family.REPETITION)
        or traits.name == "Cast"
    )


def _may_update(op: Op) -> bool:
    """Whether an op may be part of an optimiser: its result's elements lie as its inputs' do."""
    return op.type in OPTIMISERS or operator(op).is_elementwise


def is_float(var: Var) -> bool:
    """Whether gradients can flow through a var."""
    return "float" in var.dtype and "(" not in var.dtype


def elements(var: Var) -> int | None:
    """Return how many elements a var has, or None where that is not a number."""
    if var.shape is None or not all(isinstance(dim, int) for dim in var.shape):
        return None
    return prod(dim for dim in var.shape if isinstance(dim, int))


def _roots(flow: Dataflow) -> dict[VarId, VarId]:
    """Map each carried value to the value that it carries."""
    roots: dict[VarId, VarId] = {}
    for op in flow.ops:
        if _is_carrier(op) and op.inputs and op.outputs:
            roots[op.outputs[0]] = roots.get(op.inputs[0], op.inputs[0])
    return roots


def _varying(flow: Dataflow, inputs: Collection[VarId]) -> set[VarId]:
    """Return what depends on an input of the graph; the rest is constant."""
    found = set(inputs)
    for at, op in enumerate(flow.ops):
        if not found.isdisjoint(flow.reads[at]):
            found.update(op.outputs)
    return found
