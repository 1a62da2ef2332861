"""Names and globs mean tensors; one that means none is an error that helps."""

from __future__ import annotations

import pytest

from builders import block, op, program, read
from memplan_cli.core.selection import is_one_of, nearest, select
from memplan_cli.errors import SettingsError

MODEL = """g (bool c, float[4] x) => (float[4] y) <float[4] w = {1,1,1,1}> {
    head_fc1 = Add(x, w)
    head_fc2 = Exp(head_fc1)
    [pick] y = If (c) <
        then_branch = t () => (float[4] one) { inner = Neg(head_fc2) one = Exp(inner) },
        else_branch = e () => (float[4] two) { inner = Exp(head_fc2) two = Neg(inner) }>
}"""


def selected(*patterns: str) -> dict[str, str]:
    return {str(var): why for var, why in select(read(MODEL), patterns).items()}


def test_a_name_means_that_tensor() -> None:
    assert selected("head_fc1") == {"head_fc1": "head_fc1"}


def test_a_name_means_the_tensors_of_that_name_in_every_block() -> None:
    assert set(selected("inner")) == {"pick.then_branch/inner", "pick.else_branch/inner"}


def test_only_at_a_slash_does_a_name_begin() -> None:
    assert is_one_of("pick.then/one", {"one"})
    assert is_one_of("pick/then/a/one", {"a/one"})
    assert not is_one_of("head_one", {"one"})


def test_a_glob_means_every_name_it_matches() -> None:
    assert set(selected("head_*")) == {"head_fc1", "head_fc2"}
    assert set(selected("head_fc[2-9]")) == {"head_fc2"}


def test_a_glob_over_block_and_name_reaches_into_one_body() -> None:
    assert set(selected("pick.then_branch/*")) == {
        "pick.then_branch/inner",
        "pick.then_branch/one",
    }


def test_the_first_pattern_that_matches_is_remembered() -> None:
    assert selected("head_*", "head_fc1") == {"head_fc1": "head_*", "head_fc2": "head_*"}


def test_globs_tell_capitals_apart() -> None:
    with pytest.raises(SettingsError):
        selected("HEAD_*")


def test_a_name_with_glob_characters_is_a_name_first() -> None:
    made = program(block("x", "z", op("a[0] <- x"), op("a0 <- a[0]"), op("z <- a0")))
    assert set(select(made, ["a[0]"])) == {"a[0]"}


def test_a_pattern_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="'head_fc3' matches no tensor") as caught:
        selected("head_fc1", "head_fc3")
    assert "'head_fc2'" in caught.value.hint
    assert "'head_fc1'" in caught.value.hint


def test_a_glob_that_matches_nothing_is_an_error_too() -> None:
    with pytest.raises(SettingsError, match="matches no tensor") as caught:
        selected("*haed_fc*")
    assert caught.value.hint.startswith("did you mean 'head_fc")


def test_where_no_name_is_near_the_hint_says_how_names_look() -> None:
    with pytest.raises(SettingsError) as caught:
        selected("zzz*")
    assert caught.value.hint.startswith("its tensors have names like '")
    with pytest.raises(SettingsError) as caught:
        select(program(block("", "")), ["a"])
    assert caught.value.hint == "it has no tensors"


def test_there_is_no_hint_where_nothing_is_near() -> None:
    assert nearest("zzz", ["head", "tail"]) == ""
    assert nearest("haed", ["head", "tail"]) == "did you mean 'head'?"
