"""Donations: only what is safe, in the order in which most is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from builders import parse, read
from features.recompute_programs import Line, program, same_results, terms
from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.program import Program, VarId
from memplan_cli.core.results.observations import CPU, Validation
from memplan_cli.errors import SettingsError
from memplan_cli.features.donation import proof, proof_job
from memplan_cli.features.donation.proof import (
    RATE_SCALE,
    STATE_SCALE,
    DonatedSteps,
    donated_steps,
    step_specs,
    with_donated_steps,
)
from memplan_cli.features.donation.transform import Donations, donate, donations
from memplan_cli.planning.candidate import Candidate
from memplan_cli.runtime.workers.worker import Outcome

if TYPE_CHECKING:
    from pathlib import Path

BOTH = (("in*", "new*"),)


def step(*lines: Line, inputs: str = "x in4", outputs: str = "new4") -> Program:
    return program(inputs, outputs, *lines)


def donated(tested: Program, *patterns: tuple[str, str]) -> Donations:
    found = donations(tested, patterns or BOTH)
    assert same_results(tested, found.program)
    assert sorted(op.source for op in found.program.body.ops) == list(
        range(len(tested.body.ops))
    )
    return found


def reason(found: Donations) -> str:
    assert not found.pairs
    ((_, _, why),) = found.refused
    return why


def test_an_update_in_place_is_donated() -> None:
    found = donated(step(("Mul", "x x", "g4"), ("Sub", "in4 g4", "new4")))
    assert found.pairs == (("in4", "new4"),)
    assert not found.refused


def test_a_program_that_is_safe_stays_as_it_is() -> None:
    tested = step(("Sub", "in4 x", "new4"))
    assert donated(tested).program is tested


def test_a_writer_behind_the_last_reader_is_donated_whatever_it_is() -> None:
    assert donated(step(("Mul", "in4 x", "a4"), ("MatMul", "a4 x", "new4"))).pairs


def test_readers_go_before_the_writer_where_they_can() -> None:
    tested = step(("Sub", "in4 x", "new4"), ("MatMul", "in4 x", "b1"), outputs="new4 b1")
    found = donated(tested)
    assert found.pairs
    assert [op.source for op in found.program.body.ops] == [1, 0]


def test_a_writer_that_cannot_work_in_place_is_refused() -> None:
    assert "reads the input while" in reason(donated(step(("MatMul", "in4 x", "new4"))))


def test_only_what_the_table_names_may_be_overwritten() -> None:
    # PRelu may write over its data, not over its slope.
    assert "reads the input while" in reason(donated(step(("PRelu", "x in4", "new4"))))
    assert donated(step(("PRelu", "in4 x", "new4"))).pairs


def test_a_reader_that_needs_the_output_is_refused() -> None:
    tested = step(("Sub", "in4 x", "new4"), ("Mul", "new4 in4", "b4"), outputs="new4 b4")
    assert "n1 needs the output and reads the input" in reason(donated(tested))


def test_a_view_reads_the_input_too() -> None:
    tested = step(
        ("Reshape", "in4 x", "v4"),
        ("Sub", "in4 x", "new4"),
        ("Mul", "v4 new4", "b4"),
        outputs="new4 b4",
    )
    assert "n2 needs the output" in reason(donated(tested))


def test_an_input_is_kept_if_an_output_is_a_view_of_a_view_of_it() -> None:
    tested = step(
        ("Reshape", "in4 x", "v4"),
        ("Identity", "v4", "b4"),
        ("Sub", "in4 x", "new4"),
        outputs="new4 b4",
    )
    assert "an output is a view" in reason(donated(tested))


def test_a_result_in_the_shape_of_the_input_is_no_view_of_it() -> None:
    tested = step(("Reshape", "x in4", "v4"), ("Sub", "in4 v4", "new4"))
    assert donated(tested).pairs == (("in4", "new4"),)


def test_a_writer_that_reads_a_view_beside_the_input_is_refused() -> None:
    tested = step(("Reshape", "in4 x", "v4"), ("Sub", "in4 v4", "new4"))
    assert "reads the input while" in reason(donated(tested))


def test_a_writer_that_reads_another_function_of_the_input_is_donated() -> None:
    tested = step(("Sigmoid", "in4", "s4"), ("Mul", "in4 s4", "new4"))
    assert donated(tested).pairs == (("in4", "new4"),)


def test_an_order_that_costs_more_than_the_donation_saves_is_not_taken() -> None:
    """To run the reader first takes more memory than the donation saves."""
    tested = step(
        ("Sub", "in4 x", "new4"),
        ("Expand", "new4 x", "c100"),
        ("ReduceMax", "c100", "c1"),
        ("Expand", "in4 x", "b100"),
        ("Add", "b100 c1", "d1"),
        outputs="new4 d1",
    )
    planned_vars = terms(tested)
    candidate = Candidate(tested, planned_vars.sizes)
    task: Any = SimpleNamespace(
        settings=SimpleNamespace(donate={"in*": "new*"}, budget=None),
        planned_vars=planned_vars,
    )
    result = donate(candidate, task)
    assert result.program is tested


def test_a_view_of_the_input_among_the_outputs_is_refused() -> None:
    tested = step(("Identity", "in4", "v4"), ("Sub", "in4 x", "new4"), outputs="v4 new4")
    assert "view" in reason(donated(tested))


def test_other_types_and_shapes_are_refused() -> None:
    tested = program("x in", "new4", ("Sub", "in x", "new4"))
    assert "shapes" in reason(donated(tested, ("in", "new4")))
    other = dict(tested.vars)
    other[VarId("in")] = type(other[VarId("in")])(
        VarId("in"), "int32", (4,), other[VarId("in")].origin, "in"
    )
    changed = Program("t", tested.body, other)
    assert "types" in reason(donations(changed, [("in", "new4")]))


def test_two_pairs_that_want_opposite_orders_are_not_both_made() -> None:
    tested = program(
        "x in1 in2",
        "new1 new2",
        ("MatMul", "in2 x", "a1"),
        ("MatMul", "in1 x", "b1"),
        ("Sub", "in1 a1", "new1"),
        ("Mul", "new1 in2", "c1"),
        ("Sub", "c1 b1", "new2"),
    )
    found = donated(tested)
    assert found.pairs == (("in1", "new1"), ("in2", "new2"))
    ring = program(
        "x in1 in2",
        "new1 new2",
        ("MatMul", "in1 in2", "a1"),
        ("Sub", "in1 x", "new1"),
        ("Sub", "in2 x", "new2"),
        ("MatMul", "new1 in2", "b1"),
        ("MatMul", "new2 in1", "c1"),
    )
    only_one = donated(ring)
    assert len(only_one.pairs) == 1
    assert len(only_one.refused) == 1


def test_one_output_takes_one_input() -> None:
    tested = program("x in1 jn1", "new1", ("Add", "in1 jn1", "new1"))
    found = donated(tested, ("in1", "new1"), ("jn1", "new1"))
    assert found.pairs == (("in1", "new1"),)
    assert found.refused == ((VarId("jn1"), VarId("new1"), "it is in another pair"),)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    tested = step(("Sub", "in4 x", "new4"))
    with pytest.raises(SettingsError, match="matches no"):
        donations(tested, [("out*", "new*")])


@pytest.mark.parametrize("pattern", [("in4_[0]", "new4_[0]"), ("in4_[*", "new4_[*")])
def test_brackets_in_a_pattern_stand_for_themselves(pattern: tuple[str, str]) -> None:
    tested = program("x in4_[0]", "new4_[0]", ("Sub", "in4_[0] x", "new4_[0]"))
    assert donated(tested, pattern).pairs == (("in4_[0]", "new4_[0]"),)


@pytest.mark.parametrize("pattern", [("in*", "new4"), ("i*n*", "n*w*")])
def test_a_pattern_needs_one_star_on_both_sides(pattern: tuple[str, str]) -> None:
    with pytest.raises(SettingsError, match="one \\*"):
        donations(step(("Sub", "in4 x", "new4")), [pattern])


def test_random_ops_keep_their_turns() -> None:
    # in1's reader would be pulled before its writer, past the first draw.
    tested = program(
        "x in1",
        "new1 r1 s1",
        ("RandomNormalLike", "x", "r1"),
        ("Sub", "in1 r1", "new1"),
        ("RandomNormalLike", "in1", "s1"),
    )
    found = donated(tested)
    assert [op.source for op in found.program.body.ops] == [0, 2, 1]
    crossed = program(
        "x in1",
        "new1 s1",
        ("RandomNormalLike", "x", "r1"),
        ("Sub", "in1 r1", "new1"),
        ("RandomNormalLike", "new1", "t1"),
        ("RandomNormalLike", "in1", "s1"),
    )
    assert "needs the output" in reason(donated(crossed))


def test_no_value_moves_before_a_subgraph_that_uses_its_name() -> None:
    tested = read("""g (float[2] x, bool c, float[2] in1) => (float[2] new1, float[2] y) {
        new1 = If (c) <then_branch = t () => (float[2] p) { q = Neg(x)  p = Exp(q) },
                       else_branch = e () => (float[2] s) { s = Neg(x) }>
        q = Mul(in1, x)  y = Exp(q) }""")
    found = donations(tested, BOTH)
    assert found.program is tested
    assert "needs the output" in reason(found)


def test_rates_and_states_are_drawn_small(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    text = """g (float[4, 4] x, float[4, 4] in_w, float lr, int64 step, int64[4] mask)
        => (float[4, 4] new_w)
    { s = Mul(x, lr)  new_w = Sub(in_w, s) }"""
    onnx.save(parse(text), path)
    pairs = (("in_w", "new_w"),)
    drawn = {spec.name: spec for spec in step_specs(path, Binding(), pairs)}
    scales = [drawn[name].scale for name in ("x", "in_w", "lr")]
    assert scales == [1.0, STATE_SCALE, RATE_SCALE]
    assert drawn["step"].values == (1,), "what Adam divides by is not zero"
    assert drawn["mask"].kind == "mask"


def test_a_verdict_tells_whether_two_steps_with_donated_buffers_passed() -> None:
    verdict = Validation("passed", CPU, max_abs_diff=0.0, bit_identical=True)
    assert with_donated_steps(verdict, DonatedSteps()).donated == "passed"
    failed = with_donated_steps(verdict, DonatedSteps(failure="no memory"))
    assert failed.donated == "failed"
    assert not failed.bit_identical


def test_two_steps_with_donated_buffers_are_compared_with_two_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_here(_function: str, job: Any, *, timeout: float) -> Outcome:  # noqa: ANN401
        assert timeout
        return Outcome("ok", proof_job.run(job))

    monkeypatch.setattr(proof, "run_job", run_here)
    path = tmp_path / "step.onnx"
    text = "g (float[4] x, float[4] in_w) => (float[4] new_w) { new_w = Sub(in_w, x) }"
    onnx.save(parse(text), path)
    pairs = (("in_w", "new_w"),)
    assert donated_steps((path, path), pairs, Check("cpu"), Binding()) == DonatedSteps()
