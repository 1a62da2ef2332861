"""The splits of every operator that has some, by its domain and type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.analysis.aliasing import STANDARD_DOMAINS
from memplan_cli.transforms.chunking.axes import (
    attention,
    elementwise,
    fused_attention,
    indexing,
    moves,
    normalisation,
    products,
    windows,
)
from memplan_cli.transforms.chunking.axes.terms import Edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Op
    from memplan_cli.transforms.chunking.axes.terms import Editor, Node, Range, Rule, Split

RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **products.RULES,
    **attention.RULES,
    **fused_attention.RULES,
    **normalisation.RULES,
    **moves.RULES,
    **indexing.RULES,
    **windows.RULES,
}
"""Operators of other domains stand under ``domain:type``."""

EDITS: Mapping[str, Editor] = {
    **elementwise.EDITS,
    **attention.EDITS,
    **fused_attention.EDITS,
    **normalisation.EDITS,
    **moves.EDITS,
    **windows.EDITS,
}


def operator(op: Op) -> str:
    """Return what the tables call an operator."""
    return op.type if op.domain in STANDARD_DOMAINS else f"{op.domain}:{op.type}"


def splits(node: Node) -> tuple[Split, ...]:
    """Return every way to compute an op in pieces: of rules, what has more than one piece."""
    rule = RULES.get(operator(node.op))
    if rule is None or node.op.is_random or node.op.bodies:
        return ()
    if any(shape is not None and 0 in shape for shape in (*node.inputs, *node.outputs)):
        return ()
    return tuple(split for split in rule(node) if split.extent > 1)


def edit(node: Node, split: Split, piece: Range) -> Edit:
    """Return what a piece of an op has in place of the op's own sizes and padding."""
    editor = EDITS.get(operator(node.op))
    return editor(node, split, piece) if editor else Edit()
