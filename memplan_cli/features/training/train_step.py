"""From a forward model to a training step: forward, backward and update in one graph.

Every trained weight ``w`` becomes an input ``in.w`` and an output ``new.w``; so does the
optimizer's state (``in.w.m``) and the running statistics of batch normalizations. The loss
is an output, ``learning_rate`` and ``step`` are inputs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from onnx import ModelProto, helper

from memplan_cli.core.json_types import Count  # noqa: TC001 - a type to read by
from memplan_cli.errors import SettingsError
from memplan_cli.features.training.assemble import (
    TrainedTensors,
    assemble,
    gradient_nodes,
    update_nodes,
)
from memplan_cli.features.training.differentiate import differentiate
from memplan_cli.features.training.losses import LossFunction, add_loss
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.parameters import (
    Parameter,
    float_inputs,
    float_weights,
    select_parameters,
)
from memplan_cli.features.training.prepare import prepare
from memplan_cli.features.training.rules import RULES
from memplan_cli.onnx_io.graph_editor import fresh_names, live_nodes, rename_values
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from memplan_cli.features.training.tape import Rule


class Statistics(Enum):
    """The mean and variance that batch normalizations use."""

    BATCH = "batch"
    """Those of the batch; the running ones are updated."""
    RUNNING = "running"
    """The running ones, which stay unchanged."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train a model.

    Attributes:
        loss: the name of the loss tensor, or the loss function to append to the model.
        optimizer: the update of the weights; None: the step outputs gradients instead.
        train: names and globs of the weights to train; empty: see `select_parameters`.
        freeze: names and globs of weights that are not trained.
        statistics: which statistics batch normalizations use.
        rules: gradient rules by operator, in addition to or instead of memplan's own.
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

    Attributes:
        model: the step as a model.
        loss: its output with the loss.
        parameters: trained weights; each has an input and an output of the step.
        running: statistics that are updated without gradients; each has an input and an output.
        state: inputs of the optimizer's state, each with the parameter whose shape it has. Their
            first values are zeros.
        gradients: parameter -> tensor of the step with its gradient.
        fixed: float weights of rank 1 or more that the model reads and that are not updated, and
            the reason for each.
        shared: parameters that several nodes read, and the number of these nodes.
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
    """Return the training step of a forward model, which is not changed.

    Raises:
        SettingsError: the recipe names something that the model does not have, or trains
            nothing that the loss depends on.
        NoRuleError: an operator between a parameter and the loss has no gradient rule.
        ModelError: the model cannot be converted, or a shape is missing.
    """
    forward = prepare(model)
    loss = recipe.loss
    if isinstance(loss, LossFunction):
        loss = add_loss(forward, loss)
    selection = select_parameters(forward.graph, recipe.train, recipe.freeze)
    selected = selection.parameters
    running_statistics: tuple[Parameter, ...] = ()
    if recipe.statistics is Statistics.BATCH:
        running_statistics = _use_batch_statistics(forward, loss, selected)
    # Counted before `differentiate` changes the nodes. An If reads the captures of its branches.
    readers = Counter(name for node in forward.graph.node for name in set(reads(node)))

    passes = differentiate(
        forward,
        loss,
        [p.name for p in selected],
        [p.output for p in running_statistics],
        {**RULES, **recipe.rules},
    )
    unreached = [p.name for p in selected if p.name not in passes.gradients]
    _require_gradients(selected, unreached, recipe)
    parameters = tuple(p for p in selected if p.name in passes.gradients)
    gradients = {p.name: passes.gradients[p.name] for p in parameters}
    trained = TrainedTensors(loss, parameters, running_statistics, gradients)
    if recipe.optimizer is None:
        step = gradient_nodes(trained, passes)
    else:
        step = update_nodes(trained, passes, recipe.optimizer)

    reasons = dict(selection.not_trained)
    reasons |= dict.fromkeys(unreached, "the loss does not depend on it")
    return TrainStep(
        model=assemble(forward, trained, passes, step),
        loss=loss,
        parameters=parameters,
        running=running_statistics,
        state=step.state,
        gradients=step.gradients,
        fixed=_fixed_weights(reasons, (*parameters, *running_statistics), readers),
        shared={p.name: readers[p.name] for p in parameters if readers[p.name] > 1},
    )


def _fixed_weights(
    untrained: Mapping[str, str], updated: Sequence[Parameter], readers: Counter[str]
) -> dict[str, str]:
    """Return the untrained weights that nodes read and the step does not update, each with its reason.

    Running statistics are untrained, but may be updated under a new name. So updated weights are known by
    their name in the model (`Parameter.origin`).
    """
    origins = {parameter.origin for parameter in updated}
    return {n: why for n, why in untrained.items() if n not in origins and readers[n] > 0}


def _require_gradients(
    selected: Sequence[Parameter], unreached: Sequence[str], recipe: Recipe
) -> None:
    """Raise SettingsError if the loss depends on too few of the selected parameters.

    All weights that the user names must be trained. Without names, one trained weight is enough.
    ``unreached`` are the names of the parameters on which the loss does not depend.
    """
    if recipe.train and unreached:
        raise SettingsError(f"the loss does not depend on {', '.join(unreached[:5])}")
    if len(unreached) == len(selected):
        raise SettingsError("the loss does not depend on any of the parameters")


def _use_batch_statistics(
    model: ModelProto, loss: str, trained: Sequence[Parameter]
) -> tuple[Parameter, ...]:
    """Set the batch normalizations before the loss to training mode, in place; return their running statistics.

    The running mean and variance of a node are its inputs 3 and 4. Their new values, outputs 1 and 2, become
    outputs of the step (`Parameter.output`).
    """
    known = {**float_weights(model.graph), **float_inputs(model.graph)}
    names = fresh_names(model)
    updated = {parameter.name for parameter in trained}  # what has a new value already
    running: list[Parameter] = []
    for node in live_nodes(model.graph.node, [loss]):
        if node.op_type != "BatchNormalization" or node.domain:
            continue
        _set_training_mode(node)
        for index, kind in ((1, "running_mean"), (2, "running_var")):
            statistic = known.get(node.input[index + 2])
            if statistic is None:  # computed by nodes, so that no input could take a new value
                continue
            # The statistic of another node, or a trained weight too: this node gets a copy of its own.
            if statistic.name in updated:
                name = names.fresh(f"{node.name or node.output[0]}.{kind}")
                statistic = _separate_statistic(model, node, index, statistic, name)
            _set_output_name(model, node, index, statistic.output)
            updated.add(statistic.name)
            running.append(statistic)
    return tuple(running)


def _set_output_name(model: ModelProto, node: NodeProto, index: int, name: str) -> None:
    """Rename an output of a node, also where other nodes read it, in place. An omitted output gets the name.

    Even an output of the model is renamed: the training step made of it gets outputs of its own.
    """
    if node.output[index]:
        rename_values(model.graph.node, {node.output[index]: name})
    node.output[index] = name


def _set_training_mode(node: NodeProto) -> None:
    """Let a BatchNormalization use the statistics of the batch, and give it three outputs, in place.

    Outputs that are added are omitted ones, with the empty name.
    """
    others = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute("training_mode", 1)])
    node.output.extend([""] * (3 - len(node.output)))


def _separate_statistic(
    model: ModelProto, node: NodeProto, index: int, shared: Parameter, name: str
) -> Parameter:
    """Give a BatchNormalization a running mean or variance of its own, the new graph input ``name``; return it.

    The node read ``shared`` so far, which another node or the optimizer updates: exporters store equal initializers
    once. ``index`` is the node's output with the new value: 1 for the mean, 2 for the variance.
    """
    node.input[index + 2] = name  # input 3 is the mean, input 4 the variance
    model.graph.input.append(helper.make_tensor_value_info(name, shared.dtype, shared.sizes))
    return Parameter(name, shared.dtype, shared.sizes, source=shared.name)
