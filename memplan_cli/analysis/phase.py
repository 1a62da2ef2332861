"""Phases of ops: forward, backward, or update of parameters, read off the structure.

Forward is what the loss needs, the loss included; update is what needs a final parameter
gradient; backward is what these gradients need beyond the forward part. Not "what needs the
loss": a gradient may read log-probabilities and never the loss itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal

from memplan_cli.analysis.gradients import (
    OPTIMISERS,
    Trained,
    elements,
    find_trained,
    is_float,
)
from memplan_cli.core.program import Dataflow, Origin
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.core.program import Op, Program, VarId

Kind = Literal["train", "test"]
Part = Literal["forward", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Phases:
    """The parts of a program, and what it trains; of an inference graph all is forward.

    ``of`` holds the part of every op that is not forward, by each of its outputs, so it
    stays true when ops change places.
    """

    kind: Kind = "test"
    loss: VarId | None = None
    of: Mapping[VarId, Part] = field(default_factory=dict)
    parameters: tuple[VarId, ...] = ()
    gradients: tuple[VarId, ...] = ()
    """The final ones: what the update reads, or what the graph gives."""

    def part(self, op: Op) -> Part:
        """Return the part of an op of the top block."""
        for var in op.outputs:
            if var in self.of:
                return self.of[var]
        return "forward"


def find_phases(
    program: Program,
    *,
    loss: str | None = None,
    recorded: Mapping[str, str] | None = None,
) -> Phases:
    """Return the parts of a program.

    The loss is the one named, else a scalar float output with ``loss`` in its name, else
    another scalar float output; and the graph trains only if some output is provably a
    gradient of it or an updated parameter, or ops of an onnxruntime-training graph say so.

    Args:
        program: The model; only its top block has phases.
        loss: The name of the value that is minimised; None to find it.
        recorded: Parts written into the file by the program that made it, by op label.

    Raises:
        SettingsError: no op of the top block makes a value of the loss's name.
    """
    flow = program.dataflow
    candidates = (_named(program, loss),) if loss else tuple(_losses(program))
    if recorded and not {"backward", "update"}.isdisjoint(recorded.values()):
        return _from_records(program, candidates, recorded)
    for candidate in candidates:
        forward = flow.ancestors((candidate,))
        is_known = bool(loss) or "loss" in candidate.lower()
        trained = find_trained(program, forward, "known" if is_known else "guessed")
        if trained.gradients:
            return _train(flow, candidate, forward, trained)
    hinted = frozenset(at for at, op in enumerate(flow.ops) if _is_hinted(op))
    if hinted:
        return _from_hints(program, candidates, hinted)
    named = (var for var in candidates if loss or "loss" in var.lower())
    return Phases(loss=next(named, None))


def _named(program: Program, loss: str) -> VarId:
    producer = program.dataflow.producer
    found = next((var for var in producer if program.vars[var].name == loss), None)
    if found is not None:
        return found
    names = [program.vars[var].name for var in producer]
    near = get_close_matches(loss, names, 3, 0.0)
    raise SettingsError(
        f"the loss {loss!r} is no value that the model computes",
        hint=f"the nearest names are {', '.join(near)}" if near else "it computes none",
    )


def _losses(program: Program) -> Iterator[VarId]:
    """Yield the outputs that may be the loss, likely ones first, whole ones before parts."""
    flow = program.dataflow
    scalars = [
        var
        for var in dict.fromkeys(program.body.outputs)
        if var in flow.producer
        and is_float(program.vars[var])
        and elements(program.vars[var]) == 1
    ]
    depth = {var: len(flow.ancestors((var,))) for var in scalars} if scalars[1:] else {}
    yield from sorted(scalars, key=lambda var: ("loss" not in var.lower(), -depth.get(var, 0)))


def _train(
    flow: Dataflow, loss: VarId | None, forward: Collection[int], trained: Trained
) -> Phases:
    """Divide what is not forward, given the gradients between backward and update."""
    needed = flow.ancestors(trained.gradients)
    after = flow.descendants(trained.gradients)
    parts: dict[int, Part] = {}
    backward: set[VarId] = set()
    for at, op in enumerate(flow.ops):
        if at in forward:
            continue
        if at in after:
            parts[at] = "update"
        elif at in needed or not backward.isdisjoint(flow.reads[at]):
            parts[at] = "backward"
            backward.update(op.outputs)
    # What only the update reads is part of it: a step count's power, a decayed momentum.
    # The others, running statistics and metrics, need nothing but the forward part.
    for at in range(len(flow.ops) - 1, -1, -1):
        if at in forward or at in parts:
            continue
        below = (r for var in flow.ops[at].outputs for r in flow.consumers.get(var, ()))
        if "update" in map(parts.get, below):
            parts[at] = "update"
    of = {var: part for at, part in parts.items() for var in flow.ops[at].outputs if var}
    return Phases("train", loss, of, trained.parameters, trained.gradients)


def _is_hinted(op: Op) -> bool:
    """Whether onnxruntime-training's vocabulary calls an op backward."""
    if "__backwardpass" in op.attributes:
        return True
    return bool(op.domain) and op.type.endswith("Grad") and op.type != "Grad"


def _from_hints(program: Program, losses: tuple[VarId, ...], hinted: frozenset[int]) -> Phases:
    """Divide a graph whose backward ops are named as such, and may have unknown shapes."""
    flow = program.dataflow
    behind = flow.descendants(var for at in hinted for var in flow.ops[at].outputs)
    loss = next((var for var in losses if flow.producer[var] not in hinted | behind), None)
    forward = (
        flow.ancestors((loss,)) if loss else frozenset(range(len(flow.ops))) - hinted - behind
    )
    results = frozenset(program.body.outputs)
    gradients: list[VarId] = []
    parameters: list[VarId] = []
    for at in sorted((hinted | behind) - forward):
        if flow.ops[at].type in OPTIMISERS:
            continue
        for var in filter(None, flow.ops[at].outputs):
            consumers = [flow.ops[consumer].type for consumer in flow.consumers.get(var, ())]
            if var in results or not OPTIMISERS.isdisjoint(consumers):
                gradients.append(var)
                parameters.extend(_parameter_of(program, var))
    return _train(flow, loss, forward, Trained(tuple(parameters), tuple(gradients)))


def _parameter_of(program: Program, gradient: VarId) -> Iterator[VarId]:
    """Yield the given tensor that a gradient is named after."""
    for suffix in ("_grad", "_Grad", ".grad"):
        for var in program.vars.values():
            given = var.origin in (Origin.INPUT, Origin.WEIGHT)
            if given and gradient.startswith(f"{var.id}{suffix}"):
                yield var.id
                return


def _from_records(
    program: Program,
    losses: tuple[VarId, ...],
    recorded: Mapping[str, str],
) -> Phases:
    """Believe the file; what an op without a record is follows from its neighbours."""
    flow = program.dataflow
    backward = {at for at, op in enumerate(flow.ops) if recorded.get(op.label) == "backward"}
    update = {at for at, op in enumerate(flow.ops) if recorded.get(op.label) == "update"}
    beyond = backward | update
    loss = next((var for var in losses if flow.producer[var] not in beyond), None)
    forward = {at for at, op in enumerate(flow.ops) if recorded.get(op.label) == "forward"}
    forward |= flow.ancestors((loss,)) - beyond if loss else frozenset()
    results = frozenset(program.body.outputs)
    made = (
        var
        for at in sorted(backward)
        for var in flow.ops[at].outputs
        if var in results or not update.isdisjoint(flow.consumers.get(var, ()))
    )
    trained = find_trained(program, forward, "known")
    phases = _train(
        flow, loss, forward, trained if trained.gradients else Trained((), tuple(made))
    )
    of = dict(phases.of)
    for at, op in enumerate(flow.ops):
        part: Part | None = (
            "backward" if at in backward else "update" if at in update else None
        )
        of.update(dict.fromkeys(filter(None, op.outputs), part) if part else {})
        if at in forward:
            for var in op.outputs:
                of.pop(var, None)
    return Phases("train", loss, of, trained.parameters, phases.gradients)
