"""The workspace of kernels, by rules and as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from builders import parse
from memplan_cli import Settings, api
from memplan_cli.core.results.observations import UNOPTIMIZED, RuntimeSettings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.profile.workspace import requests_from_totals, workspace_by_rule
from memplan_cli.runtime.settings_search.predicted import predict_settings
from memplan_cli.runtime.simulate.predict import ExecutedGraph, session_traces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from memplan_cli.core.program import Program

SPREAD = 256 * 512 * 4
NAMELESS = """g (bool[256, 1] c, float[256, 512] x, float[1, 512] y) => (float[256, 512] z) {
    a = Neg (x)  w = Where (c, a, y)  v = Relu (w)  u = Where (c, x, y)
    t = Add (u, v)  z = Neg (t) }"""
MEASURED = {"Where": 2 * SPREAD}
"""What the runtime's statistics say of all nodes of a type that have no name."""


def program(text: str) -> Program:
    return read_program(parse(text)).program


def test_nodes_without_names_ask_for_what_rules_say() -> None:
    nameless = program(NAMELESS)
    assert workspace_by_rule(nameless, {}) == {"w": (SPREAD,) * 2, "u": (SPREAD,) * 2}
    asked = requests_from_totals(nameless, {}, MEASURED)
    assert asked["w"] == asked["u"] == (SPREAD, SPREAD)
    assert "w" not in requests_from_totals(nameless, {}, {"Conv": 64})
    run, bare = (
        session_traces(ExecutedGraph(nameless), UNOPTIMIZED, w).first for w in (MEASURED, {})
    )
    assert len(run.sizes) == len(bare.sizes) + 2 * 2


NOTHING = "g (float[0, 8] x) => (float[0, 8] y) { a = Neg (x)  y = Exp (a) }"

BRANCHES = """g (bool c, float[64, 512] x) => (float[64, 512] y) {
    a = Neg (x)
    b = If (c) <then_branch = t () => (float[64, 512] u) { v = Exp (x)  w = Sin (v)  u = Add (v, w) },
                else_branch = e () => (float[64, 512] r) { r = Identity (x) }>
    y = Mul (a, b) }"""


@pytest.mark.parametrize(
    "text", [NAMELESS, NOTHING, BRANCHES], ids=["names", "no bytes", "data"]
)
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_arenas_hold_what_is_predicted(
    save: Callable[..., Path], target: Literal["portable", "cpu"], text: str
) -> None:
    """Without names, without any bytes, and where only a run tells which branch is taken."""
    done = api.optimize(save(text), Settings(target=target))
    facts = done.plan.report.runtime
    assert facts is not None
    assert facts.predicted["optimized"].held == facts.observed["optimized"].held


def test_what_asks_for_nothing_gets_no_region_for_a_memory_pattern() -> None:
    choice = predict_settings(ExecutedGraph(program(NOTHING)), RuntimeSettings(), {})
    assert choice.predicted.held == 0
    assert not any("initial" in key for key in choice.settings.arena)


@pytest.mark.parametrize(
    ("condition", "kind", "dims", "expected"),
    [
        ("0, 4", "float", "1, 4", ()),
        ("3, 1", "float", "1, 4", (48, 48)),
        ("1", "string", "2, 4", (256, 256)),
    ],
)
def test_alternatives_are_spread_over_the_condition(
    condition: str, kind: str, dims: str, expected: tuple[int, ...]
) -> None:
    text = f"g (bool[{condition}] c, {kind}[{dims}] x) => ({kind}[a, b] w) {{ w = Where (c, x, x) }}"
    assert workspace_by_rule(program(text), {}).get("w", ()) == expected
