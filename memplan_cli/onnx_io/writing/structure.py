"""The rules of ONNX for names, order, types and inputs that every rewritten model must keep.

A violation is a bug of memplan. It is found here, before the model is written or run: ONNX Runtime refuses such
a model only when it is loaded.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from memplan_cli.core.operators import canonical_domain
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.onnx_io.graph_editor import producer_nodes
from memplan_cli.onnx_io.interface import input_differences
from memplan_cli.onnx_io.shapes.contradictions import contradictions
from memplan_cli.onnx_io.traversal import subgraphs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from onnx import GraphProto, ModelProto

    from memplan_cli.core.program import Program

_MAX_NAME = 80
"""Characters of a name in a message."""


def structure_errors(model: ModelProto) -> Iterator[str]:
    """Yield where a model violates a rule of ONNX, in its main graph and all subgraphs.

    - The opset of each operator's domain is imported, once.
    - Nodes of one graph have distinct names, or none.
    - A graph defines each value once. A result of a node in a subgraph has no name that an outer graph has
      defined before. Inputs and weights of a subgraph may hide an outer value: ONNX's checker and ONNX Runtime
      accept that.
    - Each value is produced before it is read, and each graph output is produced.

    Functions are left out: memplan keeps them as they are, or inlines them.
    """
    domains: set[str] = set()
    yield from _graph_errors(model.graph, (), domains)
    yield from _opset_errors(model, domains)


def new_errors(rewritten: ModelProto, source: Callable[[], ModelProto]) -> tuple[str, ...]:
    """Return the `structure_errors` of a rewritten model that its source does not have.

    ``source`` returns the model that was rewritten; it is called only if something is wrong.
    """
    errors = tuple(structure_errors(rewritten))
    if errors:
        known = set(structure_errors(source()))
        errors = tuple(error for error in errors if error not in known)
    return errors


def checked(
    rewritten: ModelProto,
    source: Callable[[], ModelProto],
    program: Program | None = None,
    *,
    fed_like: ModelProto | None = None,
) -> ModelProto:
    """Return a rewritten model, which must keep the rules of ONNX as far as its source does.

    Args:
        rewritten: The model.
        source: Returns the model that was rewritten, see `new_errors`.
        program: The program of the rewritten model, if nodes were added or changed: their results must have
            the types that the program says.
        fed_like: The model whose feeds the rewritten model must accept, and need no others; None if the
            rewriting changes inputs.

    Raises:
        InvalidLayoutError: a rule is violated, a bug of memplan.
    """
    errors = new_errors(rewritten, source)
    if not errors and program is not None:
        errors = tuple(_type_errors(rewritten, source(), program))
    if not errors and fed_like is not None:
        errors = input_differences(fed_like, rewritten)
    if errors:
        raise InvalidLayoutError(f"memplan made an invalid model: {errors[0]}")
    return rewritten


def _type_errors(rewritten: ModelProto, source: ModelProto, program: Program) -> Iterator[str]:
    """Describe each result of the main graph whose type in ``program`` is not the one that its node computes.

    Only results of added and changed nodes count: the source may declare wrong types for others.
    """
    before, after = (producer_nodes(model.graph.node) for model in (source, rewritten))
    for contradiction in contradictions(rewritten, program):
        name = contradiction.var.name
        if not contradiction.var.block and before.get(name) != after[name]:
            yield str(contradiction)


def _opset_errors(model: ModelProto, used: set[str]) -> Iterator[str]:
    """Yield the used domains whose opset is not imported, and domains that are imported twice."""
    imported = Counter(canonical_domain(opset.domain) for opset in model.opset_import)
    yield from (
        f"the opset of domain {domain[:_MAX_NAME]!r} is imported {count} times"
        for domain, count in imported.items()
        if count > 1
    )
    yield from (
        f"the opset of domain {domain[:_MAX_NAME]!r} is not imported"
        for domain in sorted(used)
        if canonical_domain(domain) not in imported
    )


def _graph_errors(
    graph: GraphProto, outer: tuple[set[str], ...], domains: set[str]
) -> Iterator[str]:
    """Yield the violations in a graph and its subgraphs; add the domains of their operators to ``domains``.

    The rules are those of `structure_errors`, opsets aside. ``outer`` has, for each graph around this one,
    the values that were produced before the node with this graph. The sets are not copied: a large graph may have
    many nodes with subgraphs.
    """
    weights = [tensor.name for tensor in graph.initializer]
    weights += [sparse.values.name for sparse in graph.sparse_initializer]
    inputs = [value.name for value in graph.input]
    # A weight may be an input of the same name: its default.
    for names in (weights, inputs):
        yield from (f"{name[:_MAX_NAME]!r} is made twice" for name in _repeated(names))
    own = {"", *weights, *inputs}  # "": an omitted input
    node_names = []
    for node in graph.node:
        if name := node.name:
            node_names.append(name)
        domains.add(node.domain)
        if not own.issuperset(read := node.input[:]):
            where = name or node.op_type
            early = (value for value in read if not _is_in((own, *outer), value))
            yield from (
                f"{where!r} reads {value[:_MAX_NAME]!r} before it is made" for value in early
            )
        for _, body in subgraphs(node) if node.attribute else ():
            yield from _graph_errors(body, (*outer, own), domains)
        for value in filter(None, node.output):
            if value in own:
                yield f"{value[:_MAX_NAME]!r} is made twice"
            elif _is_in(outer, value):
                yield f"{value[:_MAX_NAME]!r} of a subgraph hides a value of an outer graph"
            own.add(value)
    yield from (
        f"two nodes have the name {name[:_MAX_NAME]!r}" for name in _repeated(node_names)
    )
    for value_info in graph.output:
        name = value_info.name
        if not name or not _is_in((own, *outer), name):
            yield f"the output {name[:_MAX_NAME]!r} is not made"


def _is_in(sets: Iterable[set[str]], value: str) -> bool:
    return any(value in values for values in sets)


def _repeated(names: Sequence[str]) -> Iterable[str]:
    """Return the names that occur more than once."""
    if len(set(names)) == len(names):  # the usual case, fast
        return ()
    return (name for name, count in Counter(names).items() if count > 1)
