"""Names of dims: which are names, which are expressed by those of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builders import parse
from memplan_cli.core.program import VarId
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import dim_names, free_dims, reject_unknown_dims
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.program import Shape

NO_NAMES = ("?", "-1", "None", "unk__214")


def renamed(text: str, name: str, *places: str) -> ModelProto:
    """Parse a model, and call the dims that are called by one of ``places`` by a name."""
    model = parse(text)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in places:
                dim.dim_param = name
    return model


def shapes(model: ModelProto, **dims: int) -> dict[str, Shape | None]:
    program = read_checked(model, Bindings(dims)).program
    return {var: facts.shape for var, facts in program.vars.items()}


PAIR = "g (float[p,q] x, float[p,4] z) => (float[p,q] y) { a = Relu(x) y = Neg(a) b = Neg(z) }"


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_another_dim_wherever_it_stands(name: str) -> None:
    found = shapes(renamed(PAIR, name, "p", "q"))
    assert found[VarId("x")] == found[VarId("a")] == found[VarId("y")] == ("x_dim0", "x_dim1")
    assert found[VarId("b")] == ("z_dim0", 4)


@pytest.mark.parametrize("name", NO_NAMES)
def test_each_can_be_bound_by_a_name_of_its_own(name: str) -> None:
    model = renamed(PAIR, name, "p", "q")
    assert dim_names(model) == {"x_dim0", "x_dim1", "z_dim0"}
    found = shapes(model, x_dim0=48, x_dim1=192)
    assert found[VarId("a")] == (48, 192)
    assert found[VarId("b")] == ("z_dim0", 4)


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_shape_binds_them_one_by_one(name: str) -> None:
    program = read_checked(
        renamed(PAIR, name, "p", "q"), Bindings(shapes={"x": (48, 192)})
    ).program
    assert program.vars[VarId("a")].shape == (48, 192)
    assert program.vars[VarId("b")].shape == ("z_dim0", 4)


def test_a_name_like_ours_in_the_file_is_another_dim() -> None:
    text = (
        "g (float[q,4] x, float[x_dim0,4] z) => (y, b) { a = Relu(x) y = Neg(a) b = Neg(z) }"
    )
    model = renamed(text, "?", "q")
    assert free_dims(model) == {"x_dim0_": True, "x_dim0": True}
    assert dim_names(model) == {"x_dim0_", "x_dim0"}
    found = shapes(model, x_dim0=3, x_dim0_=5)
    assert (found[VarId("y")], found[VarId("b")]) == ((5, 4), (3, 4))
    assert [spec.shape for spec in feed_specs(model, {"x_dim0_": 5})] == [(5, 4), (1, 4)]
    by_shape = read_checked(model, Bindings(shapes={"x": (7, 4)})).program
    assert by_shape.vars[VarId("a")].shape == (7, 4)
    assert by_shape.vars[VarId("b")].shape == ("x_dim0", 4)


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_run_is_fed_by_the_same_names(name: str) -> None:
    model = renamed(PAIR, name, "p", "q")
    assert free_dims(model) == {"x_dim0": True, "x_dim1": False, "z_dim0": True}
    assert [spec.shape for spec in feed_specs(model, {"x_dim1": 5})] == [(1, 5), (1, 4)]


def test_a_name_that_looks_like_arithmetic_is_fed_as_one_name() -> None:
    model = renamed(PAIR, "sequence-length", "q")
    assert free_dims(model) == {"p": True, "sequence-length": False}
    assert dim_names(model) == {"p", "sequence-length"}
    assert shapes(model, **{"sequence-length": 3})[VarId("a")] == ("p", 3)


CALL = "floor(h/2)"
"""What some exporters call a dim: the name is ``floor (h/2)`` then, which is no call."""


def test_a_name_that_looks_like_a_call_is_one_name_everywhere() -> None:
    model, name = renamed(PAIR, CALL, "q"), "floor (h/2)"
    assert free_dims(model) == {"p": True, name: False}
    assert dim_names(model) == {"p", name}
    assert shapes(model)[VarId("a")] == ("p", f"`{name}`")
    assert shapes(model, **{name: 3})[VarId("a")] == ("p", 3)
    by_shape = read_checked(model, Bindings(shapes={"x": (7, 4)})).program
    assert by_shape.vars[VarId("a")].shape == (7, 4)
    assert [spec.shape for spec in feed_specs(model, {name: 5})] == [(1, 5), (1, 4)]


def test_a_call_of_another_inputs_dim_stays_one() -> None:
    text = "g (float[p,q] x, float[p,h] z) => (float[p,q] y) { a = Relu(x) y = Neg(a) }"
    model = renamed(text, CALL, "q")
    assert free_dims(model) == {"p": True, "h": False}
    assert shapes(model, h=7)[VarId("a")] == ("p", 3)


INVENTED = (
    "p2o.DynamicDimension.1",
    "LayerNormalizationhidden_dim_0",
    "s6",
    "unk__214",
    "floor(floor(height/2 - 1/2)/2) + 1",
)


@pytest.mark.parametrize("name", INVENTED)
def test_an_invented_name_is_expressed_by_the_dims_of_inputs(name: str) -> None:
    model = renamed(
        "g (float[n,4] x, float[m,4] z) => (float[o,4] y) { y = Concat<axis = 0>(x, z) }",
        name,
        "o",
    )
    assert shapes(model)[VarId("y")] == ("m + n", 4)
    assert shapes(model, n=3, m=4)[VarId("y")] == (7, 4)


def test_a_name_that_one_place_explains_is_explained_in_all() -> None:
    model = parse("""g (float[n,4] x, float[m,4] z) => (float[w,4] y)
        <float[o,4] a, float[o,3] b> {
        a = Concat<axis = 0>(x, z) b = local.Foo(a) y = local.Bar(b) }""")
    found = shapes(model)
    assert found[VarId("b")] == ("m + n", 3)
    assert found[VarId("y")] == ("w", 4)


def test_a_name_is_explained_beside_a_declaration_that_its_node_contradicts() -> None:
    model = parse("""g (float[n,4] x, float[m,4] z) => (y) <float[o,3] b, float[o,4] a, float[9] wrong> {
        a = Concat<axis = 0>(x, z) b = local.Foo(a) wrong = Neg(a) y = local.Bar(b, wrong) }""")
    found = shapes(model)
    assert [found[VarId(name)] for name in ("b", "wrong")] == [("m + n", 3), ("m + n", 4)]


def test_a_name_that_two_places_explain_differently_explains_nothing() -> None:
    model = parse("""g (float[n,4] x, float[m,4] z) => (y) <float[o,4] a, float[o,4] b, float[o,3] c> {
        a = Neg(x) b = Neg(z) c = local.Foo(a) y = local.Bar(c) }""")
    found = shapes(model)
    assert [found[VarId(name)] for name in "abc"] == [("n", 4), ("m", 4), ("o", 3)]


def test_a_name_of_a_size_that_data_decides_stays() -> None:
    model = parse("""g (float[n] x) => (float[u] y) {
        i = NonZero(x) j = Squeeze(i) y = local.Foo(j) }""")
    assert shapes(model)[VarId("y")] == ("u",)
    assert shapes(model, u=6)[VarId("y")] == (6,)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ({"o": 7}, "dim 'o' is m \\+ n, which is not bound to 7"),
        ({"o": 7, "m": 2, "n": 3}, "dim 'o' is 5 at m=2, n=3, not 7"),
    ],
)
def test_a_value_for_a_name_that_the_inputs_decide_is_refused(
    dims: dict[str, int], said: str
) -> None:
    model = parse(
        "g (float[n,4] x, float[m,4] z) => (float[o,4] y) { y = Concat<axis = 0>(x, z) }"
    )
    with pytest.raises(SettingsError, match=said):
        shapes(model, **dims)
    assert shapes(model, o=5, m=2, n=3)[VarId("y")] == (5, 4)


def test_a_value_for_a_name_that_is_a_fixed_number_is_refused() -> None:
    model = parse("g (float[5,4] x) => (float[o,4] y) { y = Neg(x) }")
    with pytest.raises(SettingsError, match="dim 'o' is 5, not 7"):
        shapes(model, o=7)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        SettingsError, match="the model has no dim 'pp': its dims are p, q"
    ) as told:
        reject_unknown_dims(parse(PAIR), ["p", "pp"])
    assert told.value.hint == "did you mean 'p'?"
    reject_unknown_dims(parse(PAIR), ["p", "k"], [("k", 4)])
