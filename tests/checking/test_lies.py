"""Every lie of the table is refused for what it is, and what nobody changed is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from onnx import parser, save

from lies import of_assumed, of_models, of_numbers, of_plans
from lies.told import BASES, disagreement, nothing, refusal, tell
from memplan_cli import Settings, optimize, validate
from memplan_cli.api.models.plan_files import compare_with_model
from memplan_cli.cli import main
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.results.rewrites import ConstantTensor
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.onnx_io.load import load_model
from memplan_cli.planning.plan_file import read_plan
from memplan_cli.runtime.workers import worker

if TYPE_CHECKING:
    from pathlib import Path

    from lies.told import Told
    from memplan_cli.checking.check import PlanComparison

LIES = {**of_plans.LIES, **of_models.LIES, **of_numbers.LIES, **of_assumed.LIES}


def test_no_two_lies_have_one_name() -> None:
    tables = (of_plans.LIES, of_models.LIES, of_numbers.LIES, of_assumed.LIES)
    assert len(LIES) == sum(map(len, tables)) >= 40


@pytest.mark.parametrize("name", LIES)
def test_a_lie_is_refused_before_anything_runs(name: str, tmp_path: Path) -> None:
    base, lie, reason = LIES[name]
    assert re.search(reason, said := refusal(tell(base, lie, tmp_path))), said


@pytest.mark.parametrize("name", LIES)
def test_the_model_alone_contradicts_a_lie(name: str, tmp_path: Path) -> None:
    """The check against the model finds it where nobody has counted the plan file again."""
    base, lie, reason = LIES[name]
    assert re.search(reason, said := disagreement(tell(base, lie, tmp_path))), said


def test_a_model_without_the_note_on_its_plan_is_refused_by_the_names_of_its_figures(
    tmp_path: Path,
) -> None:
    def drop_note(told: Told) -> None:
        told.say(told.model, "plan", None)
        told.renews = False

    said = disagreement(tell("flat", drop_note, tmp_path))
    assert "note says that digest is" in said
    assert "says that  is" not in said


@pytest.mark.parametrize("base", BASES)
def test_an_unchanged_plan_is_accepted(base: str, tmp_path: Path) -> None:
    written = tell(base, nothing, tmp_path)
    assert disagreement(written) == refusal(written) == ""


def test_the_command_says_what_disagrees_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, lie, reason = LIES["all offsets are 0 in the model"]
    written = tell(base, lie, tmp_path)
    monkeypatch.setattr(worker, "run_job", _never)
    done = CliRunner().invoke(main, ["validate", str(written), "--replay"])
    assert done.exit_code == 1
    assert re.search(reason, done.stdout.replace("\n", " "))
    done = CliRunner().invoke(main, ["validate", str(written), "--format", "json"])
    assert done.exit_code == 1
    verdict = json.loads(done.stdout)
    assert verdict["status"] == "failed"
    assert re.search(reason, " ".join(verdict["notes"]))


def _never(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


def test_an_honest_verdict_says_what_was_held_against_the_plan(tmp_path: Path) -> None:
    written = tell("nested", nothing, tmp_path)
    proof = validate(written, tmp_path / "net.onnx")
    assert any("16 nodes and 18 tensors" in note for note in proof.validation.notes)


def compared(written: Path, original: Path) -> PlanComparison:
    return compare_with_model(
        load_model(written), read_plan(written.with_suffix(".json")), original
    )


def test_a_size_that_only_the_plan_says_is_counted_as_its_own_word(tmp_path: Path) -> None:
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x) => (float[1, n] y)'
        "{ a = NonZero(x)  b = Neg(a)  c = Cast <to = 1> (b)  y = Relu(c) }"
    )
    given = tmp_path / "net.onnx"
    save(made, given)
    optimize(given, Settings(), check=None)
    found = compared(tmp_path / "net.memplan.onnx", given)
    assert found.disagreements == ()
    assert found.unverified_sizes == 3
    assert found.summary().endswith("the sizes of 3 tensors are known from the plan only")


def test_a_view_counts_once_in_the_arena_of_a_runtime(tmp_path: Path) -> None:
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[64] x) => (float y)'
        "<int64[2] to = {8, 8}, int64[1] back = {64}> { a = Exp(x)  b = Reshape(a, to)"
        "  c = Reshape(b, back)  y = ReduceSum <keepdims = 0> (c) }"
    )
    given = tmp_path / "net.onnx"
    save(made, given)
    optimize(given, Settings(order="keep"), check=None)
    assert compared(tmp_path / "net.memplan.onnx", given).disagreements == ()
    memory = read_plan(tmp_path / "net.memplan.json").report.memory
    assert memory.resident == 256 + 4


@pytest.mark.parametrize(
    ("inputs", "node"),
    [
        ("", "a = RandomNormal <shape = [2]> ()"),
        ("", "a = local.Read ()"),
        (", float[2] w = {1.0, 2.0}", "a = Exp(w)"),
    ],
    ids=["random", "other domain", "weight that a caller may replace"],
)
def test_a_tensor_that_differs_from_run_to_run_is_not_foldable(
    inputs: str, node: str, tmp_path: Path
) -> None:
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
        f"g (float[2] x{inputs}) => (float[2] y) <float[2] a> {{ {node}  y = Add(a, x) }}"
    )
    given = tmp_path / "net.onnx"
    save(made, given)
    optimize(given, Settings(run=False), check=None)
    written = tmp_path / "net.memplan.onnx"
    plan = read_plan(written.with_suffix(".json"))
    assert compare_with_model(load_model(written), plan, given).disagreements == ()
    foldable = (ConstantTensor("a", "Exp", 8, ""),)
    forged = plan.with_report(replace(plan.report, foldable=foldable))
    (said,) = compare_with_model(load_model(written), forged, given).disagreements
    assert said == "tensor 'a' is recorded as foldable, but is not computed from weights alone"


@pytest.mark.parametrize("rate", [1, -1])
def test_a_branch_that_given_values_never_enter_has_no_sizes(
    rate: int, tmp_path: Path
) -> None:
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x, int64 rate) => (float[k] y)'
        "{ zero = Constant <value_int = 0> ()  c = Greater(rate, zero)"
        "  r = If (c) <then_branch = t () => (float[n] a) { p = Concat <axis = 0> (x, x)"
        "  a = Neg(p) }, else_branch = e () => (float[m] b) { s = Neg(x)  b = Exp(s) }>"
        "  y = Relu(r) }"
    )
    given = tmp_path / "net.onnx"
    save(made, given)
    inputs = Inputs(values={"rate": rate, "x": [1.0] * 8})
    optimize(given, Settings(inputs=inputs), check=None)
    assert compared(tmp_path / "net.memplan.onnx", given).disagreements == ()


SUMS = """g (float[batch, past] p, float[batch, seq] s) => (float[batch, t] y)
{ a = Concat <axis = 1> (p, s)  b = Relu(a)  c = Neg(a)  d = Add(b, c)  e = Tanh(p)
  f = ReduceSum <keepdims = 1> (e)  g = Add(d, f)  y = Relu(g) }"""
"""A model whose sizes are products of a dim and a sum of two."""


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(level=1),
        Settings(bounds={"seq": DimRange(1, 8)}),
        Settings(bounds={"past": DimRange(2, 8)}, dims={"batch": 3}),
        Settings(shapes={"p": (4, "z")}),
        Settings(run=False),
    ],
    ids=["free", "slots", "one with bounds", "bounds and bound", "other shape", "not run"],
)
def test_numbers_at_assumed_dims_are_those_of_the_model(
    settings: Settings, tmp_path: Path
) -> None:
    given = tmp_path / "net.onnx"
    save(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {SUMS}'), given)
    optimize(given, settings, check=None)
    assert compared(tmp_path / "net.memplan.onnx", given).disagreements == ()
    memory = read_plan(tmp_path / "net.memplan.json").report.memory
    assert None not in (memory.naive, memory.planned, memory.total)


def test_a_model_with_settings_of_its_own_runs_on_the_provider_of_its_target(
    tmp_path: Path,
) -> None:
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[8] x, float[8] s) => (float[8] t)'
        "{ a = Exp(x)  t = Add(s, a) }"
    )
    given, written = tmp_path / "net.onnx", tmp_path / "net.memplan.onnx"
    save(made, given)
    optimize(given, Settings(donate={"s": "t"}), check=None)
    model, plan = load_model(written), read_plan(written.with_suffix(".json"))
    plan = plan.with_report(replace(plan.report, runtime=None))  # as without ONNX Runtime
    assert compare_with_model(model, plan, given).disagreements == ()
    (entry,) = (e for e in model.metadata_props if e.key == "pkg.memplan.settings")
    entry.value = entry.value.replace("CPUExecutionProvider", "CUDAExecutionProvider")
    (disagreement,) = compare_with_model(model, plan, given).disagreements
    assert disagreement.startswith("provider in the model is recorded as CUDA")
