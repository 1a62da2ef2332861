"""Plans are run inside their arenas; corrupted ones must be caught, both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import onnx
import onnx.parser
import pytest

from memplan_cli import api
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import CPU
from memplan_cli.runtime.replay.replay import ReplayCoverage, replay, replay_unchecked
from memplan_cli.runtime.workers.spec import RunConditions
from memplan_cli.settings.settings import Settings

Level = Literal[0, 1, 2]

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.placements import Placement
    from memplan_cli.core.results.plan import Plan

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
ON_CPU = RunConditions()

FLAT = """g (float[8,16] x, float[16,16] w) => (float[8,16] y, float[16,8] z)
    { a = MatMul(x, w)  b = Relu(a)  c = Exp(b)  d = Add(b, c)  e = Neg(d)
      f = Transpose(e)  z = Exp(f)  s = Softmax(c)  y = Add(s, e) }"""

NESTED = """g (float[4,8] x, bool p) => (float[4,8] y, float[3,4,8] all)
    <int64 trips = {3}, bool go = {1}>
    { a = Exp(x)  b = Neg(a)
      c = If (p) <
        then_branch = t () => (float[4,8] q) { r = Add(a, b)  q = Neg(r) },
        else_branch = e () => (float[4,8] s) { u = Mul(a, b)  s = Exp(u) }>
      last, all = Loop (trips, go, c) <
        body = l (int64 i, bool k, float[4,8] now) => (bool o, float[4,8] then, float[4,8] out)
        { o = Identity(k)  h = Add(now, b)  then = Tanh(h)  out = Neg(then) }>
      m = Add(last, a)  y = Neg(m) }"""

OVERTAKEN = """g (float[16,16] x, bool c) => (float[16,16] z)
    { a = MatMul(x, x)
      k, y = If (c) <
        then_branch = t () => (float[16,16] m, float[16,16] r) { m = MatMul(a, x)  r = Relu(a) },
        else_branch = e () => (float[16,16] s, float[16,16] n)
            { s = MatMul(x, x)  n = MatMul(s, x) }>
      z = MatMul(y, k) }"""

DRAWING = """g (float[8,16] x) => (float[8,16] y) <float ratio = {0.5}, bool training = {1}>
    { a = Exp(x)  d = RandomUniformLike(a)  h = Mul(a, d)
      k, m = Dropout(h, ratio, training)  n = Neg(k)  y = Add(n, d) }"""

DYNAMIC = """g (float[batch,16] x) => (float[batch,16] y)
    { a = Exp(x)  b = Neg(a)  c = Add(a, b)  d = Exp(c)  y = Neg(d) }"""

WORDS = """g (string[3] s, float[3] x) => (string[3] t, float[3] y)
    { u = Identity(s)  t = Identity(u)  a = Exp(x)  b = Neg(a)  y = Exp(b) }"""


SMALL = """g (float[3,5] x) => (float[3,5] y)
    { b = Cast <to = 16> (x)  c = Cast <to = 1> (b)  e = Cast <to = 17> (c)  f = Cast <to = 1> (e)
      i = Cast <to = 22> (f)  j = Cast <to = 1> (i)  y = Sum (c, f, j) }"""

EMPTY = """g (float[0,4] e, float[2,4] x) => (float[2,4] y)
    { a = Neg(e)  b = Neg(x)  y = Concat <axis = 0> (a, b) }"""

COMPARED = """g (string[3] s, float[3] x) => (float[3] y)
    { n = Equal(s, s)  a = Exp(x)  b = Where(n, a, x)  f = Neg(b)  y = Exp(f) }"""


def planned(folder: Path, text: str, settings: Settings) -> tuple[Path, Plan]:
    model = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(model))
    done = api.optimize(model, settings, out=folder / "out.onnx", check=None)
    return folder / "out.onnx", done.plan


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("text", [FLAT, NESTED], ids=["flat", "nested"])
def test_a_plan_holds_at_every_level(tmp_path: Path, text: str, level: Level) -> None:
    model, plan = planned(tmp_path, text, replace(Settings(), level=level))
    result = replay(model, plan, ON_CPU)
    assert (result.status, result.differences, result.reason) == ("passed", (), "")
    assert result.coverage.placed >= 3, "tensors really lay in the arena"


def test_types_that_numpy_does_not_know_lie_in_the_arena_too(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, SMALL, Settings())
    dtypes = {tensor.name: tensor.dtype for tensor in plan.tensors}
    assert (dtypes["b"], dtypes["e"], dtypes["i"]) == ("bfloat16", "float8e4m3fn", "int4")
    result = replay(model, plan, ON_CPU)
    assert (result.status, result.reason, result.coverage.unplaced) == ("passed", "", {})
    assert result.coverage.placed == len(plan.tensors)


def test_inputs_and_outputs_of_such_types_are_replayed_too(tmp_path: Path) -> None:
    text = """g (bfloat16[3,5] x, int4[3,5] q) => (bfloat16[3,5] y, int4[3,5] p, bfloat16[3,5] x)
        <float s = {0.5}>
        { a = Cast <to = 1> (x)  b = Neg(a)  y = Cast <to = 16> (b)
          w = DequantizeLinear(q, s)  v = Neg(w)  p = QuantizeLinear <output_dtype = 22> (v, s) }"""
    path, plan = planned(tmp_path, text, Settings())
    assert replay(path, plan, ON_CPU).status == "passed"


def test_operators_of_other_domains_are_replayed_too(tmp_path: Path) -> None:
    text = """g (float[4,8] x) => (float[4,8] y)
        { a = Exp(x)  b = com.microsoft.Gelu(a)  c = Neg(b)  y = Exp(c) }"""
    path, plan = planned(tmp_path, text, Settings())
    assert replay(path, plan, ON_CPU).status == "passed"


def test_a_symbolic_plan_holds_at_the_dims_given(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, DYNAMIC, Settings())
    for batch in (1, 7):
        result = replay(model, plan, RunConditions(CPU, Binding({"batch": batch})))
        assert (result.status, result.coverage.placed > 0) == ("passed", True)


def test_without_dims_a_symbolic_tensor_is_listed_as_left_out(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, DYNAMIC, Settings())
    result = replay(model, plan, ON_CPU)
    assert "a" in result.coverage.unplaced


def test_strings_are_listed_as_left_out(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, WORDS, Settings())
    result = replay(model, plan, ON_CPU)
    assert (result.status, result.reason) == ("passed", "")
    assert "u" in result.coverage.unplaced


def test_what_is_excluded_is_in_its_place_and_is_not_said_to_have_none(tmp_path: Path) -> None:
    settings = replace(Settings(), exclude=("c", "d"))
    model, plan = planned(tmp_path, FLAT, settings)
    assert {refusal.name for refusal in plan.report.unplanned} == {"c", "d"}
    found = replay(model, plan, ON_CPU).coverage
    assert found == ReplayCoverage(placed=len(plan.tensors), pinned=2)
    every = len(plan.tensors)
    said = f"{every} of {every} tensors at their offsets, 2 excluded ones compared again"
    assert [line.startswith(said) for line in found.sentences()] == [True]


def test_what_runs_in_bodies_is_said_not_to_be_shown(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, NESTED, Settings())
    inside = sum(bool(tensor.block) for tensor in plan.tensors)
    found = replay(model, plan, ON_CPU).coverage
    assert inside > 0
    assert found == ReplayCoverage(placed=len(plan.tensors) - inside, in_subgraphs=inside)
    first, second = found.sentences()
    assert first == f"{found.placed} of {len(plan.tensors)} tensors at their offsets"
    assert second.startswith(f"{inside} tensors in subgraphs of If, Loop or Scan not covered")


def test_an_if_whose_output_lies_on_what_its_branch_read_is_no_clash(tmp_path: Path) -> None:
    """The runtime writes r as the output before it makes m, which the plan makes first."""
    model, plan = planned(tmp_path, OVERTAKEN, replace(Settings(), order="keep"))
    (y, r) = (t for t in plan.tensors if t.name in ("y", "r"))
    assert {y.alias_of, r.alias_of} == {"a"}
    for scale in (0.5, 1.0, 2.0):
        specs = [replace(each, scale=scale) for each in ON_CPU.input_set(model).specs]
        result = replay(model, plan, replace(ON_CPU, specs=tuple(specs)))
        assert (result.status, result.differences) == ("passed", ())


def test_tensors_without_bytes_lie_nowhere(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, EMPTY, Settings())
    result = replay(model, plan, ON_CPU)
    assert (result.status, result.reason) == ("passed", "")
    assert (result.coverage.placed, result.coverage.empty) == (1, 1)
    assert list(result.coverage.sentences())[1] == "1 tensors without bytes"


def test_an_excluded_result_of_an_op_on_strings_is_looked_at_too(tmp_path: Path) -> None:
    settings = replace(Settings(), level=1, exclude=("n",))
    model, plan = planned(tmp_path, COMPARED, settings)
    assert replay(model, plan, ON_CPU).status == "passed"
    result = replay_unchecked(model, clash(plan, "n", "f"), ON_CPU)
    assert [d.output for d in result.differences if "excluded" in d.reason] == ["n"]


def clash(plan: Plan, first: str, second: str) -> Plan:
    """Put one tensor onto the bytes of another that is alive at the same time."""
    there = plan.by_id[first]

    def moved(tensor: Placement) -> Placement:
        owner = tensor.alias_of or tensor.id
        if owner != second:
            return tensor
        return tensor._replace(arena=there.arena, offset=there.offset)

    return replace(plan, tensors=tuple(moved(tensor) for tensor in plan.tensors))


def test_two_live_tensors_on_the_same_bytes_break_a_named_rule(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, FLAT, replace(Settings(), level=1))
    result = replay(model, clash(plan, "b", "c"), ON_CPU)
    assert result.status == "failed"
    assert "overlap" in result.reason


@pytest.mark.parametrize(("first", "second"), [("b", "c"), ("c", "d"), ("c", "e")])
def test_without_the_static_check_the_replay_gives_wrong_values(
    tmp_path: Path, first: str, second: str
) -> None:
    model, plan = planned(tmp_path, FLAT, replace(Settings(), level=1))
    result = replay_unchecked(model, clash(plan, first, second), ON_CPU)
    assert result.status == "failed"
    assert {item.output for item in result.differences} & {"y", "z"}


def test_a_plan_of_a_model_that_draws_random_numbers_holds(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, DRAWING, Settings())
    result = replay(model, plan, ON_CPU)
    assert (result.status, result.differences) == ("passed", ())
    assert "RandomUniformLike, Dropout" in result.notes[-1]
    assert replay_unchecked(model, clash(plan, "d", "a"), ON_CPU).status == "failed"


def test_a_tensor_declared_dead_too_early_gives_wrong_values(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, FLAT, replace(Settings(), level=1))
    short = tuple(
        tensor._replace(last=tensor.first + 1) if tensor.id == "b" else tensor
        for tensor in plan.tensors
    )
    result = replay_unchecked(model, replace(plan, tensors=short), ON_CPU)
    assert result.status == "failed"


def test_a_capture_overwritten_by_the_body_gives_wrong_values(tmp_path: Path) -> None:
    model, plan = planned(tmp_path, NESTED, replace(Settings(), level=1))
    inner = next(t.id for t in plan.tensors if t.name == "r")
    # a is read again after the If: what the branch wrote over it must show.
    result = replay_unchecked(model, clash(plan, "a", inner), ON_CPU)
    assert result.status == "failed"


def test_an_excluded_tensor_is_looked_at_in_the_end(tmp_path: Path) -> None:
    settings = replace(Settings(), level=1, exclude=("c",))
    model, plan = planned(tmp_path, FLAT, settings)
    assert replay(model, plan, ON_CPU).status == "passed"
    # f lives after the last reader of c: no output is wrong, only c itself.
    result = replay_unchecked(model, clash(plan, "c", "f"), ON_CPU)
    assert [d.output for d in result.differences if "excluded" in d.reason] == ["c"]
