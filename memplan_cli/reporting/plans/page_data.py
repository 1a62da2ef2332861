"""What a page's script draws: tensors column by column, arenas, symbols, nodes.

Sizes stay multiples of their arena's unit, so that the script can work out all of them for
other values of the symbols.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import curve, nodes_at
from memplan_cli.reporting.escape import script, terminal
from memplan_cli.reporting.plans.evaluable import evaluable, symbols_in
from memplan_cli.reporting.plans.graph_facts import (
    GraphFacts,
    category,
    region_of,
    regions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.graph_facts import Region

_LARGE = 400_000
"""Characters of data from which on they are packed: a page must open in seconds."""

FIGURES = {"naive": "naive", "planned": "planned", "total": "total"}
"""Cards that follow the symbols, and the expression of each; the lower bound is the map's."""


def embedded(data: Json) -> str:
    """Return the element that holds a page's data; packed where it is large."""
    text = script(data)
    if len(text) < _LARGE:
        return f'<script type="application/json" id="data">{text}</script>'
    packed = base64.b64encode(zlib.compress(json.dumps(data, separators=(",", ":")).encode()))
    return (
        f'<script type="text/plain" id="data" data-packed="deflate">{packed.decode()}</script>'
    )


def page_data(plan: Plan, facts: GraphFacts | None, beside: Plan | None = None) -> Json:
    """Return a plan as its page's script reads it, with another plan's live bytes."""
    facts = facts or GraphFacts()
    ticks = max((tensor.last for tensor in plan.tensors), default=0)
    labels = nodes_at(plan)
    nodes = [labels.get(tick, "") for tick in range(ticks)]
    pieces = regions(plan)
    names = _symbols(plan, beside)
    types = _numbered(facts.type_of(node) for node in nodes)
    return {
        "arenas": [{"unit": terminal(a.unit), "height": a.height} for a in plan.arenas],
        "units": [evaluable(arena.unit, names) for arena in plan.arenas],
        "symbols": [_symbol(plan, name) for name in names],
        "figures": {
            name: found
            for name, key in FIGURES.items()
            if names and (found := evaluable(plan.report.symbolic.get(key, "?"), names))
        },
        "coverage": plan.report.coverage,
        "ticks": ticks,
        "nodes": [terminal(node) for node in nodes],
        "types": [terminal(each) for each in types],
        "type": [types[facts.type_of(node)] for node in nodes] if any(types) else [],
        "regions": [
            {"label": terminal(each.label), "first": each.first, "last": each.last}
            for each in pieces
        ],
        "given": _given(plan, facts),
        "other": _curves(beside, names) if beside else None,
        **_tensors(plan, facts, pieces),
    }


def _symbols(plan: Plan, beside: Plan | None) -> dict[str, int]:
    texts = [arena.unit for each in (plan, beside) if each for arena in each.arenas]
    if any(text != "1" for text in texts):
        # Figures count outputs and inputs too, which may have symbols of their own.
        texts += [
            plan.report.symbolic[key]
            for key in FIGURES.values()
            if key in plan.report.symbolic
        ]
    return {name: at for at, name in enumerate(symbols_in(texts))}


def _symbol(plan: Plan, name: str) -> Json:
    bound = plan.report.bindings.get(name)
    return {
        "name": terminal(name),
        "value": bound.value if bound else 1,
        "source": bound.source if bound else "not known",
    }


def _given(plan: Plan, facts: GraphFacts) -> Json:
    """Return bytes beside the intermediates by category, from the model or the totals."""
    memory = plan.report.memory
    totals = {"weights": memory.weights, "inputs": memory.inputs}
    return dict(facts.given) or {name: size for name, size in totals.items() if size}


def _numbered(words: Iterable[str]) -> dict[str, int]:
    return {word: at for at, word in enumerate(dict.fromkeys(words))}


def _tensors(plan: Plan, facts: GraphFacts, pieces: Sequence[Region]) -> Json:
    """Return the tensors column by column: a third of the bytes of one object each."""
    positions = {tensor.id: index for index, tensor in enumerate(plan.tensors)}
    arenas = {arena.id: index for index, arena in enumerate(plan.arenas)}
    tensors = tuple(plan.tensors)
    shapes = [terminal(", ".join(map(str, t.shape))) for t in tensors]
    words: Mapping[str, list[str]] = {
        "reasons": [terminal(t.pinned or "") for t in tensors],
        "categories": [category(t, facts) for t in tensors],
        "dtypes": [terminal(t.dtype) for t in tensors],
        "shapes": shapes,
    }
    places = {name: _numbered(column) for name, column in words.items()}
    return {
        **{name: list(found) for name, found in places.items()},
        "tensors": {
            "name": [terminal(t.id) for t in tensors],
            "dtype": [places["dtypes"][word] for word in words["dtypes"]],
            "shape": [places["shapes"][word] for word in shapes],
            "bytes": [t.bytes for t in tensors],
            "arena": [arenas[t.arena] for t in tensors],
            "offset": [t.offset for t in tensors],
            "first": [t.first for t in tensors],
            "last": [t.last for t in tensors],
            "alias": [positions[t.alias_of] if t.alias_of else -1 for t in tensors],
            "pinned": [places["reasons"][word] for word in words["reasons"]],
            "category": [places["categories"][word] for word in words["categories"]],
            "region": [region_of(t, pieces) for t in tensors] if pieces else [],
        },
    }


def _curves(plan: Plan, names: Mapping[str, int]) -> list[Json]:
    """Return the live bytes of each arena of another plan, in multiples of its unit."""
    return [
        {
            "unit": evaluable(arena.unit, names),
            "ticks": [tick for tick, _ in points],
            "bytes": [size for _, size in points],
        }
        for arena in plan.arenas
        if (points := curve(plan, arena))
    ]
