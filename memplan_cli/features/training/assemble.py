"""The finished graph of a training step: nodes, inputs, outputs and types put together."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto, TensorProto, helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.tape import Phase
from memplan_cli.onnx_io.graph_editor import live_nodes, rename_values
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import NodeProto, ValueInfoProto

    from memplan_cli.features.training.differentiate import Differentiated
    from memplan_cli.features.training.forward.parameters import Parameter

LEARNING_RATE = "learning_rate"
STEP = "step"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a step trains, what it updates besides, and the gradient of each parameter."""

    loss: str
    parameters: tuple[Parameter, ...]
    running: tuple[Parameter, ...]
    gradients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ends:
    """All nodes in order, the outputs besides the loss, and the optimiser's inputs."""

    nodes: list[NodeProto]
    results: dict[str, Parameter]
    state: dict[str, Parameter]
    gradients: Mapping[str, str]


def assemble(model: ModelProto, plan: Plan, made: Differentiated, ends: Ends) -> ModelProto:
    """Return the step as a model: what nothing reads any more is left out.

    Raises:
        ModelError: a name that the step needs means something else in the model.
    """
    fed = {p.name: p for p in (*plan.parameters, *plan.running)}
    outputs = {**ends.results, **{p.output: p for p in plan.running}}
    nodes = [n for n in ends.nodes if not fed.keys() & set(n.output)]
    nodes = live_nodes(nodes, [plan.loss, *outputs])
    rename_values(nodes, {name: p.input for name, p in fed.items()})
    used = {name for node in nodes for name in reads(node)}
    result = deepcopy(model)
    for part in ("node", "initializer", "input", "output", "value_info"):
        result.graph.ClearField(part)
    graph = result.graph
    graph.node.extend(nodes)
    weights = [*model.graph.initializer, *made.tape.pool.tensors]
    graph.initializer.extend(t for t in weights if t.name in used and t.name not in fed)
    graph.input.extend(_value(p.input, p) for p in fed.values())
    graph.input.extend(_value(name, p) for name, p in ends.state.items())
    graph.input.extend(v for v in model.graph.input if v.name in used and v.name not in fed)
    if made.tape.phase is Phase.UPDATE:
        graph.input.append(helper.make_tensor_value_info(LEARNING_RATE, TensorProto.FLOAT, []))
        graph.input.append(helper.make_tensor_value_info(STEP, TensorProto.INT64, []))
    loss = made.tape.tensor(plan.loss)
    graph.output.append(helper.make_tensor_value_info(plan.loss, loss.dtype, loss.shape or []))
    graph.output.extend(_value(name, p) for name, p in outputs.items())
    graph.value_info.extend(_types(made, nodes, {plan.loss, *outputs}))
    _refuse_two_of_a_name([v.name for v in graph.input], nodes, weights)
    return result


def _refuse_two_of_a_name(
    inputs: Sequence[str], nodes: Iterable[NodeProto], weights: Iterable[TensorProto]
) -> None:
    made = {name for node in nodes for name in node.output} | {t.name for t in weights}
    taken = [n for n in inputs if n in made and n.startswith(("in.", LEARNING_RATE, STEP))]
    twice = [name for name in dict.fromkeys(inputs) if inputs.count(name) > 1]
    for name in (*taken, *twice):
        raise ModelError(
            f"the training step needs an input {name!r}, and the model uses that name",
            hint="rename it in the model",
        )


def _value(name: str, parameter: Parameter) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, parameter.dtype, parameter.sizes)


def _types(
    made: Differentiated, nodes: Sequence[NodeProto], given: set[str]
) -> list[ValueInfoProto]:
    """Keep the types of forward tensors, and give each gradient that of its tensor."""
    known = dict(made.tape.tensors)
    for name, gradient in made.gradients.items():
        if name in made.tape.tensors:
            known.setdefault(gradient, made.tape.tensors[name])
    found = []
    for node in nodes:
        for name in node.output:
            tensor = known.get(name)
            if tensor is not None and tensor.dtype and name not in given:
                found.append(helper.make_tensor_value_info(name, tensor.dtype, tensor.shape))
    return found
