"""Which ops may run twice."""

from __future__ import annotations

from memplan_cli.ir import Op, VarId
from memplan_cli.transforms.recomputing.values import may_run_twice


def batch_norm(*outputs: str) -> Op:
    inputs = tuple(map(VarId, ("x", "scale", "bias", "mean", "var")))
    return Op("norm", "BatchNormalization", inputs, tuple(map(VarId, outputs)), ())


def test_batch_normalisation_that_trains_never_runs_twice() -> None:
    assert not may_run_twice(batch_norm("y", "new_mean", "new_var"))


def test_batch_normalisation_that_only_normalises_may_run_twice() -> None:
    assert may_run_twice(batch_norm("y"))
