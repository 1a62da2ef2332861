"""The live peak over symbols: what the expression says is what the buffers come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import parse
from memplan_cli import api
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem, pressure
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.core.symbolic.sizes import unit_value
from memplan_cli.features.donation.report import donated_line
from memplan_cli.planning.totals import MOST_SUMS, is_at_least, live_peak_text
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

UNITS = (
    "1", "batch", "seq", "batch*seq", "batch*seq*seq", "(new + past)*batch",
    "(floor((seq - 1)/2))", "(seq - 3)", "(min(16, seq))", "batch*(min(16, seq))",
)  # fmt: skip
DIMS = st.fixed_dictionaries(
    {name: st.integers(1, 40) for name in ("batch", "new", "past")}
    | {"seq": st.integers(3, 40)}
)
BUFFERS = st.lists(
    st.tuples(
        st.sampled_from(UNITS), st.integers(0, 64), st.integers(0, 6), st.integers(1, 4)
    ),
    max_size=8,
)
SUMS = st.dictionaries(st.sampled_from(UNITS), st.integers(0, 64), max_size=4)


def value(sums: Mapping[str, int], dims: Mapping[str, int]) -> int:
    return sum(size * unit_value(unit, dims) for unit, size in sums.items())


def by_units(
    buffers: list[tuple[str, int, int, int]],
) -> dict[str, tuple[Buffer, ...]]:
    found: dict[str, list[Buffer]] = {}
    for index, (unit, size, start, length) in enumerate(buffers):
        live = LiveRange(start, start + length)
        found.setdefault(unit, []).append(Buffer(BufferId(f"b{index}"), size, live))
    return {unit: tuple(members) for unit, members in found.items()}


@given(buffers=BUFFERS, dims=DIMS)
def test_the_expression_is_the_most_bytes_live(
    buffers: list[tuple[str, int, int, int]], dims: dict[str, int]
) -> None:
    units = by_units(buffers)
    text = live_peak_text(units)
    bound = [
        Buffer(b.id, b.size * unit_value(unit, dims), b.live)
        for unit, members in units.items()
        for b in members
    ]
    peak = max((live for _, live in pressure(Problem(tuple(bound)))), default=0)
    assert text is None or unit_value(text, dims) == peak


@given(one=SUMS, other=SUMS, dims=DIMS)
def test_a_proved_maximum_is_at_least_the_other_size(
    one: dict[str, int], other: dict[str, int], dims: dict[str, int]
) -> None:
    assert not is_at_least(one, other) or value(one, dims) >= value(other, dims)


@pytest.mark.parametrize(
    ("one", "other", "proved"),
    [
        ({"batch": 4096}, {"1": 64}, True),
        ({"batch": 4096}, {"1": 4097}, False),
        ({"batch*seq": 8}, {"batch": 8}, True),
        ({"batch*seq": 8}, {"batch": 6, "seq": 2}, True),
        ({"batch*seq*seq": 8, "1": 8}, {"batch*seq": 8}, True),
        ({"(new + past)*batch": 8}, {"batch*past": 8}, True),
        ({"(new + past)*batch": 8}, {"1": 16}, True),
        ({"(new + past)*batch": 8}, {"1": 17}, False),
        ({"seq": 8}, {"(min(16, seq))": 8}, True),
        ({"(min(16, seq))": 8}, {"1": 8}, True),
        ({"(min(16, seq))": 8}, {"seq": 8}, False),
        ({"seq": 8}, {"(seq - 3)": 8}, True),
        ({"batch": 8}, {"seq": 8}, False),
        (
            {"(max(5 - seq, -9)*seq + 999)": 1},
            {"(max(5 - seq, -9)*min(16, seq) + 999)": 1},
            False,
        ),
    ],
)
def test_a_sum_is_compared_for_all_dims_of_one_or_more(
    one: dict[str, int], other: dict[str, int], *, proved: bool
) -> None:
    assert is_at_least(one, other) is proved


def test_several_largest_sums_are_a_maximum_and_too_many_are_unknown() -> None:
    def apart(count: int) -> str | None:
        return live_peak_text(by_units([(f"d{n}", 8, n, 1) for n in range(count)]))

    assert apart(1) == "8*d0"
    assert apart(2) == "max(8*d0, 8*d1)"
    assert apart(MOST_SUMS) is not None
    assert apart(MOST_SUMS + 1) is None
    assert apart(500) is None
    assert live_peak_text({}) == "0"


@pytest.fixture
def symbolic(tmp_path: Path) -> Path:
    path = tmp_path / "step.onnx"
    text = """g (float[batch,8] x, float[8,8] w) => (float[batch,8] y)
        <float[4] k = {1,2,3,4}> { a = MatMul(x, w) b = Relu(a) c = Exp(b) y = Add(c, b) }"""
    onnx.save(parse(text), path)
    return path


def test_the_report_of_a_symbolic_model_knows_bound_and_total(symbolic: Path) -> None:
    report = api.report(symbolic, Settings(order="keep")).report
    assert report.bindings["batch"] == BoundDim(1, "assumed")
    for dims in ({"batch": 1}, {"batch": 7}):
        bound = api.report(symbolic, Settings(order="keep", dims=dims)).report.memory
        assert bound.total is not None
        assert unit_value(report.symbolic["live_peak"], dims) == bound.live_peak
        assert unit_value(report.symbolic["total"], dims) == bound.total
        if dims == {"batch": 1}:
            assert report.memory.total == bound.total
            assert report.memory.live_peak == bound.live_peak


def test_what_is_donated_counts_once_in_the_expression_of_the_total(tmp_path: Path) -> None:
    path = tmp_path / "donated.onnx"
    text = "g (float[batch,8] x) => (float[batch,8] y) { a = Exp(x) y = Neg(a) }"
    onnx.save(parse(text), path)
    apart = api.report(path, Settings()).report
    given_away = api.report(path, Settings(donate={"x": "y"})).report
    assert given_away.donated.pairs == (("x", "y"),)
    assert donated_line(given_away) == "1 output reuses the buffer of the input it replaces"
    saved = {"batch": 3}
    less = unit_value(apart.symbolic["total"], saved) - 3 * 32
    assert unit_value(given_away.symbolic["total"], saved) == less
    within = api.report(
        path, Settings(donate={"x": "y"}, bounds={"batch": DimRange(1, 3)})
    ).report
    assert within.donated.bytes == 3 * 32
    assert within.memory.total == less
