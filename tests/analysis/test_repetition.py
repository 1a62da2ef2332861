"""Which ops may run twice."""

from __future__ import annotations

from builders import op
from memplan_cli.analysis.repetition import may_run_twice, repeatable
from memplan_cli.core.program import Block, Op, Program, VarId


def batch_norm(*outputs: str) -> Op:
    inputs = tuple(map(VarId, ("x", "scale", "bias", "mean", "var")))
    return Op("norm", "BatchNormalization", inputs, tuple(map(VarId, outputs)), ())


def said(block: Block) -> tuple[bool, ...]:
    return repeatable(Program("page", block, {}))


def test_what_draws_numbers_has_state_or_writes_in_place_never_runs_twice() -> None:
    assert may_run_twice(op("y <- x", kind="Neg"))
    for kind, domain in (
        ("Neg", "elsewhere"),
        ("RandomNormalLike", ""),
        ("SequenceAt", ""),
        ("InPlaceAccumulator", "com.microsoft"),
    ):
        assert not may_run_twice(op("y <- x", kind=kind, domain=domain)), kind


def test_batch_normalization_that_trains_never_runs_twice() -> None:
    assert not may_run_twice(batch_norm("y", "new_mean", "new_var"))


def test_batch_normalization_that_only_normalizes_may_run_twice() -> None:
    assert may_run_twice(batch_norm("y"))


def test_who_reads_a_statistic_that_is_updated_never_runs_twice() -> None:
    reader = Op("sub", "Sub", (VarId("x"), VarId("mean")), (VarId("d"),), ())
    other = Op("neg", "Neg", (VarId("x"),), (VarId("e"),), ())

    def allowed(*outputs: str, results: tuple[VarId, ...] = ()) -> tuple[bool, ...]:
        return said(Block((), results, (reader, other, batch_norm(*outputs))))

    assert allowed("y", "new_mean", "new_var") == (False, True, False)
    assert allowed("y") == (True, True, True)
    given = (VarId("new_mean"), VarId("new_var"))
    assert allowed("y", "new_mean", "new_var", results=given) == (True, True, False)


def test_a_subgraph_updates_statistics_of_the_outside() -> None:
    body = Block((), (), (batch_norm("y", "new_mean", "new_var"),))
    branch = Op("if", "If", (VarId("c"),), (VarId("z"),), (body, Block((), (), ())))
    reader = Op("sub", "Sub", (VarId("x"), VarId("mean")), (VarId("d"),), ())
    assert said(Block((), (), (reader, branch))) == (False, False)


def test_who_reads_an_updated_statistic_never_runs_twice() -> None:
    norm = batch_norm("y", "new_mean", "new_var")
    reader = Op("neg", "Neg", (VarId("new_mean"),), (VarId("d"),), ())
    assert said(Block((), (), (norm, reader))) == (False, False)
