"""The split rules of all operators that can be computed in chunks, by qualified name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.operators import qualified_name
from memplan_cli.features.chunking.axes import (
    attention,
    elements,
    normalization,
    products,
    quantized,
    windows,
)
from memplan_cli.features.chunking.axes.split import ChunkEdit, MissingInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.features.chunking.axes.split import (
        EditRule,
        Node,
        Range,
        Split,
        SplitRule,
    )

RULES: Mapping[str, SplitRule] = {
    **elements.RULES,
    **products.RULES,
    **attention.RULES,
    **normalization.RULES,
    **windows.RULES,
    **quantized.RULES,
}

EDITS: Mapping[str, EditRule] = {
    **elements.EDITS,
    **attention.EDITS,
    **normalization.EDITS,
    **windows.EDITS,
    **quantized.EDITS,
}


def splits_of(node: Node) -> tuple[Split, ...]:
    """Return every way to compute an op in at least two chunks.

    Empty for random ops, ops with subgraphs, scalar results, and ops whose data or result is empty. Other
    inputs may be: exporters write an empty region of interest for Resize. Also empty for nodes that lack
    an input: the model is invalid.
    """
    rule = RULES.get(qualified_name(node.op))
    if rule is None or node.op.is_random or node.op.bodies or not node.output_shape:
        return ()
    try:
        if any(shape is not None and 0 in shape for shape in (node.data_shape, *node.outputs)):
            return ()
        splits = rule(node)
    except MissingInputError:
        return ()
    return tuple(split for split in splits if split.extent > 1)


def chunk_edit(node: Node, split: Split, chunk: Range) -> ChunkEdit:
    """Return what the op of a chunk has in place of the original's attributes and constants."""
    rule = EDITS.get(qualified_name(node.op))
    return rule(node, split, chunk) if rule else ChunkEdit()
