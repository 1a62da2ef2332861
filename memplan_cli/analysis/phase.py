"""The phase of each op: forward, backward, or update of parameters.

- forward: the ops that the loss depends on;
- update: the ops that depend on a final parameter gradient;
- backward: the other ops that the final gradients depend on. They need not depend on the loss:
  a gradient may read log-probabilities instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from memplan_cli.analysis.gradients import (
    MAX_VISITS,
    OPTIMIZERS,
    Trained,
    elements,
    find_trained,
    is_float,
)
from memplan_cli.core.program import Dataflow, Origin
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, MutableMapping

    from memplan_cli.core.program import Op, Program, VarId

Kind = Literal["train", "test"]
Phase = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of a program, and what it trains. An inference graph is forward only.

    Attributes:
        kind: whether the graph trains (``train``) or is an inference graph (``test``).
        loss: the value that is minimized, if there is one.
        phase_of: the phase of every op that is not forward, by each of its outputs. Keyed by var,
            it stays valid if ops are reordered.
        parameters: the trained parameters.
        gradients: their final gradients: read by the update, or graph outputs.
    """

    kind: Kind = "test"
    loss: VarId | None = None
    phase_of: Mapping[VarId, Phase] = field(default_factory=dict)
    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()

    @property
    def has_backward(self) -> bool:
        """Whether the graph trains, so that it has a backward part."""
        return self.kind == "train"

    def phase(self, op: Op) -> Phase:
        """Return the phase of an op of the main graph."""
        for var in op.outputs:
            if var in self.phase_of:
                return self.phase_of[var]
        return "forward"


def find_phases(
    program: Program,
    *,
    loss: str | None = None,
    recorded: Mapping[str, str] | None = None,
) -> Phases:
    """Return the phases of a program: forward, backward and update in a training step, else forward only.

    A program with one of these is a training step. The first that is found gives the phases:

    1. backward or update phases that the exporter recorded,
    2. an output that is a gradient or an updated parameter by its place in the graph (`find_trained`),
    3. ops that onnxruntime-training marks as backward.

    Args:
        program: The model; only ops of the main graph have phases.
        loss: The name of the loss; None to search for it among the scalar float outputs.
        recorded: Phases that the exporter wrote into the file, by op label.

    Raises:
        SettingsError: no op of the main graph computes a value named ``loss``.
    """
    flow = program.dataflow
    possible_losses = (_loss_named(program, loss),) if loss else tuple(_losses(program))
    if recorded and not {"backward", "update"}.isdisjoint(recorded.values()):
        return _from_records(program, possible_losses, recorded)
    for possible_loss in possible_losses:
        forward = flow.ancestors((possible_loss,))
        trained = find_trained(program, forward, MAX_VISITS // len(possible_losses))
        if trained.gradients:  # each parameter that is found to be updated has one
            return _training_phases(flow, possible_loss, forward, trained)
    marked = frozenset(index for index, op in enumerate(flow.ops) if _is_marked_backward(op))
    if marked:
        return _from_marks(program, possible_losses, marked)
    # Any scalar may be an output of a graph that does not train, so an unnamed loss must have ``loss`` in its name.
    losses = (var for var in possible_losses if loss or "loss" in var.lower())
    return Phases(loss=next(losses, None))


def _loss_named(program: Program, loss: str) -> VarId:
    """Return the computed value with a name, or raise a `SettingsError` with the nearest ones."""
    producer = program.dataflow.producer
    loss_var = next((var for var in producer if program.vars[var].name == loss), None)
    if loss_var is not None:
        return loss_var
    names = [program.vars[var].name for var in producer]
    near = get_close_matches(loss, names, 3, 0.0)
    raise SettingsError(
        f"the model computes no value named {loss!r}, which was given as the loss",
        hint=f"the nearest names are {', '.join(near)}" if near else "it computes no values",
    )


def _losses(program: Program) -> Iterator[VarId]:
    """Yield the scalar float outputs that may be the loss, the likeliest first.

    Outputs with ``loss`` in their name come first; then those that depend on more ops, so that
    a total loss comes before its terms.
    """
    flow = program.dataflow
    scalars = [
        var
        for var in dict.fromkeys(program.body.outputs)
        if var in flow.producer
        and is_float(program.vars[var])
        and elements(program.vars[var]) == 1
    ]
    # Counting ancestors takes time, so it is done only if there are several vars to compare.
    depth = {var: len(flow.ancestors((var,))) for var in scalars} if scalars[1:] else {}
    yield from sorted(scalars, key=lambda var: ("loss" not in var.lower(), -depth.get(var, 0)))


def _training_phases(
    flow: Dataflow, loss: VarId | None, forward: Collection[int], trained: Trained
) -> Phases:
    """Return the phases of a training graph, given the indices of its forward ops and its final gradients.

    Other ops have the first of these phases that applies:

    - update: the op depends on a final gradient.
    - backward: a final gradient depends on the op, or the op reads a backward result. An example of the latter
      is the norm of the gradient of an activation.
    - update: the op prepares an input of the update (`_mark_inputs_as_update`), such as a step count.
    - forward: the op computes running statistics or metrics from the forward part.
    """
    before_gradients = flow.ancestors(trained.gradients)
    after_gradients = flow.descendants(trained.gradients)
    phases: dict[int, Phase] = {}
    backward: set[VarId] = set()
    for index, op in enumerate(flow.ops):
        if index in forward:
            continue
        if index in after_gradients:
            phases[index] = "update"
        elif index in before_gradients or not backward.isdisjoint(flow.reads[index]):
            phases[index] = "backward"
            backward.update(op.outputs)
    _mark_inputs_as_update(flow, forward, phases)  # after all other updates are known
    # Keyed by output. Forward ops have no entry: without one, `Phases.phase` returns "forward".
    phase_of = {
        var: phase for index, phase in phases.items() for var in flow.ops[index].outputs if var
    }
    return Phases("train", loss, phase_of, trained.parameters, trained.gradients)


def _mark_inputs_as_update(
    flow: Dataflow, forward: Collection[int], phases: MutableMapping[int, Phase]
) -> None:
    """Give the phase ``update`` to ops that compute inputs of the update from no gradient.

    An example is the power of a step count. ``phases`` is changed: the phases by the index of the op.

    Ops are visited from the last to the first, so that a chain of ops that leads to the update is marked as a
    whole: each consumer has its phase before its producers are visited.
    """
    for index in reversed(range(len(flow.ops))):
        if index in forward or index in phases:
            continue
        is_read_by_update = any(
            phases.get(consumer) == "update"
            for var in flow.ops[index].outputs
            for consumer in flow.consumers.get(var, ())  # the index of an op
        )
        if is_read_by_update:
            phases[index] = "update"


def _is_marked_backward(op: Op) -> bool:
    """Return whether an op is marked as backward by the conventions of onnxruntime-training."""
    if "__backwardpass" in op.attributes:
        return True
    return bool(op.domain) and op.type.endswith("Grad") and op.type != "Grad"


def _from_marks(program: Program, losses: tuple[VarId, ...], marked: frozenset[int]) -> Phases:
    """Return the phases of a graph in which some ops are marked as backward.

    - The loss is the first of ``losses`` that depends on no marked op, if there is one. The ops that
      it depends on are forward; without a loss, all ops that depend on no marked op.
    - The final gradients are results of marked ops, or of ops that depend on these, which the graph
      returns or an optimizer op reads.
    - The parameters are those that the names of gradients contain (`_parameter_of`).
    """
    flow = program.dataflow
    marked_results = (var for index in marked for var in flow.ops[index].outputs if var)
    not_forward = marked | flow.descendants(marked_results)
    loss = next((var for var in losses if flow.producer[var] not in not_forward), None)
    if loss:
        forward = flow.ancestors((loss,))
    else:
        forward = frozenset(range(len(flow.ops))) - not_forward
    outputs = frozenset(program.body.outputs)
    gradients = tuple(
        var
        for index in sorted(not_forward)
        if flow.ops[index].type not in OPTIMIZERS
        for var in filter(None, flow.ops[index].outputs)
        if var in outputs or _is_read_by_optimizer(flow, var)
    )
    # A gradient whose name contains no parameter adds none: both tuples are lists of their own, not pairs.
    parameters = tuple(filter(None, (_parameter_of(program, name) for name in gradients)))
    return _training_phases(flow, loss, forward, Trained(parameters, gradients))


def _is_read_by_optimizer(flow: Dataflow, var: VarId) -> bool:
    return any(flow.ops[reader].type in OPTIMIZERS for reader in flow.consumers.get(var, ()))


def _parameter_of(program: Program, gradient: VarId) -> VarId | None:
    """Return the graph input or initializer that a gradient is named after; None if none is.

    The gradient of ``weight`` has a name that begins with ``weight_grad`` or ``weight.grad``.
    """
    for suffix in ("_grad", "_Grad", ".grad"):
        for var in program.vars.values():
            is_stored = var.origin in (Origin.INPUT, Origin.WEIGHT)
            if is_stored and gradient.startswith(f"{var.id}{suffix}"):
                return var.id
    return None


def _from_records(
    program: Program,
    losses: tuple[VarId, ...],
    recorded: Mapping[str, str],
) -> Phases:
    """Return the phases that the file records, and derived ones for ops without a record.

    Phases are derived by `_training_phases` from the forward ops and from the final gradients, that is the
    gradients that the update reads or the graph returns.

    Args:
        program: The model.
        losses: The computed values that may be the loss, the likeliest first.
        recorded: Op label -> ``forward``, ``backward`` or ``update``.
    """
    flow = program.dataflow
    recorded_phases = [recorded.get(op.label) for op in flow.ops]
    forward, backward, update = (
        {index for index, phase in enumerate(recorded_phases) if phase == wanted}
        for wanted in ("forward", "backward", "update")
    )
    not_forward = backward | update
    loss = next((var for var in losses if flow.producer[var] not in not_forward), None)
    if loss:  # ops without a record that the loss depends on are forward too
        forward |= flow.ancestors((loss,)) - not_forward
    trained = find_trained(program, forward)
    # If the graph shows no final gradients, they are the backward results that an update reads or the graph returns.
    if not trained.gradients:
        trained = Trained(gradients=_recorded_gradients(program, backward, update))
    derived = _training_phases(flow, loss, forward, trained)
    recorded_phase_of: dict[VarId, Phase] = {
        var: "backward" if index in backward else "update"
        for index in sorted(not_forward)
        for var in flow.ops[index].outputs
        if var
    }
    # Recorded phases replace derived ones. Forward ops, recorded or not, have no entry in either.
    return replace(derived, phase_of={**derived.phase_of, **recorded_phase_of})


def _recorded_gradients(
    program: Program, backward: Collection[int], update: Collection[int]
) -> tuple[VarId, ...]:
    """Return the results of backward ops that the graph returns or an update op reads.

    ``backward`` and ``update`` are op indices.
    """
    flow, outputs = program.dataflow, frozenset(program.body.outputs)
    return tuple(
        var
        for index in sorted(backward)
        for var in flow.ops[index].outputs
        if var in outputs or any(reader in update for reader in flow.consumers.get(var, ()))
    )
