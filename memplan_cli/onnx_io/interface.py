"""A model's inputs, their types, and its free dims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.onnx_io.declared import read_shape
from memplan_cli.onnx_io.load import graphs
from memplan_cli.onnx_io.types import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import ModelProto, ValueInfoProto

    from memplan_cli.core.program import Shape

_SHOWN = 5
"""Names in one message: models have up to thousands of inputs."""

_LONGEST = 100
"""Characters of a name in a message."""


def other_inputs(original: ModelProto, rewritten: ModelProto) -> tuple[str, ...]:
    """Say how the inputs of a rewritten model differ from its original's, in words.

    Inputs with a value in the model need not be fed. Types are compared, and dims that
    both models have numbers for; empty where one feed serves both.
    """
    mine, theirs = _inputs(original), _inputs(rewritten)
    fed, wanted = _fed(original), _fed(rewritten)
    words = []
    only_mine = [name for name in fed if name not in theirs]
    only_theirs = [name for name in wanted if name not in mine]
    if only_mine:
        words.append(f"only the original takes {_some(only_mine)}")
    if only_theirs:
        words.append(f"only the written model takes {_some(only_theirs)}")
    changed = [
        f"{name[:_LONGEST]!r} is {_text(mine[name])} in the original and "
        f"{_text(theirs[name])} in the written model"
        for name in fed
        if name in theirs and not _is_alike(mine[name], theirs[name])
    ]
    return (*words, *changed[:_SHOWN])


def dim_names(model: ModelProto) -> frozenset[str]:
    """Return the names that dims have in a model, in whatever block."""
    found: set[str] = set()
    for graph in graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    found |= symbols_of(dim.dim_param)
    return frozenset(found)


def _inputs(model: ModelProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in model.graph.input}


def _fed(model: ModelProto) -> list[str]:
    """Return the inputs that nobody but the caller has a value for, in order."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in weights]


def _some(names: Iterable[str]) -> str:
    listed = [repr(name[:_LONGEST]) for name in names]
    more = len(listed) - _SHOWN
    return ", ".join(listed[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _is_alike(one: ValueInfoProto, other: ValueInfoProto) -> bool:
    """Whether one tensor can be fed to both."""
    if type_name(one.type) != type_name(other.type):
        return False
    mine, theirs = read_shape(one), read_shape(other)
    if mine is None or theirs is None:
        return True
    return len(mine) == len(theirs) and not any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(mine, theirs, strict=True)
    )


def _text(value: ValueInfoProto) -> str:
    return f"{type_name(value.type)}{_dims(read_shape(value))}"


def _dims(shape: Shape | None) -> str:
    if shape is None:
        return ""
    return f"[{','.join('?' if dim is None else str(dim)[:_LONGEST] for dim in shape)}]"
