"""Merged decoders: an If whose one branch extends caches, written without the other branch.

The branch without a past is for the first step alone, whose caches are empty; the one that
extends them takes that step too. It becomes the graph, and the input that chose is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memplan_cli.features.kv_cache.find import find_caches
from memplan_cli.features.kv_cache.graph import Index
from memplan_cli.onnx_io.graph_editor import GraphEditor, rename_reads
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

Branch = Literal["then_branch", "else_branch"]

_BRANCHES: tuple[Branch, ...] = ("then_branch", "else_branch")

_BOOL = 9
"""ONNX's number of the type."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The branch of a merged decoder that extends its caches, as a model.

    Attributes:
        model: without the input that chooses.
        condition: that input.
        branch: which one it is.
    """

    model: ModelProto
    condition: str
    branch: Branch

    @property
    def value(self) -> bool:
        """Return what the condition is where this branch is taken."""
        return self.branch == "then_branch"


def unmerged(model: ModelProto) -> Merged | None:
    """Return the branch of a merged decoder that extends caches; None where there is no such.

    It is one of two, and passes nothing through that the other one may compute (keys and values
    of cross-attention).
    """
    known = {each.output for each in find_caches(model).found}
    for condition in _conditions(model.graph):
        growing = []
        for branch in _BRANCHES:
            one = Merged(_opened(model, condition, branch), condition, branch)
            new = [each for each in find_caches(one.model).found if each.output not in known]
            if any(each.form != "constant" for each in new):
                growing.append((one, new))
        if len(growing) != 1:
            continue
        ((one, new),) = growing
        left = one.model.graph
        read = any(condition in reads(node) for node in left.node)
        read |= any(condition == value.name for value in left.output)
        if not read and all(each.form != "constant" for each in new):
            return one
    return None


def _conditions(graph: GraphProto) -> Iterator[str]:
    """Yield the inputs that choose a branch of an If."""
    index = Index.of(graph)
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    chosen = (index.traced(n.input[0])[0] for n in graph.node if n.op_type == "If")
    yield from (name for name in dict.fromkeys(chosen) if kinds.get(name) == _BOOL)


def _opened(model: ModelProto, condition: str, branch: Branch) -> ModelProto:
    """Return a copy of a model in which every If of a condition is one of its branches."""
    copy = type(model)()
    copy.CopyFrom(model)
    graph = copy.graph
    index = Index.of(graph)
    chosen = [
        n for n in graph.node if n.op_type == "If" and index.traced(n.input[0])[0] == condition
    ]
    opened = [(node, _taken(node, branch)) for node in chosen]
    edit = GraphEditor(copy)
    for node, inner in opened:
        _open(edit, node.output, inner)
        graph.node.remove(node)
    inputs = [each for each in graph.input if each.name != condition]
    del graph.input[:]
    graph.input.extend(inputs)
    edit.set_nodes(graph.node)
    return copy


def _taken(node: NodeProto, branch: Branch) -> GraphProto:
    """Return a branch of a node, which loses both: their names are free."""
    from onnx import GraphProto

    copy = GraphProto()
    for each in node.attribute:
        if each.name == branch:
            copy.CopyFrom(each.g)
    del node.attribute[:]
    return copy


def _open(edit: GraphEditor, outputs: Sequence[str], branch: GraphProto) -> None:
    """Add the nodes of a branch; what it gives gets the names of the If's outputs."""
    made = [name for inner in branch.node for name in inner.output if name]
    pairs = [(v.name, o) for v, o in zip(branch.output, outputs, strict=False) if o]
    names = {name: output for name, output in reversed(pairs) if name in made}
    for name in (*made, *(tensor.name for tensor in branch.initializer)):
        if name not in names:
            names[name] = edit.fresh(name)
    for tensor in branch.initializer:
        edit.graph.initializer.add().CopyFrom(tensor)
        edit.graph.initializer[-1].name = names[tensor.name]
    rename_reads(branch.node, names)
    for inner in branch.node:
        inner.output[:] = [names.get(name, name) for name in inner.output]
    edit.new_nodes += branch.node
    for name, output in pairs:
        source = names.get(name, name)
        if source != output:
            edit.node("Identity", [source], output)
