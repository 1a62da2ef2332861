"""What are the nodes called that a runtime has made? The same in every dump of a model.

ONNX Runtime counts the names that it makes up in the order in which it comes by, and that
of its blocked layouts is another one each time (1.31.1): only the numbers differ.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from onnx import ModelProto

_COUNTED = re.compile(r"_token_\d+$")
"""What the runtime puts behind a name that is taken."""


def count_anew(dump: ModelProto, original: ModelProto) -> bool:
    """Name the nodes that the original does not have by their places in the dump.

    Names of tensors stay as they are, and so do those of nodes without a name.

    Returns:
        Whether a name was changed.
    """
    kept = {node.name for graph in graphs(original.graph) for node in graph.node}
    taken = set(kept)
    counts: dict[str, int] = {}
    changed = False
    for graph in graphs(dump.graph):
        for node in graph.node:
            if not node.name or node.name in kept:
                continue
            base = name = _COUNTED.sub("", node.name)
            while name in taken:
                counts[base] = counts.get(base, 0) + 1
                name = f"{base}_token_{counts[base]}"
            taken.add(name)
            changed |= name != node.name
            node.name = name
    return changed
