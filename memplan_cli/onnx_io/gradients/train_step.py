"""From a forward model to a training step: forward, backward and update in one graph.

Every trained weight ``w`` becomes an input ``in.w`` and an output ``new.w``; so does the
optimiser's state (``in.w.m``) and the running statistics of batch normalisations. The loss
is an output, ``learning_rate`` and ``step`` are inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from onnx import ModelProto, NodeProto, TensorProto, helper

from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.gradients.differentiate import differentiate, rename
from memplan_cli.onnx_io.gradients.losses import LossFunction, add_loss
from memplan_cli.onnx_io.gradients.optimisers import (
    OPTIMISERS,
    Optimizer,
    Scalars,
    Site,
    shared_scalars,
)
from memplan_cli.onnx_io.gradients.parameters import (
    Parameter,
    candidates,
    choose,
    float_inputs,
)
from memplan_cli.onnx_io.gradients.prepare import prepare
from memplan_cli.onnx_io.gradients.tape import Phase
from memplan_cli.onnx_io.gradients.tensors import live_nodes, names_in, reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ValueInfoProto

    from memplan_cli.onnx_io.gradients.differentiate import Differentiated

Model = ModelProto
"""A parsed model, for callers that may not know onnx."""

LEARNING_RATE = "learning_rate"
STEP = "step"


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
    step gives the gradients in place of new values.
    """

    loss: str | LossFunction
    optimizer: Optimizer | None = field(default_factory=Optimizer)
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    statistics: Statistics = Statistics.BATCH


@dataclass(frozen=True, slots=True)
class TrainStep:
    """A training step, and what to feed it.

    ``parameters`` are trained, ``running`` are updated without gradients; both have inputs
    and outputs. ``state`` lists the optimiser's inputs with the shape of their parameter;
    they start at zero. ``gradients`` maps parameters to tensors of the step.
    """

    model: ModelProto
    loss: str
    parameters: tuple[Parameter, ...]
    running: tuple[Parameter, ...]
    state: Mapping[str, Parameter]
    gradients: Mapping[str, str]


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
    running = _running_statistics(ready, loss, recipe.statistics)
    made = differentiate(ready, loss, [p.name for p in chosen], [o for _, o in running])
    reached = tuple(p for p in chosen if p.name in made.gradients)
    _check_reached(chosen, reached, recipe)
    kept = tuple(p for p, _ in running)
    gradients = {p.name: made.gradients[p.name] for p in reached}
    plan = _Plan(loss, reached, kept, gradients)
    if recipe.optimizer is None:
        return _gradients_only(ready, plan, made)
    return _with_update(ready, plan, made, recipe.optimizer)


@dataclass(frozen=True, slots=True)
class _Plan:
    loss: str
    parameters: tuple[Parameter, ...]
    running: tuple[Parameter, ...]
    gradients: dict[str, str]


def _check_reached(
    chosen: Sequence[Parameter], reached: Sequence[Parameter], recipe: Recipe
) -> None:
    missing = [p.name for p in chosen if p not in reached] if recipe.train else []
    if missing or not reached:
        names = ", ".join(missing[:5]) or "any of the parameters"
        raise SettingsError(f"the loss does not depend on {names}")


def _running_statistics(
    model: ModelProto, loss: str, statistics: Statistics
) -> list[tuple[Parameter, str]]:
    """Put the batch normalisations before the loss in training mode, in place.

    Returns each running statistic that is a weight or a graph input, and its new value.
    """
    if statistics is Statistics.RUNNING:
        return []
    known = {**candidates(model.graph), **float_inputs(model.graph)}
    names, found = names_in(model.graph), list[tuple[Parameter, str]]()
    done: set[str] = set()
    for node in live_nodes(model.graph.node, [loss]):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        _set_training(node)
        for index, name in enumerate(node.input[3:5], 1):
            if name not in known or name in done:
                continue
            while len(node.output) <= index:
                node.output.append("")
            fresh = _unused(known[name].output, names)
            if node.output[index]:
                rename(model.graph.node, {node.output[index]: fresh})
            node.output[index] = fresh
            done.add(name)
            found.append((known[name], fresh))
    return found


def _set_training(node: NodeProto) -> None:
    kept = [a for a in node.attribute if a.name != "training_mode"]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute("training_mode", 1)])


def _unused(wish: str, names: set[str]) -> str:
    name = wish
    while name in names:
        name += "_"
    names.add(name)
    return name


def _gradients_only(model: ModelProto, plan: _Plan, made: Differentiated) -> TrainStep:
    """Give the gradients; a gradient that several parameters share is named for each."""
    tape, outputs = made.tape, dict[str, str]()
    tape.nodes.clear()
    for name, gradient in plan.gradients.items():
        taken = gradient in outputs.values() or gradient in {plan.loss, name}
        known = {out for node in made.nodes for out in node.output}
        outputs[name] = gradient
        if taken or gradient not in known:
            outputs[name] = tape.emit("Identity", gradient)
    nodes = [*made.nodes, *tape.nodes]
    results = {outputs[p.name]: p for p in plan.parameters}
    return _assemble(model, plan, made, _Ends(nodes, results, {}))


def _with_update(
    model: ModelProto, plan: _Plan, made: Differentiated, optimizer: Optimizer
) -> TrainStep:
    """Put each parameter's update right behind its gradient, which then dies."""
    tape, update = made.tape, OPTIMISERS[optimizer.kind]
    tape.phase = Phase.UPDATE
    tape.nodes.clear()
    tape.pool.names.update({LEARNING_RATE, STEP})
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
        rename(tape.nodes, finals)
        results |= dict.fromkeys(finals.values(), parameter)
        state |= dict.fromkeys(names.values(), parameter)
        behind.setdefault(gradient, []).extend(tape.nodes)
    nodes = [*first]
    for node in made.nodes:
        nodes.append(node)
        for name in node.output:
            nodes.extend(behind.pop(name, ()))
    nodes[len(first) : len(first)] = [n for rest in behind.values() for n in rest]
    return _assemble(model, plan, made, _Ends(nodes, results, state))


@dataclass(frozen=True, slots=True)
class _Ends:
    """All nodes in order, the outputs besides the loss, and the optimiser's inputs."""

    nodes: list[NodeProto]
    results: dict[str, Parameter]
    state: dict[str, Parameter]


def _assemble(model: ModelProto, plan: _Plan, made: Differentiated, ends: _Ends) -> TrainStep:
    graph = model.graph
    fed = {p.name: p for p in (*plan.parameters, *plan.running)}
    outputs = dict(ends.results)
    for parameter in plan.running:
        outputs[parameter.output] = parameter
    nodes = [n for n in ends.nodes if not fed.keys() & set(n.output)]
    nodes = live_nodes(nodes, [plan.loss, *outputs])
    rename(nodes, {name: p.input for name, p in fed.items()})
    used = {name for node in nodes for name in reads(node)}
    kept = [t for t in graph.initializer if t.name not in fed and t.name in used]
    inputs = [v for v in graph.input if v.name not in fed]
    loss = made.tape.tensor(plan.loss)
    result = ModelProto()
    result.CopyFrom(model)
    for part in ("node", "initializer", "input", "output", "value_info"):
        result.graph.ClearField(part)
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(kept)
    result.graph.initializer.extend(t for t in made.tape.pool.tensors if t.name in used)
    result.graph.input.extend(_value(p.input, p) for p in fed.values())
    result.graph.input.extend(_value(name, p) for name, p in ends.state.items())
    result.graph.input.extend(inputs)
    if ends.state or made.tape.phase is Phase.UPDATE:
        result.graph.input.append(_scalar(LEARNING_RATE, TensorProto.FLOAT))
        result.graph.input.append(_scalar(STEP, TensorProto.INT64))
    result.graph.output.append(
        helper.make_tensor_value_info(plan.loss, loss.dtype, loss.shape or [])
    )
    result.graph.output.extend(_value(name, p) for name, p in outputs.items())
    result.graph.value_info.extend(_value_infos(made, nodes, {plan.loss, *outputs}))
    gradients = dict(plan.gradients)
    return TrainStep(result, plan.loss, plan.parameters, plan.running, ends.state, gradients)


def _value(name: str, parameter: Parameter) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, parameter.dtype, parameter.sizes)


def _scalar(name: str, dtype: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, [])


def _value_infos(
    made: Differentiated, nodes: Sequence[NodeProto], given: set[str]
) -> list[ValueInfoProto]:
    """Keep the types of forward tensors, and give each gradient that of its tensor."""
    tensors = made.tape.tensors
    known = dict(tensors)
    for name, gradient in made.gradients.items():
        if name in tensors:
            known.setdefault(gradient, tensors[name])
    found = []
    for node in nodes:
        for name in node.output:
            tensor = known.get(name)
            if tensor is not None and tensor.dtype and name not in given:
                found.append(helper.make_tensor_value_info(name, tensor.dtype, tensor.shape))
    return found
