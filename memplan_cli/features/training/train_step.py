"""From a forward model to a training step: forward, backward and update in one graph.

Every trained weight ``w`` becomes an input ``in.w`` and an output ``new.w``; so does the
optimiser's state (``in.w.m``) and the running statistics of batch normalisations. The loss
is an output, ``learning_rate`` and ``step`` are inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from onnx import ModelProto, NodeProto, helper

from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.assemble import LEARNING_RATE, STEP, Ends, Plan, assemble
from memplan_cli.features.training.differentiate import differentiate
from memplan_cli.features.training.forward.parameters import (
    Parameter,
    candidates,
    choose,
    float_inputs,
    left_out,
)
from memplan_cli.features.training.forward.prepare import prepare
from memplan_cli.features.training.losses import LossFunction, add_loss
from memplan_cli.features.training.optimizers import (
    OPTIMISERS,
    Optimizer,
    Scalars,
    Site,
    shared_scalars,
)
from memplan_cli.features.training.rules import RULES
from memplan_cli.features.training.tape import Phase
from memplan_cli.onnx_io.graph_editor import FreshNames, live_nodes, rename_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.features.training.differentiate import Differentiated
    from memplan_cli.features.training.tape import Rule

Model = ModelProto
"""A parsed model, for callers that may not know onnx."""


class Statistics(Enum):
    """What batch normalisations normalise by."""

    BATCH = "batch"
    """The mean and variance of the batch; the running ones are updated."""
    RUNNING = "running"
    """The running mean and variance, which stay as they are."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train a model.

    ``loss`` names a tensor or says how to make one. ``train`` and ``freeze`` are names and
    globs of weights; without ``train``, all that operators learn. Without an optimizer the
    step gives the gradients in place of new values. ``rules`` are gradient rules besides
    memplan's own, by operator.
    """

    loss: str | LossFunction
    optimizer: Optimizer | None = field(default_factory=Optimizer)
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    statistics: Statistics = Statistics.BATCH
    rules: Mapping[str, Rule] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A training step, and what to feed it.

    ``parameters`` are trained, ``running`` are updated without gradients; both have inputs
    and outputs. ``state`` lists the optimiser's inputs with the shape of their parameter;
    they start at zero. ``gradients`` maps parameters to tensors of the step. ``fixed`` says
    of each other float weight of rank 1 or more that is read why it stays as it is; ``shared``
    has the parameters that several nodes read, with how many.
    """

    model: ModelProto
    loss: str
    parameters: tuple[Parameter, ...]
    running: tuple[Parameter, ...]
    state: Mapping[str, Parameter]
    gradients: Mapping[str, str]
    fixed: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, Count] = field(default_factory=dict)


def make_train_step(model: ModelProto, recipe: Recipe) -> TrainStep:
    """Turn a forward model into a training step; the model itself is not changed.

    Raises:
        SettingsError: the recipe names something that the model does not have, or trains
            nothing that the loss depends on.
        NoRuleError: an operator between a parameter and the loss has no gradient rule.
        ModelError: the model cannot be converted, or a shape is missing.
    """
    ready = prepare(model)
    loss = recipe.loss
    if isinstance(loss, LossFunction):
        loss = add_loss(ready, loss)
    chosen = choose(ready.graph, recipe.train, recipe.freeze)
    readers = Counter(name for node in ready.graph.node for name in set(node.input))
    running = _running_statistics(ready, loss, recipe.statistics, chosen)
    names, results = [p.name for p in chosen], [o for _, o in running]
    made = differentiate(ready, loss, names, results, {**RULES, **recipe.rules})
    reached = tuple(p for p in chosen if p.name in made.gradients)
    _check_reached(chosen, reached, recipe)
    kept = tuple(p for p, _ in running)
    gradients = {p.name: made.gradients[p.name] for p in reached}
    plan = Plan(loss, reached, kept, gradients)
    if recipe.optimizer is None:
        ends = _gradients_only(plan, made)
    else:
        ends = _with_update(plan, made, recipe.optimizer)
    fixed = left_out(ready.graph, recipe.train, recipe.freeze)
    fixed |= {p.name: _NOT_REACHED for p in chosen if p.name not in made.gradients}
    updated = {parameter.origin for parameter in (*reached, *kept)}
    fixed = {name: why for name, why in fixed.items() if name not in updated and readers[name]}
    shared = {p.name: readers[p.name] for p in reached if readers[p.name] > 1}
    step = assemble(ready, plan, made, ends)
    return TrainStep(step, loss, reached, kept, ends.state, ends.gradients, fixed, shared)


_NOT_REACHED = "the loss does not depend on it"


def _check_reached(
    chosen: Sequence[Parameter], reached: Sequence[Parameter], recipe: Recipe
) -> None:
    missing = [p.name for p in chosen if p not in reached] if recipe.train else []
    if missing or not reached:
        names = ", ".join(missing[:5]) or "any of the parameters"
        raise SettingsError(f"the loss does not depend on {names}")


def _running_statistics(
    model: ModelProto, loss: str, statistics: Statistics, trained: Sequence[Parameter]
) -> list[tuple[Parameter, str]]:
    """Put the batch normalisations before the loss in training mode, in place.

    Returns each running statistic that is a weight or a graph input, and its new value.
    """
    if statistics is Statistics.RUNNING:
        return []
    known = {**candidates(model.graph), **float_inputs(model.graph)}
    names, taken = FreshNames.of(model), {parameter.name for parameter in trained}
    found: list[tuple[Parameter, str]] = []
    for node in live_nodes(model.graph.node, [loss]):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        _set_training(node)
        while len(node.output) < 3:
            node.output.append("")
        for index in (1, 2):
            if node.input[index + 2] not in known:
                continue
            old = known[node.input[index + 2]]
            if old.name in taken:
                old = _own_statistic(model, node, index, (old, names))
            taken.add(old.name)
            if node.output[index]:
                rename_values(model.graph.node, {node.output[index]: old.output})
            node.output[index] = old.output
            found.append((old, old.output))
    return found


def _own_statistic(
    model: ModelProto, node: NodeProto, index: int, given: tuple[Parameter, FreshNames]
) -> Parameter:
    """Give a node a statistic of its own where the file stores equal weights once."""
    old, names = given
    wish = f"{node.name or node.output[0]}.{('running_mean', 'running_var')[index - 1]}"
    name = names.fresh(wish)
    node.input[index + 2] = name
    model.graph.input.append(helper.make_tensor_value_info(name, old.dtype, old.sizes))
    return Parameter(name, old.dtype, old.sizes, old.name)


def _set_training(node: NodeProto) -> None:
    kept = [a for a in node.attribute if a.name != "training_mode"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])


def _gradients_only(plan: Plan, made: Differentiated) -> Ends:
    """Give the gradients; a gradient that several parameters share is named for each."""
    tape, outputs = made.tape, dict[str, str]()
    tape.nodes.clear()
    known = {name for node in made.nodes for name in node.output} - {plan.loss}
    uses = Counter(plan.gradients.values())
    for name, gradient in plan.gradients.items():
        own = uses[gradient] == 1 or gradient == f"{name}_grad"
        if gradient in known and own:
            outputs[name] = gradient
        else:
            outputs[name] = tape.pool.fresh(f"{name}_grad")
            copy = tape.make("Identity", [gradient])
            copy.output[0] = outputs[name]
            tape.nodes.append(copy)
    nodes = [*made.nodes, *tape.nodes]
    return Ends(nodes, {outputs[p.name]: p for p in plan.parameters}, {}, outputs)


def _with_update(plan: Plan, made: Differentiated, optimizer: Optimizer) -> Ends:
    """Put each parameter's update right behind its gradient, which is then freed."""
    tape, update = made.tape, OPTIMISERS[optimizer.kind]
    tape.phase = Phase.UPDATE
    tape.nodes.clear()
    scalars: dict[int, Scalars] = {}
    for dtype in dict.fromkeys(p.dtype for p in plan.parameters):
        scalars[dtype] = shared_scalars(tape, optimizer, (LEARNING_RATE, STEP), dtype)
    first = list(tape.nodes)
    behind: dict[str, list[NodeProto]] = {}
    results: dict[str, Parameter] = {}
    state: dict[str, Parameter] = {}
    for parameter in plan.parameters:
        tape.nodes.clear()
        names = {kind: f"{parameter.input}.{kind}" for kind in update.state}
        gradient = plan.gradients[parameter.name]
        site = Site(parameter.name, gradient, names)
        new = update.write(tape, optimizer, site, scalars[parameter.dtype])
        finals = {out: f"{parameter.output}{f'.{k}' if k else ''}" for k, out in new.items()}
        rename_values(tape.nodes, finals)
        results |= dict.fromkeys(finals.values(), parameter)
        state |= dict.fromkeys(names.values(), parameter)
        behind.setdefault(gradient, []).extend(tape.nodes)
    nodes = [*first]
    for node in made.nodes:
        nodes.append(node)
        for name in node.output:
            nodes.extend(behind.pop(name, ()))
    nodes[len(first) : len(first)] = [n for rest in behind.values() for n in rest]
    return Ends(nodes, results, state, plan.gradients)
