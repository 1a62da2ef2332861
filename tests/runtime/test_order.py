from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.program import Block, Op, VarId
from memplan_cli.runtime.simulate.planner import default_order, priority_order
from reproductions import reproduce

if TYPE_CHECKING:
    from pathlib import Path


def op(text: str, *bodies: Block) -> Op:
    outputs, inputs = text.split("<-")
    kind, _, name = outputs.partition(":")
    made = (name or kind).split()
    return Op(
        made[0],
        kind if name else "Op",
        tuple(map(VarId, inputs.split())),
        tuple(map(VarId, made)),
        bodies,
    )


def block(*ops: Op) -> Block:
    return Block((VarId("x"),), (ops[-1].outputs[0],), ops)


def names(order: tuple[Op, ...]) -> str:
    return " ".join(op.name for op in order)


def test_default_order_goes_depth_first_from_the_highest_input() -> None:
    # Measured on 1.31.1 (facts, section 1).
    file = block(
        op("A0 <- x"),
        op("B0 <- x"),
        op("A1 <- A0"),
        op("B1 <- B0"),
        op("C <- A1 B1"),
    )
    assert names(default_order(file)) == "B0 B1 A0 A1 C"


def test_default_order_starts_from_the_last_leaf() -> None:
    file = block(op("a <- x"), op("b <- x"), op("c <- a"))
    assert names(default_order(file)) == "a c b"


def test_priority_order_is_the_files_order() -> None:
    file = block(op("A0 <- x"), op("B0 <- x"), op("A1 <- A0"), op("C <- A1 B0"))
    assert names(priority_order(file)) == "A0 B0 A1 C"


def test_priority_order_runs_shape_as_soon_as_it_is_ready() -> None:
    file = block(op("a <- x"), op("b <- a"), op("c <- b"), op("Shape:s <- a"))
    assert names(priority_order(file)) == "a s b c"


def test_a_capture_is_an_edge() -> None:
    body = Block((), (VarId("t"),), (op("t <- a"),), "If.then")
    file = block(op("a <- x"), op("b <- x"), op("If:r <- b", body))
    assert names(default_order(file)) == "b a r"


def test_the_reproduction_of_orders_that_differ_shows_each_and_how_often(
    tmp_path: Path,
) -> None:
    done = reproduce("order_of_reorders.py", tmp_path)
    assert done.returncode == 0, done.stderr
    found = [line.split(" of 8 processes:") for line in done.stdout.splitlines()]
    assert sum(int(count) for count, _ in found) == 8
    # A processor without blocks of channels has no such nodes.
    assert all(sorted(order.split()) in ([], ["c0", "c1", "c2", "c3"]) for _, order in found)
