"""What does a model say, and is it so? Reading, with a second look at all declared types."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.contradictions import contradictions
from memplan_cli.onnx_io.read import Loaded, read_program
from memplan_cli.onnx_io.shelf import on_shelf

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.onnx_io.shapes import Bindings
    from memplan_cli.onnx_io.shelf import Shelved


def read_checked(model: ModelProto | Shelved, bindings: Bindings) -> Loaded:
    """Turn a model into a program that goes by no type which its nodes contradict.

    Where a declared type is wrong, inference finds the right one and a warning names it.

    Raises:
        ModelError: as `read_program`; or types that cannot all be right, whichever is.
    """
    shelf = on_shelf(model)
    loaded = read_program(shelf, bindings)
    wrong = contradictions(shelf.model, loaded.program)
    if not wrong:
        return loaded
    doubted = frozenset(found.var.name for found in wrong)
    again = read_program(shelf, replace(bindings, doubted=doubted))
    left = contradictions(shelf.model, again.program)
    if left:
        raise ModelError(
            f"the types of the model cannot all be right: {left[0]}",
            hint="a declared or given shape is wrong; `--shape NAME=D,D,..` gives another one",
        )
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    text = f"wrong declarations of the model are not believed: {wrong[0]}{more}"
    return Loaded(again.program, (*again.warnings, text))
