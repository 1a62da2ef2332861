"""Weights of one output moved out of its model file, into a file beside it.

A runtime parses what lies in the model file into memory of its own; what lies outside it reads,
or maps, weight by weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.api.files.own_weights import (
    MOVED,
    dump_name,
    refuse_foreign_weights,
)
from memplan_cli.core.results.memory import ExternalWeights

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path
    from typing import BinaryIO

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them


class MovedFile(NamedTuple):
    """A model without large weights, what is said of them, and what was created beside it."""

    model: ModelProto
    facts: ExternalWeights = ExternalWeights()
    created: tuple[Path, ...] = ()


def move_beside(
    model: ModelProto, out: Path, taken: Collection[str], own: Collection[str]
) -> MovedFile:
    """Move the weights of a model into a file beside the output, where there are many.

    Args:
        model: What is to be written.
        out: The file that it is written into.
        taken: The files of weights that it refers to already.
        own: Files of weights that belong to an earlier version of the output.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """
    from memplan_cli.onnx_io.weights.external_data import create
    from memplan_cli.onnx_io.weights.inline import WORTH, inline_bytes, moved_outside

    size = inline_bytes(model)
    if size < WORTH:
        return MovedFile(model)
    name = f"{dump_name(out, taken, MOVED)}.data"
    refuse_foreign_weights(out, [name])
    found: list[ModelProto] = []

    def write(data: BinaryIO) -> None:
        found.append(moved_outside(model, name, data))

    created = create(out.with_name(name), write, own)
    return MovedFile(found[0], ExternalWeights(name, size), created)
