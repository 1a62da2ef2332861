"""Subgraphs and functions copied into the graph around them: Loop, Scan, operators with a body."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.prepare import OLDEST_OPSET
from memplan_cli.features.training.tape import Phase, set_phase
from memplan_cli.onnx_io.constants import constant_tensors, named_constant
from memplan_cli.onnx_io.functions import schema_function, with_attribute_values
from memplan_cli.onnx_io.graph_editor import producer_nodes, rename_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import FunctionProto, GraphProto, NodeProto

    from memplan_cli.features.training.tape import Call, Tape


def inline_function(call: Call) -> bool:
    """Write the function body that ONNX defines for an operator to the tape.

    Returns False, and writes nothing, if ONNX defines no body that uses operators of `OLDEST_OPSET` or
    later. Older operators have no gradient rules.
    """
    function = _function_body(call)
    if function is None:
        return False
    tape = call.tape
    names = dict.fromkeys(function.input, "")  # "": an optional input that the node omits
    names |= dict(zip(function.input, call.node.input, strict=False))
    attributes = {a.name: a for a in (*_attribute_defaults(call), *call.node.attribute)}
    body = [with_attribute_values(node, attributes) for node in function.node]
    # Constants become initializers of the model; all other nodes are copied.
    constants = [(node, named_constant(node)) for node in body]
    names |= _lift_tensors(tape, [t for _, t in constants if t is not None], call.label)
    nodes = [node for node, tensor in constants if tensor is None]
    new_names = _copy_nodes(tape, nodes, names, call.label)
    for formal, output in zip(function.output, call.node.output, strict=False):
        if output:
            tape.copy_to(output, new_names[formal])
    return True


def _function_body(call: Call) -> FunctionProto | None:
    """Return the body that ONNX defines for a node's operator; None if it has none.

    A body may depend on the attributes and input types of the node. Only bodies in operators of
    `OLDEST_OPSET` or later count: the gradient rules know no older ones.
    """
    opset = call.tape.opset
    try:
        schema = defs.get_schema(call.node.op_type, opset, "")
    except defs.SchemaError:
        return None
    input_types = (
        helper.make_tensor_type_proto(tensor.dtype, tensor.shape)
        for tensor in map(call.tape.tensor, call.node.input)
    )
    return schema_function(schema, call.node, input_types, range(OLDEST_OPSET, opset + 1))


def _attribute_defaults(call: Call) -> Iterable[AttributeProto]:
    """Return the defaults that ONNX defines for the attributes of a node's operator."""
    schema = defs.get_schema(call.node.op_type, call.tape.opset, "")
    defaults = (attribute.default_value for attribute in schema.attributes.values())
    return (value for value in defaults if value.type != AttributeProto.UNDEFINED)


def unroll_loop(call: Call) -> None:
    """Copy the body of a Loop once per iteration; each iteration reads the carried values of the one before.

    Raises:
        ModelError: the number of iterations is not constant, or 0: there would be no slices to stack.
    """
    tape, body = call.tape, call.attribute("body")
    trip_count = _trip_count(call, body)
    weights = _lift_tensors(tape, body.initializer, call.label)
    carried = [call.input(i) for i in range(2, len(call.node.input))]
    count = len(carried)
    condition = call.input(1) or tape.constant(True, TensorProto.BOOL)  # noqa: FBT003 - a tensor's value
    scanned: list[list[str]] = [[] for _ in body.output[1 + count :]]
    for iteration in range(trip_count):
        inputs = [tape.constant(iteration, TensorProto.INT64), condition, *carried]
        # A body returns the condition, which stays true, the carried values, and slices.
        results = _copy_body(call, body, weights, inputs, iteration)
        carried = results[1 : 1 + count]
        for slices, name in zip(scanned, results[1 + count :], strict=True):
            slices.append(name)
    results = [*carried, *(tape.stack(slices, 0) for slices in scanned)]
    _name_outputs(call, results)


def _trip_count(call: Call, body: GraphProto) -> int:
    """Return the number of iterations of a Loop, at least 1.

    Raises:
        ModelError: it is not constant or less than 1, or the condition may end the loop earlier.
    """
    bound = call.constant_input(0)
    if bound is None or int(bound.ravel()[0]) < 1 or not _is_always_true(call, body):
        raise ModelError(
            f"Loop {call.label!r} has no fixed number of iterations, so its gradient cannot be"
            " written",
            hint="give it a constant trip count and a condition that stays true",
        )
    return int(bound.ravel()[0])


def _is_always_true(call: Call, body: GraphProto) -> bool:
    """Whether a Loop's condition is true before the first iteration and after each."""
    initial = call.constant_input(1)
    if call.input(1) and (initial is None or not initial.all()):
        return False
    # Exporters pass the condition through the body, often by an Identity.
    name, producers = body.output[0].name, producer_nodes(body.node)
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    constants = dict(constant_tensors(body))
    if name in constants:
        return bool(numpy_helper.to_array(constants[name]).all())
    outer_value = call.tape.value(name)
    return outer_value is not None and bool(outer_value.all())


def unroll_scan(call: Call) -> None:
    """Copy the body of a Scan once per slice of the scanned inputs, and stack the results of all slices.

    Raises:
        UnknownShapeError: the length of the scanned axis is not known.
    """
    tape, body = call.tape, call.attribute("body")
    scan_count = call.attribute("num_scan_inputs")
    state_count = len(call.node.input) - scan_count
    inputs = [_scan_input_slices(call, state_count, index) for index in range(scan_count)]
    weights = _lift_tensors(tape, body.initializer, call.label)
    states = [call.input(index) for index in range(state_count)]
    scanned: list[list[str]] = [[] for _ in body.output[state_count:]]
    for iteration in range(len(inputs[0])):
        body_inputs = [*states, *(slices[iteration] for slices in inputs)]
        results = _copy_body(call, body, weights, body_inputs, iteration)
        states = results[:state_count]
        for slices, name in zip(scanned, results[state_count:], strict=True):
            slices.append(name)
    axes = call.attribute("scan_output_axes", [0] * len(scanned))
    directions = call.attribute("scan_output_directions", [0] * len(scanned))
    stacks = [
        tape.stack(slices[::-1] if is_reversed else slices, axis)
        for slices, axis, is_reversed in zip(scanned, axes, directions, strict=True)
    ]
    _name_outputs(call, [*states, *stacks])


def _scan_input_slices(call: Call, state_count: int, index: int) -> list[str]:
    """Return the slices of a scanned input in the order in which the iterations read them.

    ``index`` counts the scanned inputs, which follow the ``state_count`` inputs with initial states.

    Raises:
        UnknownShapeError: the length of the scanned axis is not known.
    """
    tape, name = call.tape, call.input(state_count + index)
    axis = call.attribute("scan_input_axes", [0] * (index + 1))[index]
    sizes = tape.sizes(name, "a Scan is unrolled, so the length of what it scans is needed")
    axis %= len(sizes)
    slices = tape.unstack(name, sizes[axis], axis)
    is_reversed = call.attribute("scan_input_directions", [0] * (index + 1))[index]
    return slices[::-1] if is_reversed else slices


def _copy_body(
    call: Call,
    body: GraphProto,
    weights: Mapping[str, str],
    inputs: Sequence[str],
    iteration: int,
) -> list[str]:
    """Copy a body's nodes to the tape for one iteration, and return the names of its outputs."""
    names = dict(zip((value.name for value in body.input), inputs, strict=True))
    new_names = _copy_nodes(
        call.tape, body.node, {**names, **weights}, f"{call.label}/{iteration}"
    )
    # An output of a body may be a capture, which keeps its name.
    return [new_names.get(value.name, value.name) for value in body.output]


def _copy_nodes(
    tape: Tape, nodes: Iterable[NodeProto], names: Mapping[str, str], prefix: str
) -> dict[str, str]:
    """Copy the nodes of a body to the tape, and return the new names of all values.

    ``names`` has the new names of the body's inputs and weights. Outputs of the copies get
    fresh names that begin with ``prefix``; captures keep theirs.
    """
    new_names = dict(names)
    for node in nodes:
        copy = deepcopy(node)
        copy.name = tape.pool.fresh(f"{prefix}/{node.name or node.op_type}")
        for name in filter(None, node.output):
            new_names[name] = tape.pool.fresh(f"{prefix}/{name}")
        rename_values([copy], new_names)
        set_phase(copy, Phase.FORWARD)
        tape.nodes.append(copy)
    return new_names


def _lift_tensors(tape: Tape, tensors: Iterable[TensorProto], prefix: str) -> dict[str, str]:
    """Add constants of a body to the initializers of the main graph, and return their new names."""
    names = {}
    for tensor in tensors:
        copy = deepcopy(tensor)
        copy.name = names[tensor.name] = tape.pool.fresh(f"{prefix}/{tensor.name}")
        tape.pool.initializers.append(copy)
    return names


def _name_outputs(call: Call, results: Sequence[str]) -> None:
    """Give results the names of the node's outputs, omitted outputs aside."""
    for name, output in zip(results, call.node.output, strict=False):
        if output:
            call.tape.copy_to(output, name)
