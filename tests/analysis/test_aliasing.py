"""Which vars may share their bytes; every rule has a test that fails without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builders import block, op, program, var_sizes
from memplan_cli.analysis.aliasing import (
    SHARE_NOTHING,
    SHARE_SAFELY,
    SHARE_VIEWS,
    Aliasing,
    share_storage,
)
from memplan_cli.core.operators import names_of
from memplan_cli.core.program import VarId
from memplan_cli.core.symbolic.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Block


def groups(
    top: Block,
    *without: str,
    sizes: Mapping[str, int] | None = None,
    aliasing: Aliasing = SHARE_SAFELY,
    weights: str = "",
) -> set[str]:
    """Return the groups of more than one var, members sorted: ``{"a b"}``."""
    made = program(top, sizes=sizes, weights=weights)
    found: dict[str, list[str]] = {}
    for var, buffer in share_storage(made, var_sizes(made, *without), aliasing).items():
        found.setdefault(buffer, []).append(var)
    return {" ".join(sorted(members)) for members in found.values() if len(members) > 1}


def chain(kind: str, *, domain: str = "") -> Block:
    return block("x", "z", op("a <- x"), op("b <- a", kind=kind, domain=domain), op("z <- b"))


@pytest.mark.parametrize("kind", names_of(lambda each: each.is_view))
def test_a_view_shares_the_bytes_of_its_base(kind: str) -> None:
    assert groups(chain(kind)) == {"a b"}


@pytest.mark.parametrize("kind", names_of(lambda each: each.in_place))
def test_an_elementwise_op_writes_over_an_input_that_dies_there(kind: str) -> None:
    assert groups(chain(kind)) == {"a b"}


@pytest.mark.parametrize(
    "kind",
    ["MatMul", "Transpose", "Conv", "Concat", "Gather", "Softmaxx", "LayerNormalization"],
)
def test_an_op_that_is_in_no_table_shares_nothing(kind: str) -> None:
    assert groups(chain(kind)) == set()


@pytest.mark.parametrize("kind", ["Relu", "Reshape"])
def test_an_op_of_another_domain_shares_nothing(kind: str) -> None:
    assert groups(chain(kind, domain="local")) == set()
    assert groups(chain(kind, domain="ai.onnx")) == {"a b"}


def test_a_runtimes_own_operator_writes_in_place_where_the_table_has_it_by_its_domain() -> (
    None
):
    blocked = Aliasing(SHARE_VIEWS.views, {"com.microsoft.nchwc.Conv": (0,)})
    assert groups(chain("Conv", domain="com.microsoft.nchwc"), aliasing=blocked) == {"a b"}
    assert groups(chain("Conv"), aliasing=blocked) == set()
    assert groups(chain("Conv", domain="com.microsoft"), aliasing=blocked) == set()


def test_nothing_is_shared_at_the_pool_levels() -> None:
    assert groups(chain("Reshape"), aliasing=SHARE_NOTHING) == set()
    assert groups(chain("Relu"), aliasing=SHARE_NOTHING) == set()


def test_the_buffers_id_is_that_of_the_oldest_var() -> None:
    top = block(
        "x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b", kind="Reshape"),
        op("z <- c"),
    )  # fmt: skip
    made = program(top)
    assert set(share_storage(made, var_sizes(made)).values()) == {"a"}


def test_a_view_shares_even_where_its_base_is_live_after_it() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a", kind="Reshape"), op("z <- a b"))
    assert groups(top) == {"a b"}


def test_in_place_only_where_the_input_dies() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("z <- a b"))
    assert groups(top) == set()


def test_in_place_only_where_every_view_of_the_input_dies() -> None:
    top = block(
        "x", "z", op("a <- x"), op("v <- a", kind="Reshape"), op("b <- a", kind="Relu"),
        op("z <- v b"),
    )  # fmt: skip
    assert groups(top) == {"a v"}


def test_in_place_through_a_view_whose_base_is_dead() -> None:
    top = block(
        "x", "z", op("a <- x"), op("v <- a", kind="Reshape"), op("b <- v", kind="Relu"),
        op("z <- b"),
    )  # fmt: skip
    assert groups(top) == {"a b v"}


def test_in_place_results_follow_one_another() -> None:
    top = block(
        "x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b", kind="Tanh"),
        op("z <- c"),
    )  # fmt: skip
    assert groups(top) == {"a b c"}


def test_a_view_made_later_keeps_the_bytes_from_being_replaced() -> None:
    top = block(
        "x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b", kind="Relu"),
        op("v <- b", kind="Reshape"), op("z <- c v"),
    )  # fmt: skip
    assert groups(top) == {"a b v"}


def test_graph_inputs_are_never_replaced() -> None:
    assert groups(block("x", "z", op("b <- x", kind="Relu"), op("z <- b"))) == set()
    assert groups(block("x", "z", op("b <- x", kind="Reshape"), op("z <- b"))) == set()


def test_weights_are_never_replaced() -> None:
    top = block("x", "z", op("b <- w", kind="Relu"), op("z <- b x"))
    assert groups(top, weights="w") == set()


def test_graph_outputs_neither_replace_nor_are_replaced() -> None:
    top = block("x", "a c", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b", kind="Relu"))
    assert groups(top) == set()


def test_excluded_vars_have_no_aliases() -> None:
    top = block(
        "x", "z", op("a <- x"), op("b <- a", kind="Relu"), op("c <- b", kind="Reshape"),
        op("z <- c"),
    )  # fmt: skip
    assert groups(top, "b") == set()
    assert groups(top, "a") == {"b c"}


def test_sizes_must_be_equal() -> None:
    for kind in ("Relu", "Reshape"):
        assert groups(chain(kind), sizes={"a": 4, "b": 8}) == set()
        assert groups(chain(kind), sizes={"a": 8, "b": 4}) == set()


def test_sizes_must_be_equal_whatever_their_symbols_stand_for() -> None:
    made = program(chain("Relu"))
    sizes = {VarId("a"): Size(4, ("n",)), VarId("b"): Size(4, ("m",))}
    assert share_storage(made, sizes)[VarId("b")] == "b"
    assert share_storage(made, {**sizes, VarId("b"): Size(4, ("n",))})[VarId("b")] == "a"


def test_the_operand_of_the_results_size_is_replaced_and_not_the_one_that_is_broadcast() -> (
    None
):
    top = block("x", "z", op("a <- x"), op("b <- x"), op("c <- a b", kind="Add"), op("z <- c"))
    assert groups(top, sizes={"a": 1}) == {"b c"}
    assert groups(top, sizes={"b": 1}) == {"a c"}
    assert groups(top) == {"a c"}, "the first that fits"


def test_only_the_inputs_that_the_table_names_are_replaced() -> None:
    top = block("x", "z", op("b <- x"), op("c <- x b", kind="PRelu"), op("z <- c"))
    assert groups(top) == set()


def test_sums_replace_one_of_the_first_two() -> None:
    made = (op("a <- x"), op("b <- x"), op("c <- x"))
    top = block("x", "z", *made, op("s <- a b c", kind="Sum"), op("z <- s a b"))
    assert groups(top) == set(), "c is read after the first write"


def test_an_operand_used_twice_by_an_elementwise_op_may_be_replaced() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a a", kind="Mul"), op("z <- b"))
    assert groups(top) == {"a b"}


def test_a_sum_that_reads_an_operand_again_after_the_first_write_replaces_another() -> None:
    top = block("x", "z", op("a <- x"), op("b <- a x a", kind="Sum"), op("z <- b"))
    assert groups(top) == set()


@pytest.mark.parametrize("kind", ["ScatterElements", "ScatterND"])
def test_a_scatter_of_a_tensor_into_itself_is_not_in_place(kind: str) -> None:
    top = block("x i", "z", op("a <- x"), op("b <- a i a", kind=kind), op("z <- b"))
    assert groups(top) == set()


def test_an_input_with_a_view_of_itself_beside_it_is_not_replaced() -> None:
    top = block(
        "x", "z", op("a <- x"), op("v <- a", kind="Reshape"), op("b <- a v", kind="Add"),
        op("z <- b"),
    )  # fmt: skip
    assert groups(top) == {"a v"}


def test_only_the_first_output_shares() -> None:
    top = block("x", "z", op("a <- x"), op("_ b <- a", kind="Relu"), op("z <- b"))
    assert groups(top) == set()


def test_an_op_without_inputs_or_outputs_shares_nothing() -> None:
    """Such nodes are not valid ONNX; a program may hold them all the same."""
    top = block(
        "x", "z", op("a <-", kind="Identity"), op("b <-", kind="Relu"), op("z <- x a b"),
        op("<- a", kind="Reshape"), op("<- b", kind="Relu"),
    )  # fmt: skip
    assert groups(top) == set()


SWAP = block(
    "c d", "r s", op("r <- d", kind="Identity"), op("s <- c", kind="Identity"), op("t <- c d")
)


def test_carried_values_that_change_places_do_not_share_their_bytes() -> None:
    assert groups(block("x y", "p q", op("p q <- x y", SWAP, kind="Loop"))) == set()


def test_carried_values_are_told_through_a_chain_of_views() -> None:
    body = block(
        "c d", "r s",
        op("u <- d", kind="Reshape"), op("r <- u", kind="Reshape"),
        op("v <- c", kind="Reshape"), op("s <- v", kind="Reshape"),
    )  # fmt: skip
    found = groups(block("x y", "p q", op("p q <- x y", body, kind="Loop")))
    assert found == {"d u", "c v"}


def test_views_inside_a_subgraph_that_are_not_carried_share() -> None:
    body = block("c", "r", op("v <- c", kind="Reshape"), op("r <- v"))
    assert groups(block("x", "p", op("p <- x", body, kind="Loop"))) == {"c v"}


def test_a_branch_may_give_a_view() -> None:
    branch = block("", "r", op("r <- a", kind="Identity"))
    top = block("c x", "z", op("a <- x"), op("y <- c", branch, kind="If"), op("z <- y"))
    assert groups(top) == {"a r"}


def test_a_subgraph_does_not_write_over_what_it_reads_again_on_the_next_turn() -> None:
    body = block("c", "r", op("t <- w", kind="Relu"), op("r <- c t"))
    top = block("x", "z", op("w <- x"), op("z <- x", body, kind="Loop"))
    assert groups(top) == set()


def test_a_subgraph_does_not_write_over_what_it_was_given() -> None:
    body = block("c", "r", op("r <- c", kind="Relu"))
    assert groups(block("x", "z", op("z <- x", body, kind="Loop"))) == set()


def test_a_subgraph_does_not_write_over_a_view_of_what_it_reads_again() -> None:
    body = block(
        "c", "r", op("v <- w", kind="Reshape"), op("t <- v", kind="Relu"), op("r <- c t")
    )
    top = block("x", "z", op("w <- x"), op("z <- x", body, kind="Loop"))
    assert groups(top) == {"v w"}


def test_a_branch_may_write_over_what_no_later_op_reads() -> None:
    branches = (
        block("", "r", op("t <- a", kind="Relu"), op("r <- t")),
        block("", "s", op("s <- x")),
    )
    top = block("c x", "z", op("a <- x"), op("y <- c", *branches, kind="If"), op("z <- y"))
    assert groups(top) == {"a t", "r s y"}


def test_a_table_of_the_callers_is_obeyed() -> None:
    only = replace(SHARE_NOTHING, views=frozenset({"MatMul"}))
    assert groups(chain("MatMul"), aliasing=only) == {"a b"}
    assert groups(chain("Reshape"), aliasing=only) == set()


def test_vars_that_are_not_planned_are_not_in_the_answer() -> None:
    made = program(chain("Relu"))
    assert set(share_storage(made, var_sizes(made, "a"))) == {"b"}
