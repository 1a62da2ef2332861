"""Merged decoders: models with an If whose branches compute the first and the later steps.

One branch has no past and computes the first step, with empty caches. The other extends the caches, and
can compute the first step too. It becomes the main graph, and the input that selects a branch is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memplan_cli.features.kv_cache.find import GraphIndex, find_caches
from memplan_cli.onnx_io.graph_editor import GraphEditor, keep, rename_reads
from memplan_cli.onnx_io.traversal import reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onnx import GraphProto, ModelProto, NodeProto

Branch = Literal["then_branch", "else_branch"]

_BRANCHES: tuple[Branch, ...] = ("then_branch", "else_branch")

_BOOL = 9
"""TensorProto.BOOL."""


@dataclass(frozen=True, slots=True)
class OpenedBranch:
    """The branch of a merged decoder that extends its caches, as a model.

    Attributes:
        model: the model without the If and without its condition input.
        condition: the name of that input.
        branch: the branch.
    """

    model: ModelProto
    condition: str
    branch: Branch

    @property
    def value(self) -> bool:
        """The value of the condition for which this branch is taken."""
        return self.branch == "then_branch"


def open_merged_decoder(model: ModelProto) -> OpenedBranch | None:
    """Return the branch of a merged decoder that extends its caches, or None.

    The branch must be the only one of the two that does. It must not pass an input on unchanged that the
    other branch may compute, such as keys and values of cross-attention.
    """
    # Caches of the main graph, which are found without opening a branch.
    caches_outside = {match.output for match in find_caches(model).matches}
    for condition in _conditions(model.graph):
        extending = []
        for branch in _BRANCHES:
            opened = OpenedBranch(_with_branch(model, condition, branch), condition, branch)
            matches = [
                match
                for match in find_caches(opened.model).matches
                if match.output not in caches_outside
            ]
            if any(match.form != "constant" for match in matches):
                extending.append((opened, matches))
        if len(extending) != 1:
            continue
        ((opened, matches),) = extending
        graph = opened.model.graph
        is_read = any(condition in reads(node) for node in graph.node)
        is_read |= any(condition == value.name for value in graph.output)
        if not is_read and all(match.form != "constant" for match in matches):
            return opened
    return None


def branch_condition(opened: OpenedBranch | None) -> dict[str, bool]:
    """Return the input that selects the branch of a merged decoder, and its value for this branch.

    Empty if the model is not a merged decoder.
    """
    return {} if opened is None else {opened.condition: opened.value}


def _conditions(graph: GraphProto) -> Iterator[str]:
    """Yield the graph inputs that select the branch of an If."""
    index = GraphIndex.of(graph)
    dtypes = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    conditions = (index.trace_back(n.input[0])[0] for n in graph.node if n.op_type == "If")
    yield from (name for name in dict.fromkeys(conditions) if dtypes.get(name) == _BOOL)


def _with_branch(model: ModelProto, condition: str, branch: Branch) -> ModelProto:
    """Return a copy of a model in which one branch replaces each If with this condition."""
    copy = type(model)()
    copy.CopyFrom(model)
    graph = copy.graph
    index = GraphIndex.of(graph)
    ifs = [
        n
        for n in graph.node
        if n.op_type == "If" and index.trace_back(n.input[0])[0] == condition
    ]
    # Before the editor collects the names in use, so that values of the branch keep their names.
    bodies = [(node, _pop_branch(node, branch)) for node in ifs]
    edit = GraphEditor(copy)
    for node, body in bodies:
        _add_branch(edit, node.output, body)
        graph.node.remove(node)
    keep(graph.input, lambda value: value.name != condition)
    edit.set_nodes(graph.node)
    return copy


def _pop_branch(node: NodeProto, branch: Branch) -> GraphProto:
    """Return a branch of an If and remove both branches from it, in place, to free their names."""
    from onnx import GraphProto

    copy = GraphProto()
    for attribute in node.attribute:
        if attribute.name == branch:
            copy.CopyFrom(attribute.g)
    del node.attribute[:]
    return copy


def _add_branch(edit: GraphEditor, outputs: Sequence[str], branch: GraphProto) -> None:
    """Add the nodes and weights of a branch to the main graph, and rename them in the branch.

    Its outputs get the names of the outputs of the If, other values fresh names.
    """
    results = [name for node in branch.node for name in node.output if name]
    pairs = [(v.name, o) for v, o in zip(branch.output, outputs, strict=False) if o]
    # Reversed: a value that is returned twice gets the name of the first output.
    names = {name: output for name, output in reversed(pairs) if name in results}
    for name in (*results, *(tensor.name for tensor in branch.initializer)):
        if name not in names:
            names[name] = edit.fresh(name)
    for tensor in branch.initializer:
        edit.graph.initializer.add().CopyFrom(tensor)
        edit.graph.initializer[-1].name = names[tensor.name]
    rename_reads(branch.node, names)
    for node in branch.node:
        node.output[:] = [names.get(name, name) for name in node.output]
    edit.new_nodes += branch.node
    for name, output in pairs:
        source = names.get(name, name)
        # The branch returns a value twice, or one that it does not compute.
        if source != output:
            edit.add_named_node("Identity", [source], output)
