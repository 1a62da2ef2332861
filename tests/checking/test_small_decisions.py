"""What each part of the check against the model decides, on cases counted by hand or one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import parser, save

from memplan_cli import Settings, optimize
from memplan_cli.checking.certificates import operators as certified
from memplan_cli.checking.certificates.arenas import check_arena
from memplan_cli.checking.certificates.refused import RefusedError
from memplan_cli.checking.figures import _fresh
from memplan_cli.checking.sharing import _same_size
from memplan_cli.core import program
from memplan_cli.core.results.certificate import ArenaProof
from memplan_cli.core.results.placements import ArenaFacts, Placement
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.checking.plan_file import read_plan
from memplan_cli.transforms.rematerialization import values as recomputed
from memplan_cli.workflows.files.agreement import held_against

if TYPE_CHECKING:
    from pathlib import Path

Told = tuple[int, str, tuple[int | str, ...]]
RANGES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 6)), max_size=12)


def row(name: str, offset: int, size: int, first: int = 0, last: int = 1, **told: Any) -> Any:  # noqa: ANN401
    """Return a tensor's place, as a plan file has it."""
    more = {"dtype": "int8", "shape": (size,), "slot": None} | told
    return Placement(
        name, "", more["dtype"], more["shape"], size, 0, offset, more["slot"], first, last
    )


@example(ranges=[(0, 3), (5, 3), (2, 4), (3, 2)])
@example(ranges=[(0, 2), (4, 2), (8, 2), (1, 8), (2, 2), (6, 2)])
@given(ranges=RANGES)
def test_a_tensor_is_fresh_where_none_of_its_bytes_was_taken(
    ranges: list[tuple[int, int]],
) -> None:
    rows = [row(f"t{at:02}", low, size, at, at + 1) for at, (low, size) in enumerate(ranges)]
    taken: set[int] = set()
    fresh = 0
    for low, size in ranges:
        own = set(range(low, low + size))
        fresh += taken.isdisjoint(own)
        taken |= own
    assert _fresh(rows) == fresh


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((8, "float32", ("n",)), (8, "float32", ("m",)), False),
        ((8, "float32", ("n", 2)), (8, "float32", (2, "n")), True),
        ((8, "float32", ("n",)), (8, "int32", ("n",)), True),
        ((8, "float32", ("n",)), (8, "int64", ("n",)), False),
        ((8, "float32", (2,)), (8, "int64", (1,)), True),
        ((8, "float32", ("n",)), (4, "float32", ("n",)), False),
    ],
)
def test_sizes_are_alike_where_they_are_for_all_dims(
    one: Told, other: Told, *, same: bool
) -> None:
    rows = [row("a", 0, size, dtype=dtype, shape=shape) for size, dtype, shape in (one, other)]
    assert _same_size(*rows) == same


@given(
    boxes=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(0, 9)),
        min_size=1,
        max_size=6,
    )
)
def test_a_load_is_shown_at_a_tick_exactly_where_so_much_is_live(
    boxes: list[tuple[int, int, int]],
) -> None:
    tensors: Any = {
        f"t{at}": SimpleNamespace(row=row(f"t{at}", 0, size, first, first + ticks))
        for at, (first, ticks, size) in enumerate(boxes)
    }
    arena = ArenaFacts(0, "1", 99, 0, 1)
    for tick in range(13):
        live = sum(size for first, ticks, size in boxes if first <= tick < first + ticks)
        check_arena(arena, tensors, 2, ArenaProof(0, live, "load", tick))
        with pytest.raises(RefusedError, match=f"{live} bytes live"):
            check_arena(arena, tensors, 2, ArenaProof(0, live + 1, "load", tick))


def test_what_certificates_know_of_operators_is_what_recomputation_knows() -> None:
    assert certified.OPTIONAL_RESULTS == recomputed.OPTIONAL_OUTPUTS
    assert certified.DRAWING == program.RANDOM


def agreement(text: str, folder: Path, settings: Settings) -> Any:  # noqa: ANN401
    model = folder / "net.onnx"
    save(
        parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21, "local" : 1]> {text}'),
        model,
    )
    optimize(model, settings, check=None)
    plan = read_plan(folder / "net.memplan.json")
    return held_against(load_model(folder / "net.memplan.onnx"), plan, model)


HONEST: dict[str, tuple[str, Settings]] = {
    "an input of a symbol's size is donated": (
        (
            "g (float[n] x, float[n] z) => (float[n] y, float[n] w)"
            "{ a = Exp(x)  b = Neg(a)  y = Add(a, b)  w = Relu(z) }"
        ),
        Settings(donate={"x": "y"}),
    ),
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
def test_what_nobody_changed_is_believed(name: str, tmp_path: Path) -> None:
    text, settings = HONEST[name]
    assert agreement(text, tmp_path, settings).disagreements == ()


@pytest.mark.parametrize("field", ["elem_type", "shape"])
def test_a_tensor_whose_type_or_dims_only_the_plan_says_is_believed(
    field: str, tmp_path: Path
) -> None:
    text = "g (int8[4] x) => (int8[4] y) <int8[64] a> { a = local.F(x)  y = local.G(a) }"
    assert agreement(text, tmp_path, Settings()).believed == 0
    written, plan = (
        load_model(tmp_path / "net.memplan.onnx"),
        read_plan(tmp_path / "net.memplan.json"),
    )
    (known,) = (value for value in written.graph.value_info if value.name == "a")
    known.type.tensor_type.ClearField(field)
    found = held_against(written, plan, tmp_path / "net.onnx")
    assert (found.believed, found.disagreements) == (1, ())
