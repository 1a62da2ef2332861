"""Loops and scans of a fixed count, unrolled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto, numpy_helper

from memplan_cli.errors import ModelError
from memplan_cli.features.training.expansion.bodies import (
    give,
    lift_weights,
    paste,
    stacked,
    steps_of,
)
from memplan_cli.onnx_io.constants import constant_tensors
from memplan_cli.onnx_io.graph_editor import producer_nodes

if TYPE_CHECKING:
    from onnx import GraphProto

    from memplan_cli.features.training.tape import Call


def loop(call: Call) -> None:
    """Unroll the subgraph; each iteration reads the loop-carried values of the one before.

    Raises:
        ModelError: the number of turns is not constant.
    """
    tape, body = call.tape, call.attribute("body")
    count = _trip_count(call, body)
    label = call.node.name or call.output()
    weights = lift_weights(tape, body, label)
    carried = [call.input(i) for i in range(2, len(call.node.input))]
    true = tape.constant(True, TensorProto.BOOL)  # noqa: FBT003 - a tensor's value
    condition = call.input(1) or true
    slices: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    for turn in range(count):
        starts = [tape.constant(turn, TensorProto.INT64), condition, *carried]
        given = dict(zip((v.name for v in body.input), starts, strict=True)) | weights
        names = paste(tape, body.node, given, f"{label}/{turn}")
        results = [names.get(value.name, value.name) for value in body.output]
        carried = results[1 : 1 + len(carried)]
        for kept, name in zip(slices, results[1 + len(carried) :], strict=True):
            kept.append(name)
    outputs = [*carried, *(stacked(tape, kept, 0) for kept in slices)]
    for name, output in zip(outputs, call.node.output, strict=False):
        give(tape, name, output)


def _trip_count(call: Call, body: GraphProto) -> int:
    bound = call.constant_input(0)
    if bound is None or int(bound.ravel()[0]) < 1 or not _goes_on(call, body):
        raise ModelError(
            f"Loop {call.node.name or call.output()!r} has no fixed number of turns, so its"
            " gradient cannot be written",
            hint="give it a constant trip count and a condition that stays true",
        )
    return int(bound.ravel()[0])


def _goes_on(call: Call, body: GraphProto) -> bool:
    """Whether the condition is true before and after each turn."""
    first = call.constant_input(1)
    if call.input(1) and (first is None or not first.all()):
        return False
    name, producers = body.output[0].name, producer_nodes(body.node)
    while name in producers and producers[name].op_type == "Identity":
        name = producers[name].input[0]
    if name == body.input[1].name:
        return True
    inside = dict(constant_tensors(body))
    if name in inside:
        return bool(numpy_helper.to_array(inside[name]).all())
    known = call.tape.value(name)
    return known is not None and bool(known.all())


def scan(call: Call) -> None:
    """Unroll the subgraph, one iteration for each slice of the scanned inputs.

    Raises:
        UnknownShapeError: the length of what is scanned is not known.
    """
    tape, body = call.tape, call.attribute("body")
    scanned = call.attribute("num_scan_inputs")
    label = call.node.name or call.output()
    states = len(call.node.input) - scanned
    slices = [_scanned(call, states + index, index) for index in range(scanned)]
    weights = lift_weights(tape, body, label)
    carried = [call.input(index) for index in range(states)]
    results: list[list[str]] = [[] for _ in body.output[states:]]
    for turn in range(len(slices[0])):
        starts = [*carried, *(parts[turn] for parts in slices)]
        given = dict(zip((v.name for v in body.input), starts, strict=True)) | weights
        names = paste(tape, body.node, given, f"{label}/{turn}")
        found = [names.get(value.name, value.name) for value in body.output]
        carried = found[:states]
        for kept, name in zip(results, found[states:], strict=True):
            kept.append(name)
    axes = call.attribute("scan_output_axes", [0] * len(results))
    backwards = call.attribute("scan_output_directions", [0] * len(results))
    outputs = list(carried)
    for kept, axis, turned in zip(results, axes, backwards, strict=True):
        outputs.append(stacked(tape, kept[::-1] if turned else kept, axis))
    for name, output in zip(outputs, call.node.output, strict=False):
        give(tape, name, output)


def _scanned(call: Call, position: int, index: int) -> list[str]:
    tape, name = call.tape, call.input(position)
    axis = call.attribute("scan_input_axes", [0] * (index + 1))[index]
    sizes = tape.sizes(name, "a Scan is unrolled, so the length of what it scans is needed")
    axis %= len(sizes)
    parts = steps_of(tape, name, sizes[axis], axis)
    turned = call.attribute("scan_input_directions", [0] * (index + 1))[index]
    return parts[::-1] if turned else parts
