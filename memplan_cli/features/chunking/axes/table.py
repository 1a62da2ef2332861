"""The splits of every operator that has some, by its qualified name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import qualified_name
from memplan_cli.features.chunking.axes import (
    attention,
    elementwise,
    fused_attention,
    indexing,
    moves,
    normalisation,
    products,
    windows,
)
from memplan_cli.features.chunking.axes.terms import Edit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.terms import Editor, Node, Range, Rule, Split

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
"""By the operator's qualified name."""

EDITS: Mapping[str, Editor] = {
    **elementwise.EDITS,
    **attention.EDITS,
    **fused_attention.EDITS,
    **normalisation.EDITS,
    **moves.EDITS,
    **windows.EDITS,
}


def splits(node: Node) -> tuple[Split, ...]:
    """Return every way to compute an op in pieces: of rules, what has more than one piece."""
    rule = RULES.get(qualified_name(node.op))
    if rule is None or node.op.is_random or node.op.bodies:
        return ()
    if any(shape is not None and 0 in shape for shape in (*node.inputs, *node.outputs)):
        return ()
    return tuple(split for split in rule(node) if split.extent > 1)


def edit(node: Node, split: Split, piece: Range) -> Edit:
    """Return what a piece of an op has in place of the op's own sizes and padding."""
    editor = EDITS.get(qualified_name(node.op))
    return editor(node, split, piece) if editor else Edit()
