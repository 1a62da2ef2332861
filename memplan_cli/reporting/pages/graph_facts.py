"""Op types of a plan's nodes, categories of its tensors, and its chunked regions.

A plan has names only; types and the parts of a training step come from the model. Without the
model, categories are guessed from the names that exporters give, and types are unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import nodes_at

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

ACTIVATIONS, GRADIENTS, UPDATE = "activations", "gradients", "optimizer"
CACHE, CHUNKS, WEIGHTS = "cache", "chunks", "weights"
STATE, INPUTS = "optimizer state", "inputs"

# Chunking names a chunk `x__chunk3`, and the node that joins the chunks `x__chunks`.
# Recomputation names a copy `x__recompute` or `x__recompute2`.
_CHUNK = re.compile(r"__chunk\d+(?=_|$).*")
_JOIN = re.compile(r"__chunks(?=$|_)")
_COPY = re.compile(r"__recompute\d*$")
_CACHE = re.compile(r"(?i)(^|[./_])(past|present|kv|cache)([./_\d]|_?key|_?value|s?$)")
_GRADIENT = re.compile(r"(?i)([._/]grad(ient)?s?([._/\d]|$))|^grad(ient)?[._/]")


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """Op types, parts and sizes that are read from a model.

    Attributes:
        types: the op type of each node, by its label.
        parts: the tensors of the backward part and of the update, with the category.
        given: bytes of weights, inputs and the like, by category.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_model(self) -> bool:
        """Whether the facts are those of a model. They are empty if none is at hand."""
        return bool(self.types)

    def type_of(self, node: str) -> str:
        """Return the op type of a plan's node, empty if unknown.

        A recomputed copy, a chunk, and a copy of a chunk have the type of the node that they are made from.
        """
        if _JOIN.search(node):  # it joins chunks, and is not in the model
            return "Concat"
        without_copy_mark = _COPY.sub("", node)
        without_chunk_mark = _source(node)  # ``x``, also for ``x__chunk3__recompute``
        for label in (node, without_copy_mark, without_chunk_mark):
            if label in self.types:
                return self.types[label]
        return ""


@dataclass(frozen=True, slots=True)
class Region:
    """A region that is computed in chunks in the steps ``first`` to ``last``, both inclusive."""

    label: str
    first: int
    last: int


def is_cache(name: str) -> bool:
    """Whether a name is one that exporters give to a key or value cache."""
    return _CACHE.search(name) is not None


def category(tensor: Placement, facts: GraphFacts) -> str:
    """Return the category of a planned tensor, from its name or the ``facts`` of the model."""
    if _CHUNK.search(tensor.name):
        return CHUNKS
    if tensor.id in facts.parts:  # in the backward part or the update of the weights
        return facts.parts[tensor.id]
    # With a model, `parts` has all gradients. Without one, their names are the only sign of them.
    if not facts.has_model and _GRADIENT.search(tensor.name):
        return GRADIENTS
    return CACHE if is_cache(tensor.name) else ACTIVATIONS


def regions(plan: Plan) -> tuple[Region, ...]:
    """Return the regions that are computed in chunks, in order of time.

    The chunks of a region are followed by the node that joins them, so a chunk after a join
    begins the next region. Several outputs of a region have a join each. Other nodes, before, between
    and after these, begin and end no region.
    """
    spans: list[tuple[int, int]] = []  # the first and the last step of each region
    is_open = False
    for tick, node in sorted(nodes_at(plan).items()):
        if _JOIN.search(node):
            is_open = False
            if spans:  # the last region lasts until this join
                spans[-1] = spans[-1][0], tick
        elif _CHUNK.search(node):
            first = spans.pop()[0] if is_open else tick
            spans.append((first, tick))
            is_open = True
    return tuple(Region(_label(plan, index, *span), *span) for index, span in enumerate(spans))


def region_of(tensor: Placement, chunked_regions: Sequence[Region]) -> int:
    """Return the index of the region that computes a tensor, a chunk such as ``x__chunk3``.

    -1 if the tensor is no chunk by its name, or if no region covers the step that makes it.
    """
    if not _CHUNK.search(tensor.name):
        return -1
    for index, region in enumerate(chunked_regions):
        if region.first <= tensor.first <= region.last:
            return index
    return -1


def _label(plan: Plan, index: int, first: int, last: int) -> str:
    """Return the label of the region at steps ``first`` to ``last``.

    It is ``x: 4 chunks along axis 1`` if the plan records a region around a tensor with chunks in
    these steps, else ``chunked region 1``; ``index`` counts from 0.
    """
    sources = {
        _source(t.name)
        for t in plan.tensors
        if first <= t.first <= last and _CHUNK.search(t.name)
    }
    for region in plan.report.chunked.regions:
        if region.tensor in sources:
            return f"{region.tensor}: {region.pieces} chunks along axis {region.axis}"
    return f"chunked region {index + 1}"


def _source(name: str) -> str:
    """Return the name that a chunk was made from: ``x`` for ``x__chunk3``; other names unchanged."""
    return _CHUNK.sub("", name)
