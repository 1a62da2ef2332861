"""The pipeline keeps the contract's words and numbers."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from builders import parse, plan_of_text, plan_program, read
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.settings.settings import MemParam, Settings
from planning.planner_cases import CHAIN, STEP, TENSOR


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_numbers_of_a_chain(level: int) -> None:
    report = plan_of_text(CHAIN, Settings(level=level)).report  # type: ignore[arg-type]
    memory = report.memory
    assert memory.weights == 0
    assert memory.inputs == 2 * TENSOR
    assert memory.outputs == TENSOR
    assert memory.naive == 4 * TENSOR
    assert memory.live_peak == memory.planned == 2 * TENSOR
    assert memory.total == 5 * TENSOR
    assert dict(report.levels) == {"0": 2 * TENSOR, "1": 2 * TENSOR, "2": 2 * TENSOR}
    assert (report.coverage, report.partial, report.level) == (1.0, False, level)
    assert report.saved == 0.5


def test_weights_are_initializers_and_constants() -> None:
    text = """g (float[8] x) => (float[8] z) <float[8] w = {1,2,3,4,5,6,7,8}> {
        k = Constant<value = float[8] {1,1,1,1,1,1,1,1}>() a = Mul(x, w) z = Add(a, k) }"""
    memory = plan_of_text(text).report.memory
    assert (memory.weights, memory.naive) == (64, 32)


def test_a_warning_lists_three_vars_that_are_in_no_total_and_counts_the_others() -> None:
    for count, end in ((3, "'c' (string)"), (4, "'c' (string) and 1 more")):
        inputs = ", ".join(f"string[2] {name}" for name in "abcd"[:count])
        text = f"g ({inputs}, float[2] x) => (float[2] z) {{ z = Relu(x) }}"
        (warning,) = plan_of_text(text).report.warnings
        assert warning.startswith(
            "not counted in any total, as shapes do not determine their bytes: 'a' (string), "
        )
        assert warning.endswith(end)


def test_a_phase_that_is_not_to_be_optimized_is_left_as_it_is() -> None:
    left = MemParam(optimize_test=False)
    report = plan_of_text(CHAIN, Settings(mem_param=left)).report
    assert report.phase == "test"
    assert report.memory.planned == report.memory.naive == 4 * TENSOR
    assert report.reuses == 0
    assert report.warnings == (
        "left as it is: mem_param.optimize_test is false and the phase is test",
    )
    assert report.chosen_order == "file"


def test_the_other_phases_switch_changes_nothing() -> None:
    report = plan_of_text(CHAIN, Settings(mem_param=MemParam(optimize_train=False))).report
    assert report.memory.planned == 2 * TENSOR
    assert report.warnings == ()


def test_a_phase_that_is_given_overrules_the_one_found() -> None:
    left = MemParam(optimize_train=False)
    report = plan_of_text(CHAIN, Settings(mem_param=left, phase="train")).report
    assert report.phase == "train"
    assert report.memory.planned == report.memory.naive
    assert "optimize_train is false and the phase is train" in report.warnings[0]


def test_a_model_with_a_backward_part_is_of_the_train_phase() -> None:
    report = plan_of_text(STEP).report
    assert report.phase == "train"
    left = plan_of_text(STEP, Settings(mem_param=MemParam(optimize_train=False))).report
    assert left.memory.planned == left.memory.naive


def test_a_model_without_intermediates_is_covered() -> None:
    report = plan_of_text("g (float[4] x) => (float[4] z) { z = Neg(x) }").report
    assert report.coverage == 1.0
    assert (report.memory.naive, report.memory.planned, report.memory.total) == (0, 0, 32)


FREE = """g (float[batch,8] x, float[8,8] w) => (float[batch,8] z) {
    a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) k = Transpose(w) z = MatMul(c, k) }"""


def test_free_dims_give_expressions_and_no_numbers() -> None:
    """The ancestors' "12 192 B" for a batch of unknown size was off by a factor of 790."""
    report = plan_of_text(FREE).report
    assert report.coverage == 1.0
    assert report.memory.planned is None
    assert report.memory.total is None
    assert report.symbolic["naive"] == "96*batch + 256"
    assert report.symbolic["planned"] == "64*batch + 256"
    assert {a.unit for a in plan_of_text(FREE).arenas} == {"1", "batch"}


@pytest.mark.parametrize("batch", [1, 7])
def test_expressions_hold_for_every_value_of_their_symbols(batch: int) -> None:
    free, made = plan_of_text(FREE, Settings(order="keep")), read(FREE, dims={"batch": batch})
    bound = plan_program(made, Settings(order="keep"))
    height = sum(a.height * (batch if a.unit == "batch" else 1) for a in free.arenas)
    assert bound.report.memory.naive == 96 * batch + 256
    assert bound.report.memory.planned is not None
    assert bound.report.memory.planned <= height


def test_the_peak_names_the_step_the_node_and_the_tensors_largest_first() -> None:
    text = """g (float[4,4] x) => (float[4,4] z) {
        [up] big = Concat<axis=0>(x, x) [mid] b = ReduceSum<keepdims=1>(big)
        [down] z = MatMul(x, b) }""".replace(
        "b = ReduceSum<keepdims=1>(big)", "b = Transpose(big)"
    )
    text = text.replace("z = MatMul(x, b)", "z = MatMul(b, big)")
    peak = plan_of_text(text, Settings(order="keep")).report.peak
    assert peak is not None
    assert (peak.step, peak.node) == (1, "mid")
    assert peak.tensors == (("b", 128), ("big", 128))


def test_the_peak_inside_a_body_names_the_node_in_the_body() -> None:
    text = """g (bool c, float[4,4] x) => (float[4,4] z) {
        [pick] y = If (c) <
            then_branch = t () => (float[4,4] one) {
                [wide] p = Concat<axis=0>(x, x, x) [thin] q = ReduceSum(p)
                [last] one = Add(x, q) },
            else_branch = e () => (float[4,4] two) { [other] two = Exp(x) }>
        [after] z = Transpose(y) }"""
    peak = plan_of_text(text, Settings(order="keep")).report.peak
    assert peak is not None
    assert peak.node in ("thin", "wide")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_the_peaks_tensors_add_up_to_the_live_peak(level: int) -> None:
    for text in (CHAIN, STEP):
        report = plan_of_text(text, Settings(level=level)).report  # type: ignore[arg-type]
        assert report.peak is not None
        assert sum(size for _, size in report.peak.tensors) == report.memory.live_peak


def test_the_order_that_is_kept_is_the_files() -> None:
    plan = plan_of_text(CHAIN, Settings(order="keep"))
    assert plan.report.chosen_order == "file"
    assert plan.report.original_live_peak == plan.report.memory.live_peak
    assert plan.order[0].nodes == ("#0", "#1", "#2", "#3", "#4")


WIDE = """g (float[64,64] x) => (float[1,1] z) {{
    {made}
    {cut}
    z = Sum({last}) }}"""


def wide() -> str:
    """Four wide tensors made breadth first, each cut down to one element afterwards."""
    names = range(4)
    return WIDE.format(
        made=" ".join(f"w{i} = Exp(x)" for i in names),
        cut=" ".join(f"c{i} = ReduceSum(w{i})" for i in names),
        last=", ".join(f"c{i}" for i in names),
    )


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_better_order_is_found_and_the_original_stands_beside_it(level: int) -> None:
    report = plan_of_text(wide(), Settings(level=level)).report  # type: ignore[arg-type]
    assert report.original_live_peak is not None
    assert report.memory.live_peak is not None
    assert report.memory.live_peak < report.original_live_peak / 3
    kept = plan_of_text(wide(), Settings(level=level, order="keep")).report  # type: ignore[arg-type]
    assert kept.memory.live_peak == report.original_live_peak
    assert kept.memory.planned == report.original_planned


def test_an_order_never_makes_it_worse_than_the_files() -> None:
    """The optimizer of optimize-net#28 did."""
    for text in (CHAIN, STEP, wide()):
        report = plan_of_text(text).report
        assert report.memory.planned is not None
        assert report.original_planned is not None
        assert report.memory.planned <= report.original_planned


def test_an_order_bound_is_no_higher_than_the_live_peak() -> None:
    memory = plan_of_text(wide()).report.memory
    assert memory.order_bound is not None
    assert memory.live_peak is not None
    assert memory.order_bound <= memory.live_peak
    assert memory.order_proved == (memory.order_bound == memory.live_peak)


def test_the_plans_ticks_follow_its_order() -> None:
    plan = plan_of_text(wide())
    assert sorted(plan.order[0].nodes) == sorted(f"#{i}" for i in range(9))
    firsts = [plan.by_id[name].first for name in ("w0", "c0")]
    assert all(a < b for a, b in pairwise(firsts))


def test_two_nodes_of_one_name_go_by_their_index() -> None:
    text = (
        "g (float[4] x) => (float[4] z) { [same] a = Exp(x) [same] b = Exp(a) [z] z = Neg(b) }"
    )
    assert plan_of_text(text, Settings(order="keep")).order[0].nodes == ("#0", "#1", "z")


def test_a_body_whose_path_looks_like_a_name_at_the_top_is_no_clash() -> None:
    model = parse("""g (bool c, float[4] x) => (float[4] z) {
        odd = Exp(x)
        [pick] y = If (c) <then_branch = t () => (float[4] one) { v = Exp(x) one = Neg(v) },
                           else_branch = e () => (float[4] two) { two = Exp(x) }>
        z = Add(odd, y) }""")
    model.graph.node[0].output[0] = "pick.then_branch/v"
    model.graph.node[2].input[0] = "pick.then_branch/v"
    from memplan_cli.onnx_io.shapes.reading import read_program

    made = read_program(model).program
    plan = plan_program(made, Settings())
    assert {t.name for t in plan.tensors} == {"pick.then_branch/v", "v", "one", "two", "y"}


def test_two_plans_of_one_program_are_the_same() -> None:
    assert plan_of_text(wide()).dumps() == plan_of_text(wide()).dumps()


def test_a_budget_that_live_bytes_keep_and_the_plan_does_not_is_a_warning() -> None:
    text = """g (float[5] x) => (float[1] z) <int64[1] no = {0}, int64[1] six = {6}> {
        a = Exp(x) b = Concat <axis = 0> (a, a) c = Slice(b, no, six) z = ReduceSum(c) }"""
    found = plan_of_text(text, Settings(level=0, recompute="auto", budget=64))
    assert found.report.recompute.met
    (warning,) = found.report.warnings
    assert warning.startswith(
        "the live bytes keep the budget of 64 bytes, and the plan takes 84"
    )
    roomy = plan_of_text(text, Settings(level=0, recompute="auto", budget=84))
    assert roomy.report.warnings == ()


def test_an_alignment_that_was_asked_for_is_kept_whatever_it_costs() -> None:
    text = "g (float[8] x) => (float[8] z) { a = Exp(x) b = Softmax(x) z = Add(b, a) }"
    for level in (0, 1, 2):
        made = plan_of_text(text, Settings(alignment=4096, level=level))
        assert [arena.alignment for arena in made.arenas] == [4096]
        assert made.report.memory.planned == 8192, "64 bytes apart"
        assert made.report.warnings == ()
        assert plan_from_json(json.loads(made.dumps())).digest == made.digest


def test_a_plan_for_a_provider_is_of_that_providers_graph() -> None:
    portable = plan_of_text(CHAIN).report
    assert portable.target == "portable"
    report = plan_of_text(CHAIN, Settings(target="cpu")).report
    assert report.target == "cpu"
