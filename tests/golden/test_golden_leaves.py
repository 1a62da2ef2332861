"""Each number, name and flag of a plan file is changed alone: it is refused, or listed here.

What is listed only the model or the search can tell. `pytest tests/golden --update-golden`
writes the list again: what comes to it is no longer checked.
"""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builders import plan_of_text
from memplan_cli import Settings
from memplan_cli.errors import MemplanError
from memplan_cli.planning.checking.plan_file import checked_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    Way = tuple[str | int, ...]

WIDE = """g (float[8,8] x, float[8,8] m) => (float[8,8] z, float[8,8] n) {
    a = MatMul(x, x) b = Exp(a) c = Neg(a) d = MatMul(b, c) e = MatMul(d, b)
    z = MatMul(e, d) n = Add(m, e)
}"""
NESTED = """g (float[8] x, bool c) => (float[8] z) {
    a = Exp(x)
    y = If(c) <then_branch = t () => (float[8] p) { h = Neg(a) p = Exp(h) },
               else_branch = e () => (float[8] q) { q = Cos(a) }>
    z = Neg(y)
}"""
FOLDED = """g (float[8] x) => (float[8] z) <float[8] w = {1,2,3,4,5,6,7,8}> {
    a = Exp(w) b = Neg(a) c = Cos(x) z = Add(c, b)
}"""
SYMBOLIC = (
    "g (float[n,8] x) => (float[n,8] z) { a = Exp(x) b = Neg(a) c = Cos(a) z = Add(c, b) }"
)

STORED = Path(__file__).parent / "unchecked.json"

PLANS: dict[str, tuple[str, Settings]] = {
    "level 0": (WIDE, Settings(level=0)),
    "level 1": (WIDE, Settings(level=1)),
    "level 2": (WIDE, Settings()),
    "donated": (WIDE, Settings(donate={"m": "n"})),
    "nested": (NESTED, Settings()),
    "foldable": (FOLDED, Settings()),
    "folded": (FOLDED, Settings(fold_constants=True)),
    "symbolic": (SYMBOLIC, Settings()),
    "bounds": (SYMBOLIC, Settings(bounds={"n": (1, 4)})),
}


def leaves(data: Any, way: Way = ()) -> Iterator[Way]:  # noqa: ANN401 - JSON
    if isinstance(data, dict | list) and data:
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from leaves(data[key], (*way, key))
    else:
        yield way


def others(value: Any) -> Iterator[Any]:  # noqa: ANN401 - JSON
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 2 * value + 64)
    elif isinstance(value, float):
        yield value + 0.25
    elif isinstance(value, str):
        yield f"{value}_"
    elif value is None:
        yield 1


def put(data: Any, way: Way, value: Any) -> Any:  # noqa: ANN401 - JSON
    changed = deepcopy(data)
    at = changed
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = value
    return changed


def unnoticed(name: str) -> list[str]:
    """Return what can be changed, and whether a one more, a one less or something else can."""
    text, settings = PLANS[name]
    data = json.loads(plan_of_text(text, settings).dumps())
    checked_plan(deepcopy(data))
    found = set()
    for way in leaves(data):
        at = data
        for key in way:
            at = at[key]
        for how, other in zip("+-*", others(at), strict=False):
            try:
                checked_plan(put(data, way, other))
            except MemplanError:
                continue
            found.add(".".join(map(str, way)) + how)
    return sorted(found)


@pytest.mark.parametrize("name", PLANS)
def test_what_is_changed_alone_is_refused(name: str, *, update_golden: bool) -> None:
    found = unnoticed(name)
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    if update_golden:
        stored[name] = found
        rows = {key: stored[key] for key in PLANS if key in stored}
        STORED.write_text(json.dumps(rows, indent=1) + "\n")
    assert found == stored[name], "pytest tests/golden --update-golden"
