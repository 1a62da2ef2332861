"""Honest plans in cases at the edge are accepted by the check against the model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser, save

from memplan_cli import Settings, optimize
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.checking.arena_bounds import arena_bounds
from memplan_cli.checking.timeline import build_timeline
from memplan_cli.core.results.placements import Placement, PlannedArena
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import read_plan

if TYPE_CHECKING:
    from pathlib import Path


def test_shapes_may_change_from_run_to_run_in_subgraphs_and_behind_them() -> None:
    graph = parser.parse_graph("""g (bool c, float[8] x) => (float[n] z) {
        a = Neg(x)
        y = If (c) <then_branch = t () => (float[8] u) { u = Abs(a) },
                    else_branch = e () => (float[4] v) { v = TopHalf(a) }>
        b = Abs(a) z = Neg(y) }""")
    changing = {
        value.name for value in build_timeline(graph).values() if value.depends_on_control_flow
    }
    assert changing == {"u", "v", "y", "z"}


def row(name: str, offset: int, size: int, first: int = 0, last: int = 1, **told: Any) -> Any:  # noqa: ANN401
    """Return a tensor's place, as a plan file has it."""
    more = {"dtype": "int8", "shape": (size,), "slot": None} | told
    return Placement(
        name, "", more["dtype"], more["shape"], size, 0, offset, more["slot"], first, last
    )


@given(
    boxes=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(0, 9)), max_size=8
    ),
    level=st.sampled_from((0, 1, 2)),
)
def test_an_arena_needs_what_is_live_together(
    boxes: list[tuple[int, int, int]], level: int
) -> None:
    """At levels 0 and 1 the k-th largest slot is as large as the k-th largest tensor of some tick."""
    rows = [
        row(f"t{at}", 0, size, first, first + ticks)
        for at, (first, ticks, size) in enumerate(boxes)
    ]
    plan: Any = SimpleNamespace(
        tensors=rows,
        arenas=[PlannedArena(0, "1", 99, 0, 1)],
        report=SimpleNamespace(level=level),
    )
    lives = [[r.bytes for r in rows if r.first <= tick < r.last] for tick in range(12)]
    ranked = [sorted(live, reverse=True) for live in lives]
    needs = {
        2: max(map(sum, lives)),
        1: sum(
            max((sizes[k] for sizes in ranked if k < len(sizes)), default=0)
            for k in range(len(rows))
        ),
        0: sum(
            size * max(live.count(size) for live in lives) for size in {r.bytes for r in rows}
        ),
    }
    assert arena_bounds(plan) == {0: needs[level]}


def agreement(text: str, folder: Path, settings: Settings) -> Any:  # noqa: ANN401
    model = folder / "net.onnx"
    save(
        parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "local" : 1]> {text}'),
        model,
    )
    optimize(model, settings, check=None)
    plan = read_plan(folder / "net.memplan.json")
    return compare_with_model(load_model(folder / "net.memplan.onnx"), plan, model)


HONEST: dict[str, tuple[str, Settings]] = {
    "an input of a symbol's size is donated": (
        (
            "g (float[n] x, float[n] z) => (float[n] y, float[n] w)"
            "{ a = Exp(x)  b = Neg(a)  y = Add(a, b)  w = Relu(z) }"
        ),
        Settings(donate={"x": "y"}),
    ),
    "no tensor is planned": ("g (float[4] x) => (float[4] y) { y = Neg(x) }", Settings()),
    "a size is not known, and neither are the totals": (
        (
            "g (float[4] x, int64[k] to) => (float[u] y)"
            "{ a = Exp(x)  b = Expand(a, to)  c = Neg(b)  d = Neg(c)"
            " y = ReduceSum <keepdims = 0> (d) }"
        ),
        Settings(allow_partial=True),
    ),
    "the rank of an input is not known": (
        (
            "g (float[] x) => (float[4] y) <int64[1] four = {4}>"
            "{ a = Exp(x)  b = Reshape(a, four)  y = Neg(b) }"
        ),
        Settings(allow_partial=True),
    ),
    "the bytes of an input alone are not known": (
        "g (float[] x) => (int8[4] y) <int8[64] a> { a = local.F(x)  y = local.G(a) }",
        Settings(allow_partial=True),
    ),
    "a node leaves out a result that is the first": (
        (
            "g (float[3, 1, 4] x, float[1, 8, 4] w, float[1, 8, 2] r) => (float[1, 1, 2] y)"
            "{ , h = LSTM <hidden_size = 2> (x, w, r)  y = Relu(h) }"
        ),
        Settings(),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_unchanged_plan_is_accepted(name: str, tmp_path: Path) -> None:
    text, settings = HONEST[name]
    assert agreement(text, tmp_path, settings).disagreements == ()


@pytest.mark.parametrize("field", ["elem_type", "shape"])
def test_a_tensor_whose_type_or_dims_only_the_plan_says_is_believed(
    field: str, tmp_path: Path
) -> None:
    text = "g (int8[4] x) => (int8[4] y) <int8[64] a> { a = local.F(x)  y = local.G(a) }"
    assert agreement(text, tmp_path, Settings()).unverified_sizes == 0
    written, plan = (
        load_model(tmp_path / "net.memplan.onnx"),
        read_plan(tmp_path / "net.memplan.json"),
    )
    (known,) = (value for value in written.graph.value_info if value.name == "a")
    known.type.tensor_type.ClearField(field)
    found = compare_with_model(written, plan, tmp_path / "net.onnx")
    assert (found.unverified_sizes, found.disagreements) == (1, ())


def test_a_total_is_not_accepted_where_the_bytes_of_an_input_are_not_known(
    tmp_path: Path,
) -> None:
    model = tmp_path / "net.onnx"
    text = """g (float[] x, float[n] z) => (float[4] y, float[n] w) <int64[1] four = {4}>
        { a = Reshape(x, four)  y = Neg(a)  b = Exp(z)  w = Neg(b) }"""
    save(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}'), model)
    optimize(model, Settings(), check=None)
    plan, written = read_plan(tmp_path / "net.memplan.json"), tmp_path / "net.memplan.onnx"
    assert "total" not in plan.report.symbolic
    forged = plan.with_report(
        replace(plan.report, symbolic={**plan.report.symbolic, "total": "7*n"})
    )
    assert not compare_with_model(load_model(written), plan, model).disagreements
    (message,) = compare_with_model(load_model(written), forged, model).disagreements
    assert message == "total in symbols is recorded as 7*n, it is nothing"
