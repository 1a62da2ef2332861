"""Checkpoints on a net of four layers, against copies written down by hand.

x -> a -> b -> c -> d -> loss          forward
gd (d) -> gc (c, gd) -> gb (b, gc) -> ga (a, gb)     backward reads what it derives
"""

from __future__ import annotations

import pytest

from features.recompute_programs import program, same_results, terms
from memplan_cli.analysis.phase import Phase, Phases
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Program, VarId, intermediates
from memplan_cli.core.symbolic.sizes import Size
from memplan_cli.errors import SettingsError
from memplan_cli.features.recompute.checkpoints import CheckpointedProgram, recompute_segments
from memplan_cli.ordering.records import PlannedVars

BACKWARD = ("gd", "gc", "gb", "ga")


def net(first: str = "Tanh") -> Program:
    return program(
        "x",
        "loss ga",
        ("Tanh", "x", "a"),
        (first, "a", "b"),
        ("Tanh", "b", "c"),
        ("Tanh", "c", "d"),
        ("ReduceSum", "d", "loss"),
        ("Mul", "d d", "gd"),
        ("Mul", "c gd", "gc"),
        ("Mul", "b gc", "gb"),
        ("Mul", "a gb", "ga"),
    )


def phases(tested: Program) -> Phases:
    of: dict[VarId, Phase] = {VarId(var): "backward" for var in BACKWARD if var in tested.vars}
    return Phases("train", VarId("loss"), of)


def cut(tested: Program, *names: str) -> CheckpointedProgram:
    result = recompute_segments(tested, terms(tested), names, phases(tested))
    assert same_results(tested, result.program)
    return result


def order(result: CheckpointedProgram) -> str:
    """Return what is made, in order, copies with a prime."""
    made = [op.outputs[0].replace("__recompute", "'") for op in result.program.body.ops]
    return " ".join(made)


def test_one_checkpoint_divides_what_runs_again_from_what_is_kept() -> None:
    # a runs again for its own gradient; what follows b, the last checkpoint, is kept.
    assert order(cut(net(), "b")) == "a b c d loss gd gc gb a' ga"


def test_each_segment_runs_again_just_before_its_backward_part() -> None:
    assert order(cut(net(), "b", "d")) == "a b c d loss gd c' gc gb a' ga"


def test_a_segment_runs_again_as_a_whole() -> None:
    # The first backward op of the segment reads c; b and a are made on the way.
    result = cut(net(), "d")
    assert order(result) == "a b c d loss gd a' b' c' gc gb ga"
    assert [op.inputs[0] for op in result.copies] == ["x", "a__recompute", "b__recompute"]


def test_the_backward_part_reads_the_copies() -> None:
    result = cut(net(), "d")
    reads = {op.outputs[0]: op.inputs for op in result.program.body.ops}
    assert reads[VarId("gc")] == ("c__recompute", "gd")
    assert reads[VarId("ga")] == ("a__recompute", "gb")


def test_the_order_of_the_names_does_not_matter() -> None:
    assert cut(net(), "d", "b") == cut(net(), "b", "d", "b")


def test_a_checkpoint_at_the_loss_buys_nothing_and_is_said() -> None:
    result = cut(net(), "loss")
    assert order(result) == "a b c d loss gd gc gb ga"
    assert result.ineffective == {"loss": "it is the loss: its backward part comes at once"}


def test_a_checkpoint_beside_the_loss_still_counts() -> None:
    assert order(cut(net(), "b", "loss")) == order(cut(net(), "b"))


def test_an_unused_checkpoint_is_said() -> None:
    tested = program(
        "x",
        "loss gc",
        ("Tanh", "x", "a"),
        ("Tanh", "a", "b"),
        ("Tanh", "b", "c"),
        ("ReduceSum", "c", "loss"),
        ("Mul", "c c", "gc"),
    )
    result = cut(tested, "b")
    assert not result.copies
    assert list(result.ineffective) == ["b"]
    assert "reads nothing" in result.ineffective["b"]


@pytest.mark.parametrize(
    ("names", "peak"), [("loss", 40), ("b", 30), ("d", 40), ("b d", 30), ("d b", 30)]
)
def test_peaks_are_those_counted_by_hand(names: str, peak: int) -> None:
    # Ten bytes each, what dies is written over. All kept: a b c d. With b: b c d, then a'.
    # With d alone the segment is the whole forward part: gd a' b' c'. With both: b gd c'.
    tested = net()
    ten = PlannedVars({var: Size(10) for var in intermediates(tested)})
    result = recompute_segments(tested, ten, names.split(), phases(tested))
    assert live_peak(result.program, result.sizes) == peak


def test_tensors_that_other_segments_read_are_kept() -> None:
    tested = program(
        "x",
        "loss ga",
        ("Tanh", "x", "a"),
        ("Tanh", "a", "b"),
        ("Tanh", "b", "c"),
        ("Mul", "c a", "d"),
        ("ReduceSum", "d", "loss"),
        ("Mul", "d d", "gd"),
        ("Mul", "c gd", "gc"),
        ("Mul", "a gc", "ga"),
    )
    assert order(cut(tested, "b", "c")) == "a b c d loss gd gc ga"


def test_what_is_read_before_its_segment_ends_is_still_there() -> None:
    tested = program(
        "x",
        "loss ga early",
        ("Tanh", "x", "a"),
        ("Mul", "a x", "early"),
        ("Tanh", "a", "b"),
        ("Tanh", "b", "c"),
        ("ReduceSum", "c", "loss"),
        ("Mul", "c c", "gc"),
        ("Mul", "b gc", "gb"),
        ("Mul", "a gb", "ga"),
    )
    known = phases(tested)
    parts = Phases("train", known.loss, {**known.phase_of, VarId("early"): "backward"})
    result = recompute_segments(tested, terms(tested), ("b",), parts)
    assert order(result) == "a early b c loss gc gb a' ga"


def test_random_ops_are_kept() -> None:
    assert order(cut(net("RandomNormalLike"), "d")) == "a b c d loss gd c' gc gb a' ga"


@pytest.mark.parametrize("name", ["x", "gb", "nothing"])
def test_a_name_that_is_no_forward_tensor_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="not a tensor of the forward part") as caught:
        cut(net(), name)
    assert "nearest" in caught.value.hint


def test_a_graph_without_backward_part_is_refused() -> None:
    tested = net()
    with pytest.raises(SettingsError, match="backward part"):
        recompute_segments(tested, terms(tested), ("b",), Phases())
