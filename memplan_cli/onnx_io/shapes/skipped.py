"""Blocks that no run under the binding enters: the other branch, a loop's subgraph without a turn.

Nothing of theirs is ever computed, so their values take no memory, whatever their shapes
would be; these need not even fit together.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.onnx_io.shapes.given import block_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto

    from memplan_cli.core.program import Program, Var

NEVER_RUN = "memplan: never run"
"""What an inferred copy notes as the documentation of a subgraph that is not run."""


def skipped_blocks(graph: GraphProto) -> tuple[str, ...]:
    """Return the paths of the outermost blocks that are noted never to run."""
    found: list[str] = []
    for path, inner in block_paths(graph, ""):
        if inner.doc_string == NEVER_RUN and not is_inside(path, found):
            found.append(path)
    return tuple(found)


def is_inside(block: str, paths: Sequence[str]) -> bool:
    """Whether a block is one of these, or in one."""
    return any(block == path or block.startswith(f"{path}/") for path in paths)


def without_memory(program: Program, paths: Sequence[str]) -> Program:
    """Return a program in which what blocks make has no elements."""
    vars_ = {
        identity: _empty(var) if is_inside(var.block, paths) else var
        for identity, var in program.vars.items()
    }
    return replace(program, vars=vars_)


def _empty(var: Var) -> Var:
    if var.origin is Origin.WEIGHT:
        return var
    return var._replace(dtype="uint8" if var.dtype == "unknown" else var.dtype, shape=(0,))
