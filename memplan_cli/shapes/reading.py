"""Programs read with every type that the file declares truly or inference finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan_cli.core.compact.heap import give_back
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.declared import declared_types
from memplan_cli.onnx_io.lazy_model import lazy
from memplan_cli.onnx_io.load import subgraphs
from memplan_cli.onnx_io.read import declared_program, program_of
from memplan_cli.shapes.bindings import Bindings

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.program import Program
    from memplan_cli.onnx_io.lazy_model import LazyModel


@dataclass(frozen=True, slots=True)
class Loaded:
    """A program, and what was noticed while reading it."""

    program: Program
    warnings: tuple[str, ...] = ()
    observed: bool = False
    """Whether some shapes are those of one run."""


def read_program(model: ModelProto | LazyModel, bindings: Bindings | None = None) -> Loaded:
    """Turn a model into a program.

    Where the file gives every value numbers for dims, ONNX inference is left out: it keeps
    what is declared, even where its own result is other dims.

    Raises:
        ModelError: a value is read that nothing defines, defined twice, or needs itself.
    """
    source, bindings = lazy(model), bindings or Bindings()
    del model
    if bindings == Bindings() and (program := declared_program(source.model)) is not None:
        return Loaded(program)
    from memplan_cli.shapes.infer import infer

    inferred, warnings = infer(source, bindings)
    types = declared_types(inferred.graph)
    # Inference leaves nodes alone but for the types in their subgraphs: without any, a large
    # graph need not be there twice while it is read.
    nested = any(any(subgraphs(node)) for node in inferred.graph.node if node.attribute)
    graph = inferred.graph if nested else None
    del inferred
    give_back(len(types))
    model = source.model
    return Loaded(program_of(model, graph or model.graph, types), warnings)


def read_checked(model: ModelProto | LazyModel, bindings: Bindings) -> Loaded:
    """Turn a model into a program that goes by no type which its nodes contradict.

    Where a declared type is wrong, inference finds the right one and a warning names it.

    Raises:
        ModelError: as `read_program`; or types that cannot all be right, whichever is.
    """
    from memplan_cli.shapes.contradictions import contradictions

    source = lazy(model)
    loaded = read_program(source, bindings)
    wrong = contradictions(source.model, loaded.program)
    if not wrong:
        return loaded
    untrusted = frozenset(found.var.name for found in wrong)
    again = read_program(source, replace(bindings, untrusted=untrusted))
    left = contradictions(source.model, again.program)
    if left:
        raise ModelError(
            f"the types of the model cannot all be right: {left[0]}",
            hint="a declared or given shape is wrong; `--shape NAME=D,D,..` gives another one",
        )
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    text = f"wrong declarations of the model are not believed: {wrong[0]}{more}"
    return Loaded(again.program, (*again.warnings, text))
