"""The graph of a training step: updates or gradients behind a backward pass, inputs and outputs."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onnx import ModelProto, TensorProto, helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.optimizers import (
    OPTIMIZERS,
    Optimizer,
    UpdateScalars,
    WeightUpdate,
    update_scalars,
)
from memplan_cli.features.training.tape import Phase
from memplan_cli.onnx_io.graph_editor import live_nodes, rename_values
from memplan_cli.onnx_io.traversal import defined, graphs, reads, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import NodeProto, ValueInfoProto

    from memplan_cli.features.training.differentiate import DifferentiatedModel
    from memplan_cli.features.training.parameters import Parameter

LEARNING_RATE = "learning_rate"
STEP = "step"


@dataclass(frozen=True, slots=True)
class TrainedTensors:
    """What a training step computes new values of.

    Attributes:
        loss: the tensor of the loss.
        parameters: the weights that are trained.
        running: running statistics, which are updated without gradients.
        gradients: the gradient of each parameter.
    """

    loss: str
    parameters: tuple[Parameter, ...]
    running: tuple[Parameter, ...]
    gradients: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StepNodes:
    """The nodes of a training step with the inputs and outputs of its update.

    Attributes:
        nodes: all nodes in order.
        outputs: output besides the loss -> the parameter whose type it has.
        state: input of the optimizer's state -> the parameter whose type it has.
        scalars: the inputs for learning rate and step number; empty if the gradients are outputs.
        gradients: the gradient of each parameter.
    """

    nodes: list[NodeProto]
    outputs: dict[str, Parameter]
    state: dict[str, Parameter]
    scalars: tuple[ValueInfoProto, ...]
    gradients: Mapping[str, str]


def gradient_nodes(trained: TrainedTensors, passes: DifferentiatedModel) -> StepNodes:
    """Return a step whose outputs are the gradients.

    A graph output must be computed by a node, and outputs must be distinct. So an Identity copies a
    gradient to a new output ``<parameter>_grad`` in two cases:

    - The gradient is a constant, or it is the loss itself.
    - Several parameters have the same gradient. The one after which `differentiate` named the gradient
      needs no copy.
    """
    tape = passes.tape
    computed = {name for node in passes.nodes for name in node.output} - {trained.loss}
    uses = Counter(trained.gradients.values())
    output_of: dict[str, str] = {}
    for parameter, gradient in trained.gradients.items():
        is_own = uses[gradient] == 1 or gradient == f"{parameter}_grad"
        if gradient in computed and is_own:
            output_of[parameter] = gradient
        else:
            output_of[parameter] = tape.pool.fresh(f"{parameter}_grad")
            tape.copy_to(output_of[parameter], gradient)
    return StepNodes(
        nodes=[*passes.nodes, *tape.take_nodes()],
        outputs={output_of[p.name]: p for p in trained.parameters},
        state={},
        scalars=(),
        gradients=output_of,
    )


def update_nodes(
    trained: TrainedTensors, passes: DifferentiatedModel, optimizer: Optimizer
) -> StepNodes:
    """Return a step whose outputs are the new values of parameters and of the optimizer's state.

    Each parameter's update follows the node that computes its gradient, so that the gradient can be freed early.
    """
    tape, rule = passes.tape, OPTIMIZERS[optimizer.kind]
    tape.phase = Phase.UPDATE
    scalars: dict[int, UpdateScalars] = {}
    for dtype in dict.fromkeys(p.dtype for p in trained.parameters):
        scalars[dtype] = update_scalars(tape, optimizer, LEARNING_RATE, STEP, dtype)
    scalar_nodes = tape.take_nodes()
    updates: dict[str, list[NodeProto]] = {}  # gradient -> the nodes that update by it
    # The step's outputs, and its inputs of optimizer state, each with the parameter whose type and shape it has.
    outputs: dict[str, Parameter] = {}
    state: dict[str, Parameter] = {}
    for parameter in trained.parameters:
        gradient = trained.gradients[parameter.name]
        state_inputs = {kind: f"{parameter.input}.{kind}" for kind in rule.state}
        update = WeightUpdate(parameter.name, gradient, state_inputs, scalars[parameter.dtype])
        new = rule.write(tape, optimizer, update)
        nodes = tape.take_nodes()  # those of this update only
        output_names = {new.weight: parameter.output}
        output_names |= {
            value: f"{parameter.output}.{kind}" for kind, value in new.state.items()
        }
        rename_values(nodes, output_names)
        updates.setdefault(gradient, []).extend(nodes)
        outputs |= dict.fromkeys(output_names.values(), parameter)
        state |= dict.fromkeys(state_inputs.values(), parameter)
    return StepNodes(
        nodes=[*scalar_nodes, *_with_updates(passes.nodes, updates)],
        outputs=outputs,
        state=state,
        scalars=(
            helper.make_tensor_value_info(LEARNING_RATE, TensorProto.FLOAT, []),
            helper.make_tensor_value_info(STEP, TensorProto.INT64, []),
        ),
        gradients=trained.gradients,
    )


def _with_updates(
    nodes: Sequence[NodeProto], updates: Mapping[str, Sequence[NodeProto]]
) -> list[NodeProto]:
    """Return nodes, each followed by the updates that read the gradients it computes.

    ``updates`` has the nodes of updates by gradient. Those by gradients that no node computes, which are
    constants, come first.
    """
    computed = {name for node in nodes for name in node.output}
    result = [
        node
        for gradient, update in updates.items()
        if gradient not in computed
        for node in update
    ]
    for node in nodes:
        result.append(node)
        for name in node.output:
            result.extend(updates.get(name, ()))
    return result


def assemble(
    model: ModelProto, trained: TrainedTensors, passes: DifferentiatedModel, step: StepNodes
) -> ModelProto:
    """Return a training step as a model, without the nodes and weights that it does not need.

    - Each trained weight ``w`` becomes an input ``in.w`` (`Parameter.input`), and so do running statistics.
    - The outputs are the loss, those of ``step`` (new values ``new.w``, or gradients), and the new values of
      running statistics.
    - All other inputs and weights are taken from the forward ``model``, and constants from the tape of
      ``passes``.

    Changes the nodes of ``step`` that are needed: they read ``in.w`` instead of ``w``.

    Raises:
        ModelError: the model uses the name of one of the step's inputs or outputs for another tensor.
    """
    as_inputs = {p.name: p for p in (*trained.parameters, *trained.running)}
    # New running statistics come from forward nodes, so ``step.outputs`` does not have them.
    outputs = {**step.outputs, **{p.output: p for p in trained.running}}
    nodes = live_nodes(step.nodes, [trained.loss, *outputs])
    # The other inputs and weights that these nodes read are those of the model.
    read_names = {name for node in nodes for name in reads(node)} - as_inputs.keys()
    rename_values(nodes, {name: p.input for name, p in as_inputs.items()})
    weights = [*model.graph.initializer, *passes.tape.pool.initializers]
    state_inputs = [
        *(_typed_like(p.input, p) for p in as_inputs.values()),
        *(_typed_like(name, p) for name, p in step.state.items()),
    ]
    model_inputs = [value for value in model.graph.input if value.name in read_names]
    _reject_taken_names([*state_inputs, *step.scalars], outputs, model_inputs, nodes, weights)

    result = deepcopy(model)
    graph = result.graph
    for part in ("node", "initializer", "input", "output", "value_info"):
        graph.ClearField(part)
    graph.node.extend(nodes)
    graph.initializer.extend(tensor for tensor in weights if tensor.name in read_names)
    graph.input.extend([*state_inputs, *model_inputs, *step.scalars])
    loss = passes.tape.tensor(trained.loss)
    graph.output.append(helper.make_tensor_value_info(trained.loss, loss.dtype, loss.shape))
    graph.output.extend(_typed_like(name, p) for name, p in outputs.items())
    graph.value_info.extend(_inner_types(passes, nodes, {trained.loss, *outputs}))
    return result


def _reject_taken_names(
    added_inputs: Iterable[ValueInfoProto],
    added_outputs: Iterable[str],
    model_inputs: Iterable[ValueInfoProto],
    nodes: Iterable[NodeProto],
    weights: Iterable[TensorProto],
) -> None:
    """Raise ModelError if an added input or output has the name of another tensor.

    ``nodes`` are those of the step: one of them computes each added output.
    """
    taken = Counter(value.name for value in (*model_inputs, *weights))
    for node in nodes:
        taken.update(node.output)
        for _, body in subgraphs(node):
            taken.update(name for graph in graphs(body) for name in defined(graph))
    added = [("input", value.name) for value in added_inputs]
    taken.update(name for _, name in added)
    for kind, name in (*added, *(("output", name) for name in added_outputs)):
        if taken[name] > 1:
            raise ModelError(
                f"the training step needs an {kind} {name!r}, and the model uses that name",
                hint="rename it in the model",
            )


def _typed_like(name: str, parameter: Parameter) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, parameter.dtype, parameter.sizes)


def _inner_types(
    passes: DifferentiatedModel, nodes: Sequence[NodeProto], outputs: set[str]
) -> list[ValueInfoProto]:
    """Return the known types of all results of ``nodes`` except ``outputs``."""
    tensors = dict(passes.tape.tensors)
    for name, gradient in passes.gradients.items():
        if name in passes.tape.tensors:  # a tensor's gradient has its type and shape
            tensors.setdefault(gradient, passes.tape.tensors[name])
    types = []
    for node in nodes:
        for name in node.output:
            tensor = tensors.get(name)
            if tensor is not None and tensor.dtype and name not in outputs:
                types.append(helper.make_tensor_value_info(name, tensor.dtype, tensor.shape))
    return types
