"""What is planned, what keeps storage of its own, what is left out, and why."""

from __future__ import annotations

import pytest

from builders import plan_of_text
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.settings.settings import MemParam, Settings
from planning.planner_cases import CHAIN, STEP, TENSOR


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
    (told,) = plan_of_text(CHAIN, Settings(expose=True, exclude=("b",))).report.warnings
    assert told == (
        "1 exposed tensor becomes an output of the written model; here the bytes are in "
        "`planned`, not in `outputs`"
    )


def test_excluding_an_input_or_output_changes_nothing_and_says_so() -> None:
    report = plan_of_text(CHAIN, Settings(exclude=("x", "z", "b"))).report
    assert report.warnings == (
        "excluding 'x' changes nothing: 'x' is a graph input, which never shares its memory",
        "excluding 'z' changes nothing: 'z' is a graph output, which never shares its memory",
    )
    idle = plan_of_text(CHAIN, Settings(exclude=("[xz]",))).report
    assert idle.memory == plan_of_text(CHAIN).report.memory
    assert len(idle.warnings) == 1


def test_excluding_a_weight_changes_nothing_and_says_so() -> None:
    (told,) = plan_of_text(STEP, Settings(exclude=("two",))).report.warnings
    assert told.endswith("'two' is a weight, which never shares its memory")


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


def test_sizes_that_no_machine_has_are_refused() -> None:
    text = f"g (float[{2**40},{2**40}] x) => (float[1] z) {{ a = Exp(x) z = local.Odd(a) }}"
    with pytest.raises(ModelError, match="no machine has that much"):
        plan_of_text(text)


def test_of_sizes_that_are_excessive_together_the_largest_is_named() -> None:
    # 2 ** 61 bytes each for b and c, and 4 for d: only their sum is excessive.
    text = f"""g (float[1] x) => (float[1] z) <float[{2**30},{2**29}] b, float[{2**30},{2**29}] c> {{
        b = local.Odd(x) c = local.Odd(b) d = Neg(x) e = local.Odd(c, d) z = local.Odd(e) }}"""
    with pytest.raises(ModelError, match=f"{2**61} of them tensor 'b'"):
        plan_of_text(text)
