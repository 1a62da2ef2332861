"""The data of a plan's page: tensors column by column, arenas, symbols, nodes and expressions.

Sizes stay multiples of their arena's unit, so that the script can evaluate them for other values
of the symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.results.timeline import nodes_at
from memplan_cli.core.symbolic.dims import parse_dim, symbols_of
from memplan_cli.core.symbolic.polynomials import parse_call, symbol_names
from memplan_cli.core.symbolic.sizes import FIXED_UNIT
from memplan_cli.reporting.escape import printable
from memplan_cli.reporting.pages.graph_facts import (
    GraphFacts,
    category,
    region_of,
    regions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memplan_cli.core.json_types import Json
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.symbolic.polynomials import Polynomial
    from memplan_cli.reporting.pages.graph_facts import Region

_FIGURES = ("naive", "planned", "total")
"""Cards of the page that show an expression. The lower bound is computed from the map instead."""


def page_data(plan: Plan, facts: GraphFacts | None) -> Json:
    """Return the data of a plan's page, under the keys that its script reads: these, and those of `_tensor_columns`.

    - ``arenas``: the unit of each, a product of symbols such as ``batch*seq``, and its height as a multiple of the unit.
    - ``units``: the same units as `evaluable` expressions.
    - ``symbols``: of all expressions, none if all arenas are fixed; ``figures``: the expressions of `_FIGURES`.
    - ``coverage``: the share of the intermediates whose size is known.
    - ``ticks``: their number; ``nodes``: the label of the node at each tick.
    - ``types``: the distinct op types; ``type``: for each tick, the index into ``types``, empty without a model.
    - ``regions``: chunked regions, with an inclusive last tick.
    - ``given``: the bytes of weights, inputs and the like, by category.

    ``facts`` are op types and categories from the model; None: the model is not at hand.
    """
    facts = facts or GraphFacts()
    ticks = max((tensor.last for tensor in plan.tensors), default=0)  # ``last`` is exclusive
    labels = nodes_at(plan)
    # A tensor that is live until the end of the run may last to a tick at which no node runs.
    nodes = [labels.get(tick, "") for tick in range(ticks)]
    chunked_regions = regions(plan)
    symbols = _symbol_indices(plan)
    type_at_tick = [facts.type_of(node) for node in nodes]
    index_of_type = _indices(type_at_tick)
    return {
        "arenas": [{"unit": printable(a.unit), "height": a.height} for a in plan.arenas],
        "units": [evaluable(arena.unit, symbols) for arena in plan.arenas],
        "symbols": [_symbol(plan, name) for name in symbols],
        "figures": _figure_expressions(plan, symbols) if symbols else {},
        "coverage": plan.report.coverage,
        "ticks": ticks,
        "nodes": [printable(node) for node in nodes],
        "types": [printable(op_type) for op_type in index_of_type],
        "type": [index_of_type[op_type] for op_type in type_at_tick]
        if facts.has_model
        else [],
        "regions": [
            {"label": printable(region.label), "first": region.first, "last": region.last}
            for region in chunked_regions
        ],
        "given": _given_bytes(plan, facts),
        **_tensor_columns(plan, facts, chunked_regions),
    }


def _symbol_indices(plan: Plan) -> dict[str, int]:
    """Return the index of each symbol in the page's list; none if all arenas, and so the page's map, are fixed."""
    units = [arena.unit for arena in plan.arenas]  # ``batch*seq``, or "1" for a fixed arena
    if all(unit == FIXED_UNIT for unit in units):
        return {}
    # The expressions of figures may contain further symbols, of inputs and outputs.
    symbolic = plan.report.symbolic
    figures = [symbolic[name] for name in _FIGURES if name in symbolic]
    names = frozenset().union(*map(symbols_of, units + figures))
    return {name: index for index, name in enumerate(sorted(names))}


def _figure_expressions(plan: Plan, symbols: Mapping[str, int]) -> dict[str, list[object]]:
    """Return the expressions of `_FIGURES` that the report has, are not 0, and can be evaluated by ``symbols``."""
    symbolic = plan.report.symbolic
    expressions = {n: evaluable(symbolic[n], symbols) for n in _FIGURES if n in symbolic}
    return {name: expression for name, expression in expressions.items() if expression}


def _symbol(plan: Plan, name: str) -> Json:
    """Return a symbol with the value that the page starts with: 1 if the report binds none."""
    bound = plan.report.bindings.get(name)
    return {
        "name": printable(name),  # with escapes for unprintable characters
        "value": bound.value if bound else 1,
        "source": bound.source if bound else "unknown",
    }


def _given_bytes(plan: Plan, facts: GraphFacts) -> Json:
    """Return the bytes of weights and inputs, by category such as caches."""
    if facts.given:  # counted in the model; empty without the model, or if a size has symbols
        return dict(facts.given)
    memory = plan.report.memory
    totals = {"weights": memory.weights, "inputs": memory.inputs}
    return {name: size for name, size in totals.items() if size}


def _indices(texts: Iterable[str]) -> dict[str, int]:
    """Return the index of each distinct text, in the order of their first use."""
    return {text: index for index, text in enumerate(dict.fromkeys(texts))}


def _tensor_columns(plan: Plan, facts: GraphFacts, chunked_regions: Sequence[Region]) -> Json:
    """Return the tensors column by column, which needs a third of the bytes of one object each.

    Texts that repeat are stored once, in lists, and the columns hold indices into them. ``alias`` is the
    index of the tensor whose bytes a tensor shares, -1 for none.
    """
    arenas = {arena.id: index for index, arena in enumerate(plan.arenas)}
    tensors = tuple(plan.tensors)
    positions = {tensor.id: index for index, tensor in enumerate(tensors)}
    repeated_texts: Mapping[str, list[str]] = {
        "reasons": [printable(t.pinned or "") for t in tensors],
        "categories": [category(t, facts) for t in tensors],
        "dtypes": [printable(t.dtype) for t in tensors],
        "shapes": [printable(", ".join(map(str, t.shape))) for t in tensors],
    }
    indices = {name: _indices(column) for name, column in repeated_texts.items()}
    return {
        **{name: list(distinct_texts) for name, distinct_texts in indices.items()},
        "tensors": {
            "name": [printable(t.id) for t in tensors],
            "bytes": [t.bytes for t in tensors],
            "offset": [t.offset for t in tensors],
            "first": [t.first for t in tensors],
            "last": [t.last for t in tensors],
            "alias": [positions[t.alias_of] if t.alias_of else -1 for t in tensors],
            "dtype": [indices["dtypes"][text] for text in repeated_texts["dtypes"]],
            "shape": [indices["shapes"][text] for text in repeated_texts["shapes"]],
            "arena": [arenas[t.arena] for t in tensors],
            "pinned": [indices["reasons"][text] for text in repeated_texts["reasons"]],
            "category": [indices["categories"][text] for text in repeated_texts["categories"]],
            "region": [region_of(t, chunked_regions) for t in tensors]
            if chunked_regions
            else [],
        },
    }


def evaluable(text: str, indices: Mapping[str, int]) -> list[object] | None:
    """Return an expression as nested lists for the page's script to evaluate.

    A sum is a list of products ``[number, atoms]``. An atom is the index of a symbol in the
    page's list, or a function with its arguments: ``["floor", [sum, sum]]``. None means that
    a symbol of the expression is not in ``indices``.
    """
    terms = parse_dim(text)
    return _sum(terms, indices) if symbol_names(terms) <= indices.keys() else None


def _sum(terms: Polynomial, indices: Mapping[str, int]) -> list[object]:
    """Return a polynomial as the list of its products, as `evaluable` describes it."""
    return [
        [value, [_atom(atom, indices) for atom in atoms]] for atoms, value in terms.items()
    ]


def _atom(atom: str, indices: Mapping[str, int]) -> object:
    """Return the index of a symbol, or a function such as ``floor(...)`` with its arguments."""
    call = parse_call(atom)
    if call is None:
        return indices[atom]
    name, arguments = call
    return [name, [_sum(argument, indices) for argument in arguments]]
