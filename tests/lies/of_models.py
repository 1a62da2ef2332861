"""Lies that a written model tells: its notes, its nodes, its values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lies.told import Lie, Told


def zero_offsets(told: Told) -> None:
    for value in told.model.graph.value_info:
        if any(entry.key == "pkg.memplan.offset" for entry in value.metadata_props):
            told.say(value, "offset", 0)


def nested_note(told: Told) -> None:
    body = next(a.g for a in told.node("last_state/Loop").attribute if a.HasField("g"))
    value = next(v for v in body.value_info if v.name == "shifted")
    told.say(value, "offset", 0)


def drop_notes(told: Told) -> None:
    value = told.value("c")
    for key in ("arena", "offset", "bytes", "first", "last", "alias_of"):
        told.say(value, key, None)


def note_result(told: Told) -> None:
    for key in ("arena", "offset", "bytes", "first", "last"):
        told.say(told.value("y"), key, 0)


def swap_steps(told: Told) -> None:
    told.say(told.node("n_f"), "step", 6)
    told.say(told.node("n_g"), "step", 5)


def add_node(told: Told) -> None:
    node = helper.make_node("Relu", ["k"], ["unread"], name="n_u")
    told.model.graph.node.append(node)


def add_reader(told: Told) -> None:
    """Let a later node read a tensor that the plan has let go by then."""
    told.node("n_y").input[1] = "f"


def change_operator(told: Told) -> None:
    """Turn an operator that may write in place into one that may not."""
    node = told.node("n_g")
    node.op_type = "CumSum"
    node.input.append("axis")
    told.model.graph.initializer.append(helper.make_tensor("axis", 7, [], [1]))


def change_nested_reader(told: Told) -> None:
    told.node("shifted/Add").input[1] = "mean"


def change_input(told: Told) -> None:
    told.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4


def change_weight(told: Told) -> None:
    weight = told.model.graph.initializer[0]
    weight.float_data.append(0.0)
    weight.dims[0] = 17


def declare(told: Told) -> None:
    """Declare another shape for h, in the plan too: its node makes it otherwise."""
    told.tensor("h")["shape"] = [16, 8]
    dims = told.value("h").type.tensor_type.shape.dim
    dims[0].dim_value, dims[1].dim_value = 16, 8


def rename_value(told: Told) -> None:
    """Rename a tensor in the model and leave it in the plan."""
    for node in told.model.graph.node:
        node.input[:] = ["i2" if name == "i" else name for name in node.input]
        node.output[:] = ["i2" if name == "i" else name for name in node.output]


def rename_node(told: Told) -> None:
    told.node("n_f").name = "n_other"


def donate_other(told: Told) -> None:
    pairs = [[one, other] for one, other in told.report["donated"]["pairs"]]
    told.say(told.model, "donated", json.dumps(pairs[1:]))


def donate_none(told: Told) -> None:
    told.say(told.model, "donated", None)


LIES: Mapping[str, Lie] = {
    "all offsets are 0 in the model": (
        "flat", zero_offsets, "the note of 'a' says that its offset is 0, the plan says 1024",
    ),
    "an offset in a subgraph is 0 in the model": (
        "nested", nested_note, "shifted' says that its offset is 0",
    ),
    "live_peak is 1 in the model": (
        "flat", lambda told: told.note(live_peak=1), "live_peak is 1, the plan says 1536",
    ),
    "naive is 1 in the model": ("flat", lambda told: told.note(naive=1), "naive is 1,"),
    "planned is 1 in the model": ("flat", lambda told: told.note(planned=1), "planned is 1,"),
    "total is 1 in the model": ("flat", lambda told: told.note(total=1), "total is 1,"),
    "the level is another in the model": ("flat", lambda told: told.note(level=1), "level is 1,"),
    "a total is in the model that is none": (
        "flat", lambda told: told.note(saved=9), "saved is 9, the plan says nothing",
    ),
    "an arena is another in the model": (
        "flat", lambda told: told.say(told.value("c"), "arena", 1), "its arena is 1",
    ),
    "bytes are others in the model": (
        "flat", lambda told: told.say(told.value("c"), "bytes", 8), "its bytes is 8",
    ),
    "a first use is another in the model": (
        "flat", lambda told: told.say(told.value("c"), "first", 1), "its first is 1",
    ),
    "a last use is another in the model": (
        "flat", lambda told: told.say(told.value("c"), "last", 4), "its last is 4",
    ),
    "a shared tensor shares nothing in the model": (
        "flat", lambda told: told.say(told.value("b"), "alias_of", None), "its alias_of is nothing",
    ),
    "a tensor shares another's bytes in the model": (
        "flat", lambda told: told.say(told.value("c"), "alias_of", "a"), "its alias_of is a",
    ),
    "a tensor has no notes": ("flat", drop_notes, "no notes on tensor 'c'"),
    "a tensor has notes in a model that has none": (
        "without notes", lambda told: told.say(told.value("y"), "offset", 64),
        "notes on 'y', but states that it has none",
    ),
    "a node has notes in a model that has none": (
        "without notes", lambda told: told.say(told.node("n_f"), "step", 5),
        "notes on 'n_f', but states that it has none",
    ),
    "a result of the model has notes": ("flat", note_result, "notes on 'y', .* does not place"),
    "two steps are in each other's place": ("flat", swap_steps, "'n_f' says step 6, it runs at 5"),
    "a node has no step": (
        "flat", lambda told: told.say(told.node("n_f"), "step", None), "'n_f' says step nothing",
    ),
    "a node in a subgraph has another step": (
        "nested", lambda told: told.say(told.node("heat_out/Tanh"), "step", 99), "says step 99",
    ),
    "a node says other words of its memory": (
        "flat", lambda told: told.say(told.node("n_g"), "memory", "g: 1 bytes at 0"),
        "'n_g' describes its memory as g: 1 bytes",
    ),
    "a node releases nothing in the model": (
        "flat", lambda told: told.say(told.node("n_g"), "release", None), "'n_g' releases None",
    ),
    "a node releases what is still read, in the model": (
        "flat", lambda told: told.say(told.node("n_a"), "release", '["x"]'), "'n_a' releases",
    ),
    "another pair is donated in the model": ("training", donate_other, "has other donated inputs"),
    "no pair is donated in the model": ("training", donate_none, "has other donated inputs"),
    "the model has a node more": ("flat", add_node, "has 12 nodes, the model has 13"),
    "a node of the model reads what is released": (
        "flat", add_reader, "'f' is recorded as live from tick 5 to 10, .* to 12",
    ),
    "an operator cannot write where the plan says": (
        "flat", change_operator, "'g' is written at tick 6 over 'c'",
    ),
    "a node in a subgraph reads what is released": (
        "nested", change_nested_reader, "mean' is recorded as live|change' is recorded as live",
    ),
    "an input is smaller": ("flat", change_input, "is recorded with the shape"),
    "a weight is larger": ("flat", change_weight, "weights is recorded|negative|shape|data"),
    "model and plan declare a shape that no node makes": (
        "flat", declare, r"'h' is recorded with the shape \[16, 8\], its node makes it \[8, 16\]",
    ),
    "a tensor has another name in the model": ("flat", rename_value, "places 'i', which the model does not compute"),
    "a node has another name in the model": (
        "flat", rename_node, "has 'n_f' at place 5, the model has 'n_other'",
    ),
}  # fmt: skip
"""What is said, and the lie."""
