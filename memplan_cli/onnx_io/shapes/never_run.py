"""Subgraphs that no run under the binding enters: a branch that is not taken, a loop without iterations.

Their values take no memory, whatever their shapes, which need not even be consistent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.program import Origin
from memplan_cli.onnx_io.traversal import block_paths

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import GraphProto

    from memplan_cli.core.program import Program

NEVER_RUN = "memplan: never run"
"""The doc string with which inference marks a subgraph that is never run."""


def never_run_blocks(graph: GraphProto) -> tuple[str, ...]:
    """Return the paths of the outermost subgraphs that are marked `NEVER_RUN`."""
    blocks: list[str] = []
    # A subgraph comes after the one around it.
    for path, inner in block_paths(graph):
        if inner.doc_string == NEVER_RUN and not is_inside(path, blocks):
            blocks.append(path)
    return tuple(blocks)


def is_inside(block: str, paths: Sequence[str]) -> bool:
    """Whether a block is one of these blocks, or nested in one."""
    return any(block == path or block.startswith(f"{path}/") for path in paths)


def without_memory_of(program: Program, paths: Sequence[str]) -> Program:
    """Return a program in which the values of these blocks and of blocks in them have no elements.

    Weights are kept: a runtime loads them whether or not a block is run.
    """
    vars_ = dict(program.vars)
    for identity, var in program.vars.items():
        if var.origin is not Origin.WEIGHT and is_inside(var.block, paths):
            # Any dtype will do in place of an unknown one, with which the size would be unknown.
            dtype = "uint8" if var.dtype == "unknown" else var.dtype
            vars_[identity] = var._replace(dtype=dtype, shape=(0,))
    return replace(program, vars=vars_)
