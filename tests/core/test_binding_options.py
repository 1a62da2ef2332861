"""Options for a model's free dims, as they are typed."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan_cli.cli.values import parse_dims, parse_shapes, parse_values
from memplan_cli.core.binding_options import (
    InputShape,
    binding_options,
    bounds_options,
    input_shapes,
)
from memplan_cli.core.bindings import Feed, given_text
from memplan_cli.core.program import Block, Dim, Origin, Program, Var, VarId


def _program(*variables: Var) -> Program:
    top = Block(tuple(var.id for var in variables), (), ())
    return Program("p", top, {var.id: var for var in variables})


def _input(name: str, *shape: Dim) -> Var:
    return Var(VarId(name), "float32", shape, Origin.INPUT, name)


def test_a_dim_that_the_model_names_is_bound_once_by_its_name() -> None:
    inputs = (InputShape("ids", ("batch", "seq")), InputShape("mask", ("batch", "seq")))
    assert binding_options(inputs) == "--dim batch=1 --dim seq=8"


def test_an_input_with_a_nameless_dim_gets_its_whole_shape() -> None:
    inputs = (InputShape("images", ("images_dim0", 3, "images_dim2", "images_dim3")),)
    assert binding_options(inputs) == "--shape images=1,3,64,64"


def test_a_name_that_a_shape_binds_is_not_bound_twice() -> None:
    inputs = (InputShape("x", ("batch", "x_dim1")), InputShape("y", ("batch", "seq")))
    assert binding_options(inputs) == "--dim seq=8 --shape x=1,8"


def test_an_expression_is_bound_by_the_names_in_it() -> None:
    inputs = (InputShape("mask", ("batch", "new + past")), InputShape("ids", ("batch", "new")))
    assert binding_options(inputs) == "--dim batch=1 --dim new=8 --dim past=8"


def test_numbers_that_are_known_stand_in_place_of_the_usual_ones() -> None:
    inputs = (InputShape("x", ("batch", "x_dim1")), InputShape("y", ("n",)))
    numbers = {"batch": 2, "x_dim1": 576}
    assert binding_options(inputs, numbers) == "--dim n=1 --shape x=2,576"


def test_names_that_a_shell_would_change_are_quoted() -> None:
    inputs = (InputShape("a b:0", ("a b:0_dim0",)), InputShape("y", ("`it's free`",)))
    assert shlex.split(binding_options(inputs)) == [
        "--dim", "it's free=1", "--shape", "a b:0=1",
    ]  # fmt: skip


def test_what_has_numbers_or_no_rank_or_is_no_input_needs_no_option() -> None:
    program = _program(
        _input("fixed", 1, 3),
        Var(VarId("rankless"), "float32", None, Origin.INPUT),
        Var(VarId("weight"), "float32", ("n",), Origin.WEIGHT),
        _input("free", "n", 3),
    )
    assert input_shapes(program) == (InputShape("free", ("n", 3)),)
    assert not binding_options(())


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9)


@given(name=_NAMES, rank=st.integers(1, 5))
def test_options_say_the_same_after_a_shell_has_read_them(name: str, rank: int) -> None:
    shape = (*(f"{name}_dim{place}" for place in range(rank - 1)), None)
    option, words = shlex.split(binding_options((InputShape(name, shape),)))
    assert option == "--shape"
    read = parse_shapes((words,))
    assert list(read) == [name]
    assert len(read[name]) == rank
    assert all(isinstance(dim, int) for dim in read[name])


@pytest.mark.parametrize("name", ["p2o.DynamicDimension.1", "unk__214", "a=b", "seq-len"])
def test_a_dim_of_any_name_is_read_back(name: str) -> None:
    dim = f"`{name}`" if not name.isidentifier() else name
    option, words = shlex.split(binding_options((InputShape("x", (dim,)),)))
    assert (option, parse_dims((words,))) == ("--dim", {name: 1})


def test_bounds_are_asked_for_as_a_shell_takes_them() -> None:
    words = shlex.split(bounds_options(["batch", "batch size", "floor (h/2)"]))
    assert words[1::2] == ["batch=A..B", "batch size=A..B", "floor (h/2)=A..B"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,2", [1, 2]),
        ("[1,2]", [1, 2]),
        ("[1,2],[3,4]", [[1, 2], [3, 4]]),
        ("a,b", ["a", "b"]),
        ("[CLS],a", ["[CLS]", "a"]),
        ("[CLS]", "[CLS]"),
    ],
)
def test_a_list_of_values_needs_no_brackets(text: str, value: object) -> None:
    assert parse_values([f"x={text}"]) == {"x": value}


def test_an_input_is_called_what_the_file_calls_it() -> None:
    named = Var(VarId("main/x"), "float32", ("n",), Origin.INPUT, "x")
    nameless = Var(VarId("main/y"), "float32", ("n",), Origin.INPUT, "")
    assert [shape.name for shape in input_shapes(_program(named, nameless))] == ["x", "main/y"]


def test_a_message_lists_three_of_the_inputs_whose_values_are_given_and_counts_the_others() -> (
    None
):
    feeds = {name: Feed((2,), (f"{name}.npy",)) for name in "abcd"}
    assert given_text(feeds) == " with the values given of 'a', 'b', 'c' and 1 more"
    assert given_text({name: feeds[name] for name in "abc"}).endswith(" of 'a', 'b', 'c'")
    assert given_text({"a": Feed((2,))}) == ""
