"""Who reads what nobody reads? A Shape node, so that the runtime frees it at once.

ONNX Runtime keeps a tensor without a reader to the end of the run; a reader of a few bytes
ends that. It helps only where optimisation is off: it is dead code otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.onnx_io.load import graphs

if TYPE_CHECKING:
    from collections.abc import Collection

    from onnx import ModelProto

SUFFIX = "__memplan_read"


def unread_outputs(model: ModelProto) -> tuple[str, ...]:
    """Return what ops at the top make and nobody, in any block, reads or gives."""
    read: set[str] = set()
    for graph in graphs(model.graph):
        read.update(value.name for value in graph.output)
        for node in graph.node:
            read.update(node.input)
    made = (name for node in model.graph.node for name in node.output)
    return tuple(name for name in made if name and name not in read)


def with_readers(model: ModelProto, names: Collection[str]) -> ModelProto:
    """Return a copy in which each of these outputs is read right after it was made."""
    from onnx import helper

    read = type(model)()
    read.CopyFrom(model)
    del read.graph.node[:]
    for node in model.graph.node:
        read.graph.node.append(node)
        for name in node.output:
            if name in names:
                made = f"{name}{SUFFIX}"
                read.graph.node.append(helper.make_node("Shape", [name], [made], name=made))
    return read
