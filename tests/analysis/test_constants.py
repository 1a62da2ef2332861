"""Constant expressions: what hangs on weights alone, in every block."""

from __future__ import annotations

from builders import read
from memplan_cli.analysis.constant_vars import constants

W = "float[2,3] w = {1,2,3,4,5,6}"


def names(text: str) -> list[str]:
    return list(constants(read(text)))


def test_what_hangs_on_weights_alone_is_constant_through_any_number_of_nodes() -> None:
    text = f"a (float[3,2] x) => (float[3,2] y) <{W}> {{ t = Transpose(w) u = Neg(t) y = Add(x, u) }}"
    assert names(text) == ["t", "u"]


def test_a_constant_node_is_a_weight_and_no_expression() -> None:
    text = "a (float[1] x) => (float[1] y) { c = Constant <value_float = 1.0> () d = Neg(c) y = Add(x, d) }"
    assert names(text) == ["d"]


def test_a_random_value_is_not_constant() -> None:
    text = f"a () => (float[2,3] y) <{W}> {{ r = RandomNormalLike(w) y = Add(r, w) }}"
    assert names(text) == []


def test_a_weight_that_is_an_input_too_is_a_default_that_a_caller_may_replace() -> None:
    text = f"a (float[3,2] x, float[2,3] w) => (float[3,2] y) <{W}> {{ t = Transpose(w) y = Add(x, t) }}"
    assert names(text) == []
    assert read(text).overridable == {"w"}


def test_an_operator_of_another_domain_is_none() -> None:
    text = f"a (float[2,3] x) => (float[2,3] y) <{W}> {{ t = local.Mystery(w) y = Add(x, t) }}"
    assert names(text) == []


BRANCHES = """
 <then_branch = one () => (float[2,3] p) { t = Neg(w) p = Abs(t) },
  else_branch = other () => (float[2,3] q) { q = %s }>
"""


def test_control_flow_is_constant_where_its_condition_and_all_it_captures_are() -> None:
    head = f"a (float[2,3] x) => (float[2,3] y) <{W}, bool c = {{1}}>"
    quiet = f"{head} {{ z = If (c) {BRANCHES % 'Neg(w)'} y = Add(x, z) }}"
    assert [name for name in names(quiet) if "/" not in name] == ["z"]
    reads_input = f"{head} {{ z = If (c) {BRANCHES % 'Neg(x)'} y = Add(x, z) }}"
    found = names(reads_input)
    assert "z" not in found
    assert [name.rpartition("/")[2] for name in found] == ["t", "p"], "in its branch it is"
    random = f"{head} {{ z = If (c) {BRANCHES % 'RandomNormalLike(w)'} y = Add(x, z) }}"
    assert "z" not in names(random)
    foreign = f"{head} {{ z = If (c) {BRANCHES % 'local.Mystery(w)'} y = Add(x, z) }}"
    assert "z" not in names(foreign)


def test_a_carried_value_of_a_loop_is_not_constant() -> None:
    text = f"""a (float[2,3] x) => (float[2,3] y) <{W}, int64 n = {{3}}, bool c = {{1}}> {{
      z = Loop (n, c, x) <body = turn (int64 i, bool k, float[2,3] s) => (bool k2, float[2,3] s2)
        {{ k2 = Identity(k) t = Neg(w) s2 = Add(s, t) }}>
      y = Identity(z) }}"""
    assert [name.rpartition("/")[2] for name in names(text)] == ["t"]
