"""From a forward model to one that also computes the gradients of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.errors import SettingsError
from memplan_cli.features.training.backward import sweep
from memplan_cli.features.training.expansion.expand import expand
from memplan_cli.features.training.forward.tensors import (
    constant_values,
    infer_tensors,
)
from memplan_cli.features.training.lean import keep_less
from memplan_cli.features.training.rules import RULES
from memplan_cli.features.training.tape import Phase, Pool, Tape, mark
from memplan_cli.onnx_io.graph_editor import live_nodes, names_in, rename_values
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.shapes.workarounds import is_generated_name
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import ModelProto, NodeProto

    from memplan_cli.features.training.tape import Rule


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A forward pass and the gradients of its loss, as nodes in order, phases marked.

    ``gradients`` maps tensors to their gradients; ``tape`` can write further nodes.
    """

    nodes: list[NodeProto]
    gradients: Mapping[str, str]
    tape: Tape


def differentiate(
    model: ModelProto,
    loss: str,
    parameters: Sequence[str],
    results: Sequence[str] = (),
    rules: Mapping[str, Rule] = RULES,
) -> Differentiated:
    """Write the backward pass of a prepared model.

    Args:
        model: Changed in place: operators are expanded, nodes given further outputs.
        loss: A tensor with one element.
        parameters: The tensors whose gradients are wanted.
        results: What the forward pass has to give besides the loss.
        rules: The gradient rules by operator.

    Raises:
        SettingsError: the loss does not exist or has several elements.
        NoRuleError: an operator on the way has no rule.
    """
    expand(model, loss, parameters, rules)
    graph = model.graph
    nodes = live_nodes(graph.node, [loss, *results])
    if loss not in {name for node in nodes for name in node.output}:
        made = [name for node in graph.node for name in node.output if name]
        near = get_close_matches(loss, made, n=3) or [value.name for value in graph.output]
        raise SettingsError(
            f"the model computes no tensor {loss!r} to be the loss",
            hint=f"the nearest names are {', '.join(near[:3])}",
        )
    tensors = infer_tensors(model)
    pool = Pool(names_in(graph))
    tape = Tape(
        tensors, constant_values(graph), pool, opset=standard_opset(model), rules=rules
    )
    path = live_nodes(nodes, [loss])
    done = sweep(path, {loss: _one(tape, loss)}, parameters, tape)
    forward = _with_additions(nodes, tape, [v.name for v in graph.input])
    known = [name for name in parameters if name in done]
    backward = live_nodes(tape.nodes, [done[name] for name in known])
    backward = keep_less(forward, backward, [loss, *results], tape)
    forward = live_nodes(forward, [loss, *results, *_read_by(backward)])
    for node in forward:
        mark(node, Phase.FORWARD)
    names = _gradient_names(done, backward, tape.pool)
    rename_values(backward, names)
    gradients = {name: names.get(g, g) for name, g in done.items()}
    return Differentiated([*forward, *backward], gradients, tape)


def _read_by(nodes: Iterable[NodeProto]) -> list[str]:
    return [name for node in nodes for name in reads(node)]


def _one(tape: Tape, loss: str) -> str:
    """The gradient of the loss by itself."""
    tensor = tape.tensor(loss)
    dims = [d for d in tensor.shape or () if d is not None and not is_generated_name(str(d))]
    if any(dim != 1 for dim in dims):
        raise SettingsError(
            f"the loss {loss!r} has shape {list(tensor.shape or ())}; a loss is one number",
            hint="reduce it to a mean or a sum, or let --loss-fn make one",
        )
    sizes = tensor.sizes
    if sizes is None:
        return tape.emit("Expand", tape.scalar(1, loss), tape.shape_of(loss))
    return tape.constant(np.ones(sizes), tape.dtype(loss))


def _with_additions(
    nodes: Sequence[NodeProto], tape: Tape, given: Sequence[str]
) -> list[NodeProto]:
    """Put in what the rules added to the forward pass, each behind what it reads."""
    found: list[NodeProto] = []
    for name in given:
        found.extend(tape.after.get(name, ()))
    for node in nodes:
        replacement = tape.instead.get(node.output[0], [node])
        for new in replacement:
            found.append(new)
            for name in new.output:
                found.extend(tape.after.get(name, ()))
    return found


def _gradient_names(
    done: Mapping[str, str], nodes: Sequence[NodeProto], pool: Pool
) -> dict[str, str]:
    """Name each gradient after its tensor; one shared by several, after the last."""
    made = {name for node in nodes for name in node.output}
    names: dict[str, str] = {}
    for tensor, gradient in reversed(list(done.items())):
        if gradient in made and gradient not in names:
            names[gradient] = pool.fresh(f"{tensor}_grad")
    return names
