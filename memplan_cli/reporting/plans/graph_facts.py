"""What a plan's graph is made of: op types, categories of tensors, regions in pieces.

A plan names nodes and tensors; their types and parts are the model's to say. Without the
model, categories follow from the names that exporters give, and types are not told.
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

_PIECE = re.compile(r"__(chunk|loop)\d+(?=_|$).*")
_JOIN = re.compile(r"__chunks(?=$|_)")
_COPY = re.compile(r"__recompute\d*$")
_CACHE = re.compile(r"(?i)(^|[./_])(past|present|kv|cache)([./_\d]|_?key|_?value|s?$)")
_GRADIENT = re.compile(r"(?i)([._/]grad(ient)?s?([._/\d]|$))|^grad(ient)?[._/]")


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a model says of its nodes and tensors.

    Attributes:
        types: the op type of each node, by its label.
        parts: the tensors of the backward part and of the update, with the category.
        given: bytes of what the caller or the file gives, by category.
    """

    types: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)

    def type_of(self, node: str) -> str:
        """Return the type of a node of a plan; a copy or a piece has that of its source."""
        if _JOIN.search(node):
            return "Concat"
        for label in (node, _COPY.sub("", node), _source(node)):
            if label in self.types:
                return self.types[label]
        return ""


@dataclass(frozen=True, slots=True)
class Region:
    """Steps ``first`` to ``last`` that compute one region piece by piece."""

    label: str
    first: int
    last: int


def is_cache(name: str) -> bool:
    """Whether a name is one that exporters give to keys and values kept for later."""
    return _CACHE.search(name) is not None


def category(tensor: Placement, facts: GraphFacts) -> str:
    """Return what kind of memory a planned tensor is."""
    if _PIECE.search(tensor.name):
        return CHUNKS
    part = facts.parts.get(tensor.id) or facts.parts.get(_source(tensor.id))
    if part:
        return part
    if not facts.types and _GRADIENT.search(tensor.name):
        return GRADIENTS
    return CACHE if is_cache(tensor.name) else ACTIVATIONS


def regions(plan: Plan) -> tuple[Region, ...]:
    """Return the regions that are computed in pieces, in order of time.

    A region's pieces, in any order, are followed by what joins them: a piece behind a join
    begins the next region.
    """
    spans: list[tuple[int, int]] = []
    is_open = False
    for tick, node in sorted(nodes_at(plan).items()):
        if _JOIN.search(node):
            spans[-1:] = [(first, tick) for first, _ in spans[-1:]]
            is_open = False
        elif _PIECE.search(node):
            if not is_open:
                spans.append((tick, tick))
            spans[-1] = spans[-1][0], tick
            is_open = True
    return tuple(Region(_label(plan, at, *span), *span) for at, span in enumerate(spans))


def region_of(tensor: Placement, found: Sequence[Region]) -> int:
    """Return the place of the region that makes a piece of a tensor, or -1."""
    if not _PIECE.search(tensor.name):
        return -1
    held = (at for at, each in enumerate(found) if each.first <= tensor.first <= each.last)
    return next(held, -1)


def _label(plan: Plan, at: int, first: int, last: int) -> str:
    bases = {
        _source(t.name)
        for t in plan.tensors
        if first <= t.first <= last and _PIECE.search(t.name)
    }
    for each in plan.report.chunked.regions:
        if each.tensor in bases:
            return f"{each.tensor}: {each.pieces} pieces along axis {each.axis}"
    return f"region {at + 1} in pieces"


def _source(name: str) -> str:
    """Return the name that a piece was made from."""
    return _PIECE.sub("", name)
