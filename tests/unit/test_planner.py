"""The pipeline keeps the contract's words and numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from builders import parse, plan_of_text, read
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.plan_of import Source
from memplan_cli.planner import make_plan
from memplan_cli.settings import MemParam, Settings

CHAIN = """g (float[8,8] x) => (float[8,8] z) <float[8,8] w> {
    a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) d = MatMul(c, w) z = MatMul(d, w) }"""
STEP = """step (float[4,8] x, float[8,8] w) => (float loss, float[8,8] w_new) {
    h = MatMul(x, w)  s = Mul(h, h)  loss = ReduceMean<keepdims=0>(s)
    two = Constant<value_float=2.0>()  dh = Mul(h, two)
    xt = Transpose<perm=[1,0]>(x)  w_grad = MatMul(xt, dh)
    rate = Constant<value_float=0.1>()  w_step = Mul(w_grad, rate)  w_new = Sub(w, w_step) }"""
CHAIN = CHAIN.replace(" <float[8,8] w>", "").replace(
    "(float[8,8] x)", "(float[8,8] x, float[8,8] w)"
)
TENSOR = 8 * 8 * 4


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


def test_a_phase_that_is_not_to_be_optimised_is_left_as_it_is() -> None:
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


@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_excluded_tensor_has_storage_of_its_own_for_the_whole_run(level: int) -> None:
    plan = plan_of_text(CHAIN, Settings(level=level, exclude=("b",)))  # type: ignore[arg-type]
    tensor = plan.by_id["b"]
    assert tensor.pinned == "excluded by 'b'"
    assert (tensor.first, tensor.last) == (0, 5)
    assert tensor.alias_of is None
    for other in plan.tensors:
        if other.name != "b":
            low, high = sorted((tensor, other), key=lambda t: t.offset)
            assert low.offset + low.bytes <= high.offset
    assert plan.report.memory.planned == 3 * TENSOR
    assert plan.report.memory.live_peak == 3 * TENSOR, "it counts at every step"
    assert [(r.name, r.reason) for r in plan.report.unplanned] == [("b", "excluded by 'b'")]


def test_exclusions_of_mem_param_and_of_the_command_line_add_up() -> None:
    chosen = Settings(mem_param=MemParam(exclude_blob=("a",)), exclude=("[bc]",))
    plan = plan_of_text(CHAIN, chosen)
    assert {t.name for t in plan.tensors if t.pinned} == {"a", "b", "c"}


def test_an_exclusion_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SettingsError, match="'nobody' matches no tensor"):
        plan_of_text(CHAIN, Settings(exclude=("nobody",)))


def test_exposing_what_is_not_excluded_is_no_silent_wish() -> None:
    idle = plan_of_text(CHAIN, Settings(expose=True)).report
    assert idle.warnings == ("nothing is excluded, so there is nothing to expose",)
    assert plan_of_text(CHAIN, Settings(expose=True, exclude=("b",))).report.warnings == ()


def test_excluding_an_input_or_output_changes_nothing() -> None:
    assert plan_of_text(CHAIN, Settings(exclude=("x", "z"))).report.memory == (
        plan_of_text(CHAIN).report.memory
    )


def test_gradients_keep_their_memory_only_where_that_is_asked_for() -> None:
    pinned = {
        t.name for t in plan_of_text(STEP, Settings(skip_grads=True)).tensors if t.pinned
    }
    assert pinned == {"w_grad"}
    assert not {t.name for t in plan_of_text(STEP).tensors if t.pinned}


def test_a_loss_inside_the_graph_keeps_its_memory() -> None:
    plan = plan_of_text(CHAIN, Settings(loss="c"))
    assert plan.by_id["c"].pinned == "the loss"
    assert plan.report.loss == "c"


def test_a_loss_that_is_no_tensor_is_an_error() -> None:
    with pytest.raises(SettingsError):
        plan_of_text(CHAIN, Settings(loss="lost"))


UNKNOWN = {
    "a string": (("g (float[4] x, string[4] t) => (float[4] z, string[4] u)"
                 " { s = Identity(t) u = Identity(s) z = Neg(x) }"), "s", "strings"),
    "a sequence": (("g (float[4] x) => (float[4] z) { s = SequenceConstruct(x, x)"
                   " i = Constant<value_int=0>() z = SequenceAt(s, i) }"), "s", "sequence(float32)"),
    "an optional": (("g (float[4] x) => (float[4] z) { o = Optional(x)"
                    " z = OptionalGetElement(o) }"), "o", "optional"),
    "a size that data decides": (("g (float[4] x) => (int64[1,1] z) { s = NonZero(x)"
                                 " z = ReduceSum(s) }"), "s", "dim 1"),
    "an operator nobody knows": (("g (float[4] x) => (float[4] z) { s = local.Odd(x)"
                                 " z = local.Odd(s) }"), "s", "type is not known"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_has_no_size_is_left_out_with_the_reason(what: str) -> None:
    text, name, words = UNKNOWN[what]
    report = plan_of_text(text).report
    refusal = next(r for r in report.unplanned if r.name == name)
    assert words in refusal.reason
    assert report.coverage < 1.0
    assert report.partial


def test_totals_are_not_said_while_a_size_is_not_known() -> None:
    text = "g (float[4] x) => (float[4] z) { a = Exp(x) s = local.Odd(a) z = local.Odd(s) }"
    report = plan_of_text(text).report
    memory = report.memory
    assert (memory.naive, memory.live_peak, memory.planned, memory.total) == (None,) * 4
    assert set(report.levels.values()) == {None}
    assert report.original_planned is None
    assert report.peak is None
    assert report.coverage == 0.5
    assert (memory.inputs, memory.outputs, memory.weights) == (16, 16, 0)


def test_partial_totals_are_said_on_demand_and_marked() -> None:
    text = "g (float[4] x) => (float[4] z) { a = Exp(x) s = local.Odd(a) z = local.Odd(s) }"
    report = plan_of_text(text, Settings(allow_partial=True)).report
    assert (report.memory.naive, report.memory.planned) == (16, 16)
    assert report.partial


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
    bound = make_plan(made, Settings(order="keep"), Source("m", "", "")).plan
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
    """The optimiser of optimize-net#28 did."""
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
    from memplan_cli.onnx_io.read import read_program

    made = read_program(model).program
    plan = make_plan(made, Settings(), Source("m", "", "")).plan
    assert {t.name for t in plan.tensors} == {"pick.then_branch/v", "v", "one", "two", "y"}


def test_sizes_that_no_machine_has_are_refused() -> None:
    text = f"g (float[{2**40},{2**40}] x) => (float[1] z) {{ a = Exp(x) z = local.Odd(a) }}"
    with pytest.raises(ModelError, match="no machine has that much"):
        plan_of_text(text)


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


def test_what_training_takes_is_estimated_of_flat_forward_models_of_known_sizes_only() -> None:
    flat = "g (float[4] x) => (float[4] z) { a = Exp(x) z = Exp(a) }"
    assert plan_of_text(flat).report.training_estimate == {"raw": 16, "optimized": 16}
    body = "<body = b (int64 i, bool on, float[4] v) => (bool go, float[4] w) "
    body += "{ go = Identity(on) w = Exp(v) }>"
    nested = f"g (float[4] x, int64 n, bool c) => (float[4] z) {{ z = Loop (n, c, x) {body} }}"
    for text in (nested, flat.replace("4", "batch")):
        assert not plan_of_text(text).report.training_estimate


def test_an_alignment_that_is_not_kept_is_a_warning() -> None:
    text = "g (float[8] x) => (float[8] z) { a = Exp(x) b = Softmax(x) z = Add(b, a) }"
    (coarse,) = plan_of_text(text, Settings(alignment=4096)).report.warnings
    assert coarse == (
        "offsets are multiples of 1 bytes, not of 4096: "
        "aligned so, level 2 would need more than level 1"
    )
    (pools,) = plan_of_text(text, Settings(alignment=32, level=1)).report.warnings
    assert pools.endswith("not of 32: at level 1 each slot is an allocation of its own")
    assert plan_of_text(text, Settings(alignment=32)).report.warnings == ()
