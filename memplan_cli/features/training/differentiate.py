"""A forward pass and its backward pass, from a forward model and the name of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.errors import SettingsError
from memplan_cli.features.training.backward import sweep
from memplan_cli.features.training.cheap_tensors import recompute_cheap_tensors
from memplan_cli.features.training.expansion.expand import expand
from memplan_cli.features.training.tape import ConstantPool, Phase, Tape, set_phase
from memplan_cli.features.training.tensors import constant_values
from memplan_cli.onnx_io.graph_editor import live_nodes, names_in, rename_values
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.shapes.generated_names import is_generated_name
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

    from memplan_cli.features.training.tape import Rule


@dataclass(frozen=True, slots=True)
class DifferentiatedModel:
    """A forward pass and the gradients of its loss.

    Attributes:
        nodes: forward and backward nodes in order, each with its phase in its metadata.
        gradients: tensor -> its gradient.
        tape: for further nodes, of which it has none yet; it has the types and constants of the new
            tensors.
    """

    nodes: list[NodeProto]
    gradients: Mapping[str, str]
    tape: Tape


def differentiate(
    model: ModelProto,
    loss: str,
    parameters: Sequence[str],
    results: Sequence[str],
    rules: Mapping[str, Rule],
) -> DifferentiatedModel:
    """Return the forward and backward pass of a prepared model.

    Args:
        model: Changed in place: operators are expanded, nodes get further outputs.
        loss: A tensor with one element.
        parameters: The tensors whose gradients are needed.
        results: Tensors that the forward pass computes besides the loss.
        rules: The gradient rules by operator.

    Raises:
        SettingsError: the loss does not exist or has several elements.
        NoRuleError: an operator between a parameter and the loss has no rule.
    """
    # Operators without a rule become operators that have one.
    tensors = expand(model, loss, parameters, rules)
    graph = model.graph
    nodes = live_nodes(graph.node, [loss, *results])
    if not any(loss in node.output for node in nodes):
        raise _unknown_loss(loss, graph)
    tape = Tape(
        tensors,
        constant_values(graph),
        ConstantPool(names_in(graph)),
        opset=standard_opset(model),
        rules=rules,
    )
    # Gradient rules add the backward nodes to the tape. They may also add or replace forward nodes there.
    seed = _gradient_of_loss(tape, loss)
    gradients = sweep(live_nodes(nodes, [loss]), {loss: seed}, parameters, tape)
    forward = _forward_nodes(graph, nodes, tape)
    # Other gradients are needed only as far as those of the parameters depend on them.
    needed = [gradients[name] for name in parameters if name in gradients]
    backward = live_nodes(tape.take_nodes(), needed)
    backward = recompute_cheap_tensors(forward, backward, [loss, *results], tape)
    read_by_backward = [name for node in backward for name in reads(node)]
    forward = live_nodes(forward, [loss, *results, *read_by_backward])
    for node in forward:  # the tape has set the phase of the backward nodes
        set_phase(node, Phase.FORWARD)
    gradients = _rename_gradients(gradients, backward, tape.pool)
    return DifferentiatedModel([*forward, *backward], gradients, tape)


def _forward_nodes(
    graph: GraphProto, nodes: Sequence[NodeProto], tape: Tape
) -> list[NodeProto]:
    """Return the nodes of a forward pass with the replacements and additions of a tape.

    Additions that read graph inputs come first: there is no producer that they could follow.
    """
    additions = tape.forward_additions
    result = [node for value in graph.input for node in additions.get(value.name, ())]
    for node in nodes:
        for new in tape.replacements.get(node.output[0], [node]):
            result.append(new)
            for name in new.output:
                result.extend(additions.get(name, ()))
    return result


def _unknown_loss(loss: str, graph: GraphProto) -> SettingsError:
    """Return the error for a loss that no node computes, with the names of up to three tensors like it."""
    computed = [name for node in graph.node for name in node.output if name]
    # Without similar names, those of graph outputs are given: the loss is usually one of them.
    near = get_close_matches(loss, computed, n=3) or [value.name for value in graph.output]
    return SettingsError(
        f"the model computes no tensor {loss!r}, which was named as the loss",
        hint=f"the nearest names are {', '.join(near[:3])}",
    )


def _gradient_of_loss(tape: Tape, loss: str) -> str:
    """Return the gradient of the loss with respect to itself: 1, in the shape of the loss.

    Raises:
        SettingsError: a dim of the loss is a number other than 1, or a symbol of the model.
    """
    tensor = tape.tensor(loss)
    # Dims without a name, or with one that shape inference invented, may be 1 in a run.
    dims = [d for d in tensor.shape or () if d is not None and not is_generated_name(str(d))]
    if any(dim != 1 for dim in dims):
        raise SettingsError(
            f"the loss {loss!r} has shape {list(tensor.shape or ())}; a loss is one number",
            hint="reduce it to a mean or a sum, or let --loss-fn make one",
        )
    if tensor.sizes is None:
        return tape.emit("Expand", tape.scalar(1, loss), tape.shape_of(loss))
    return tape.constant(np.ones(tensor.sizes), tape.dtype(loss))


def _rename_gradients(
    gradients: Mapping[str, str], backward: Collection[NodeProto], pool: ConstantPool
) -> dict[str, str]:
    """Rename gradients to ``<tensor>_grad`` in the backward nodes; return the gradients by tensor again.

    Gradients that these nodes do not compute keep their names. A gradient of several tensors is named
    after the one that comes first in the forward pass.
    """
    computed = {name for node in backward for name in node.output}
    names: dict[str, str] = {}
    # The gradients are in the order of the backward pass.
    for tensor, gradient in reversed(list(gradients.items())):
        if gradient in computed and gradient not in names:
            names[gradient] = pool.fresh(f"{tensor}_grad")
    rename_values(backward, names)
    return {tensor: names.get(gradient, gradient) for tensor, gradient in gradients.items()}
