"""``--chunk auto`` from the file that is read to the files that are written."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from builders import plan_of_text
from features.chunk_models import Maker, convolutions, language_model, transformer
from memplan_cli import api
from memplan_cli.core.results.rewrites import ChunkedRegion, ChunkingSummary
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import PlanError, SettingsError
from memplan_cli.features.chunking.report import chunking_section
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe, make_train_step
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.settings.choices import OrderChoice

HALF = Settings(chunk="auto", budget=0.5)


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def test_attention_in_pieces_is_written_proved_and_replayed(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=128, layers=2))
    found = api.optimize(path, HALF)
    assert found.passed
    assert found.model is not None
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert report.memory.live_peak is not None
    assert report.original_live_peak is not None
    assert report.memory.live_peak <= report.original_live_peak / 2
    assert report.chunked.met
    assert all(region.pieces > 1 for region in report.chunked.regions)
    onnx.checker.check_model(str(found.model), full_check=True)
    again = memplan("validate", found.model, "--original", path, "--replay")
    assert again.exit_code == 0, again.output
    assert "Replay of the plan in one arena filled with NaN: passed" in again.output


@pytest.mark.parametrize("order", ["keep", pytest.param("auto", marks=pytest.mark.slow)])
def test_a_training_step_has_its_logits_in_pieces_both_ways(
    order: OrderChoice, tmp_path: Path
) -> None:
    recipe = Recipe(LossFunction("softmax-cross-entropy"), Optimizer("sgd"))
    step = make_train_step(language_model(64, 8, 256), recipe).model
    path, logits = saved(tmp_path, step), 4 * 64 * 256
    found = api.optimize(
        path, Settings(chunk="auto", budget=2 * logits, loss="loss", order=order)
    )
    assert found.passed
    assert found.model is not None
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert (report.chosen_order == "file") == (order == "keep")
    assert {region.axis for region in report.chunked.regions} == {1, 2}
    assert report.chunked.flops_increase > sum(
        region.flops_increase for region in report.chunked.regions
    )
    onnx.checker.check_model(str(found.model), full_check=True)
    again = memplan("validate", found.model, "--original", path, "--replay")
    assert again.exit_code == 0, again.output
    assert "Replay of the plan in one arena filled with NaN: passed" in again.output


def test_what_the_runtime_takes_falls_as_the_plan_says(tmp_path: Path) -> None:
    path = saved(tmp_path, convolutions(size=96, layers=5))
    # The original's convolutions run in another layout, with other bits, under the defaults.
    check = api.Check(reference="unoptimized")
    runtime = api.optimize(path, HALF, check=check).plan.report.runtime
    assert runtime is not None
    before, after = (
        runtime.observed["original"],
        runtime.observed["optimized"],
    )
    assert before.first_run_peak is not None
    assert after.first_run_peak is not None
    assert after.first_run_peak < before.first_run_peak


def test_regions_are_told_by_why_and_by_every_form_of_the_report(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=128, layers=1))
    asked = "--chunk", "auto", "--budget", "50%"
    story = json.loads(memplan("why", path, *asked, "--format", "json").stdout)
    report = json.loads(memplan("report", path, *asked, "--format", "json").stdout)
    assert story["chunked"]["regions"] == report["chunked"]["regions"]
    region = story["chunked"]["regions"][0]
    assert region["pieces"] > 1
    assert region["after"] < region["before"]
    assert memplan("optimize", path, *asked, "--no-validate").exit_code == 0
    plan = tmp_path / "net.memplan.json"
    for command, form in (("why", "text"), ("why", "markdown"), ("report", "html")):
        text = memplan(command, plan, "--format", form).stdout
        assert "Computed in chunks" in text
        assert region["tensor"] in text
        assert "saved" in text
    for form in ("text", "markdown", "html"):
        assert "computed in chunks" in memplan("report", plan, "--format", form).stdout
    gone = memplan("why", path, *asked, "--tensor", region["tensor"])
    assert gone.exit_code == 2
    assert f"{region['pieces']} chunks along axis {region['axis']}" in gone.output.replace(
        "\n", " "
    )


@pytest.mark.parametrize(("after", "saved"), [(1 << 20, "2.00 MiB"), (4 << 20, "0 B")])
def test_a_region_saves_what_it_needs_less_than_before(after: int, saved: str) -> None:
    report = plan_of_text("g (float[4,8] x) => (float[4,8] y) { y = Exp(x) }").report
    region = ChunkedRegion("wide", 2, 4, 3, before=3 << 20, after=after, flops_increase=0.0)
    chunked = ChunkingSummary(regions=(region,))
    assert saved in str(list(chunking_section(replace(report, chunked=chunked), 5)))


def test_what_is_not_in_pieces_has_no_regions_in_why(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=16, layers=1))
    assert "chunked" not in json.loads(memplan("why", path, "--format", "json").stdout)
    assert "Computed in chunks" not in memplan("why", path).stdout


def test_a_budget_that_cannot_be_met_writes_nothing(tmp_path: Path) -> None:
    make = Maker()
    x = make.node("Conv", "x", make.weight(8, 3, 3, 3), pads=(1, 1, 1, 1))
    mixed = make.node("LayerNormalization", x, make.weight(8, 32, 32), axis=1)
    x = make.node("Conv", mixed, make.weight(3, 8, 3, 3), pads=(1, 1, 1, 1))
    path = saved(tmp_path, make.model({"x": (1, 3, 32, 32)}, x))
    found = memplan("optimize", path, "--chunk", "auto", "--budget", "1KiB")
    assert found.exit_code == 1
    assert f"64.00 KiB for n_{mixed} (" in found.output.replace("\n", " ")
    assert f"{mixed} 32.00 KiB" in found.output.replace("\n", " ")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.onnx"]


def test_best_effort_writes_the_smallest_plan_found(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=32, layers=1))
    options = "--chunk", "auto", "--budget", "1KiB", "--best-effort", "--time-limit", "1"
    done = memplan("optimize", path, *options)
    assert done.exit_code == 0, done.output
    said = done.output.replace("\n", " ")
    assert "cannot be met: the smallest plan found needs" in said
    assert "this plan is written (--best-effort)" in said
    report = api.report(tmp_path / "net.memplan.json").report
    assert report.chunked.regions
    assert not report.chunked.met
    assert report.validation is not None
    assert report.validation.bit_identical
    unchecked = memplan("optimize", path, *options, "--no-validate", "-o", tmp_path / "b.onnx")
    assert unchecked.exit_code == 0, unchecked.output
    assert (tmp_path / "b.onnx").exists()


def test_without_a_budget_memory_is_shown_against_time(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=128, layers=1))
    shown = memplan("report", path, "--chunk", "auto").stdout
    assert "memory against time: from" in shown
    assert "taken" in shown
    done = memplan("optimize", path, "--chunk", "auto")
    assert done.exit_code == 0, done.output
    report = api.report(tmp_path / "net.memplan.json").report
    (taken,) = (point for point in report.chunked.curve if point.taken)
    assert taken.time <= 1.05
    assert taken.nodes == report.chunked.nodes > 0
    assert report.chunked.budget is None
    assert report.chunked.met
    with_budget = memplan("report", path, "--chunk", "auto", "--budget", "50%").stdout
    assert "memory against time" not in with_budget


def test_a_time_limit_refuses_a_budget_in_vain_with_the_least_found(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=256, layers=2))
    options = "--chunk", "auto", "--budget", "1KiB", "--time-limit", "0.001"
    done = memplan("report", path, *options)
    assert done.exit_code == 1
    said = done.output.replace("\n", " ")
    assert "the smallest plan found needs" in said
    assert "lower bound: " in said
    assert "The search ended at its limit." in said


def test_a_budget_that_is_met_already_is_said_to_be(tmp_path: Path) -> None:
    path = saved(tmp_path, transformer(length=16, layers=1))
    done = memplan("report", path, "--chunk", "auto", "--budget", "1GiB")
    assert done.exit_code == 0
    assert "No region is computed in chunks: without chunks the model needs" in (
        done.stdout.replace("\n", " ")
    )


@pytest.mark.parametrize("budget", [(), ("--budget", "1B")])
def test_that_no_chunks_help_is_said(tmp_path: Path, budget: tuple[str, ...]) -> None:
    path = saved(
        tmp_path,
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[4,8] x) => (float[4,8] y) { y = Exp(x) }"""
        ),
    )
    done = memplan("report", path, "--chunk", "auto", *budget)
    assert "0 regions" not in done.output
    assert "No region is computed in chunks: no program with chunks was found" in (
        done.output.replace("\n", " ")
    )


def test_a_bound_dim_is_the_only_one_of_the_written_file(tmp_path: Path) -> None:
    model = transformer(length=64, layers=1)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    path = saved(tmp_path, model)
    with pytest.raises(SettingsError, match="needs one value for each dimension"):
        api.optimize(path, HALF)
    found = api.optimize(path, replace(HALF, dims={"batch": 1}))
    assert found.passed
    assert found.model is not None
    given = onnx.load(found.model).graph.input[0]
    assert [dim.dim_value for dim in given.type.tensor_type.shape.dim] == [1, 64, 32]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--best-effort",), "no effect without --budget"),
        (("--budget", "0"), "above zero"),
        (("--budget", "120%"), "up to 100%"),
        (("--budget", "3 bananas"), "unit"),
        (("--budget", "50%", "--kv-cache", "in-place", "--capacity", "4"), "combined"),
        (("--budget", "50%", "--donate", "x=*"), "donation"),
        (("--budget", "x"), "budget"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    path = saved(tmp_path, convolutions(size=8, layers=2))
    found = memplan("optimize", path, "--chunk", "auto", *options)
    assert found.exit_code == 2
    assert message in found.output
    assert "Traceback" not in found.output


def test_another_target_than_the_cpu_is_refused() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Tanh(x) y = Tanh(a) }"
    with pytest.raises(SettingsError, match="--chunk auto needs the CPU"):
        plan_of_text(text, replace(HALF, target="cuda"))


@pytest.mark.parametrize("layout", [transformer(length=128, layers=1), convolutions(96, 5)])
def test_the_graph_of_the_runtime_is_cut_and_keeps_its_bits(
    tmp_path: Path, layout: onnx.ModelProto
) -> None:
    found = api.optimize(saved(tmp_path, layout), replace(HALF, target="cpu"))
    assert found.passed
    report = found.plan.report
    assert report.chunked.regions
    assert report.chunked.met
    assert report.validation is not None
    assert report.validation.bit_identical


def with_a_constant_to_fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put a Transpose before the first weight of a product."""
    node = next(n for n in model.graph.node if n.op_type == "MatMul" and n.input[1][0] == "w")
    weight = next(w for w in model.graph.initializer if w.name == node.input[1])
    turned = np.ascontiguousarray(onnx.numpy_helper.to_array(weight).T)
    weight.CopyFrom(onnx.numpy_helper.from_array(turned, weight.name))
    model.graph.node.insert(
        0,
        onnx.helper.make_node("Transpose", [weight.name], ["turned"], "n_turned", perm=[1, 0]),
    )
    node.input[1] = "turned"
    return model


def test_constants_are_folded_and_regions_cut_in_one_file(tmp_path: Path) -> None:
    path = saved(tmp_path, with_a_constant_to_fold(transformer(length=128, layers=1)))
    found = api.optimize(path, replace(HALF, fold_constants=True))
    assert found.passed
    report = found.plan.report
    assert report.chunked.regions
    assert [each.name for each in report.folded.tensors] == ["turned"]
    assert found.model is not None
    kinds = [node.name for node in onnx.load(found.model).graph.node]
    assert "n_turned" not in kinds


def test_a_budget_is_met_by_pieces_or_by_recomputing_whichever_adds_less(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, transformer(length=128, layers=1))
    pieces = api.plan(path, HALF).report
    both = api.plan(path, replace(HALF, recompute="auto")).report
    added = both.chunked.flops_increase + both.recompute.flops_increase
    assert both.recompute.met
    assert both.memory.live_peak is not None
    assert both.memory.live_peak <= (both.recompute.budget or 0)
    assert added <= pieces.chunked.flops_increase


def with_outputs_of_all_layers(seed: int) -> onnx.ModelProto:
    """Return random layers on one tensor, of which many are outputs."""
    rng, make = np.random.default_rng(seed), Maker()
    tensors, outputs = ["x"], list[str]()
    for _ in range(8):
        one, other, third = (
            tensors[-1 - int(rng.integers(min(4, len(tensors))))] for _ in "abc"
        )
        if rng.random() < 0.5:
            turned = make.node("Transpose", other, perm=[0, 2, 1])
            scores = make.node("Softmax", make.node("MatMul", one, turned), axis=-1)
            tensors.append(make.node("MatMul", scores, third))
        else:
            wide = make.node("Sigmoid", make.node("MatMul", one, make.weight(16, 128)))
            tensors.append(make.node("MatMul", wide, make.weight(128, 16)))
        if rng.random() < 0.5:
            outputs.append(tensors[-1])
    model = make.model({"x": (1, 64, 16)}, tensors[-1])
    for name in dict.fromkeys(outputs):
        if name != tensors[-1]:
            kind = onnx.TensorProto.FLOAT
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(name, kind, (1, 64, 16))
            )
    return model


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 4, 5))]
)
def test_a_budget_that_chunks_meet_stays_met_whatever_is_done_besides(
    tmp_path: Path, seed: int
) -> None:
    model = with_outputs_of_all_layers(seed)
    path = saved(tmp_path, model)
    for share in ("70%", "55%", "45%"):
        settings = Settings(chunk="auto", budget=share, run=False)  # type: ignore[arg-type] # as in a file
        alone = api.plan(path, settings).report
        assert alone.chunked.curve
        least = min(point.peak for point in alone.chunked.curve)
        assert alone.budget_met or least > (alone.chunked.budget or 0)
        recomputed = api.plan(path, replace(settings, recompute="auto")).report
        assert recomputed.budget_met or not alone.budget_met
        donated = {"x": model.graph.output[0].name}
        donating = api.plan(path, replace(settings, donate=donated)).report
        assert donating.budget_met or not alone.budget_met
        assert donating.donated.pairs


def test_fit_refuses_chunk_and_budget(tmp_path: Path) -> None:
    path = saved(tmp_path, convolutions(size=8, layers=2))
    options = ("--memory", "1MiB", "--dim", "n=?", "--chunk", "auto", "--budget", "50%")
    found = memplan("fit", path, *options)
    assert found.exit_code == 2
    assert "remove --chunk and --budget" in found.output


FREE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, seq, 16] x) => (float[batch, seq, 16] y) { a = Relu(x) y = Exp(a) }"""


WITHOUT_ONE_VALUE = (
    (),
    ("--bounds", "batch=1..4", "--bounds", "seq=8..64"),
    ("--bounds", "seq=8..64", "--dim", "batch=4"),
)
SEVERAL_VALUES = ("--dim", "batch=1,4", "--dim", "seq=64")
"""`why` takes one value of a dimension."""


@pytest.mark.parametrize(
    ("command", "dims"),
    [
        *product(("report", "optimize", "why"), WITHOUT_ONE_VALUE),
        *product(("report", "optimize"), (SEVERAL_VALUES,)),
    ],
)
def test_a_dimension_without_one_value_is_refused(
    tmp_path: Path, command: str, dims: tuple[str, ...]
) -> None:
    path = saved(tmp_path, onnx.parser.parse_model(FREE))
    found = memplan(command, path, "--chunk", "auto", "--budget", "50%", *dims)
    assert found.exit_code == 2
    said = " ".join(found.output.split())
    assert "--chunk auto needs one value for each dimension" in said
    assert ("--dim seq=" in said) or ("--dim batch=" in said)
    assert [each.name for each in tmp_path.iterdir()] == ["net.onnx"]


def test_excluded_tensors_stay_whole(tmp_path: Path) -> None:
    model = transformer(length=128, layers=1)
    kept = next(node.output[0] for node in model.graph.node if node.op_type == "Softmax")
    plan = api.plan(saved(tmp_path, model), replace(HALF, exclude=(kept,)))
    assert kept in plan.by_id


def test_a_plan_file_that_says_other_regions_is_refused(tmp_path: Path) -> None:
    plan = api.plan(saved(tmp_path, transformer(length=128, layers=1)), HALF)
    assert checked_plan(json.loads(json.dumps(to_json(plan)))).digest == plan.digest
    region = replace(plan.report.chunked.regions[0], pieces=1)
    chunked = replace(plan.report.chunked, regions=(region,))
    changed = plan.with_report(replace(plan.report, chunked=chunked))
    with pytest.raises(PlanError):
        checked_plan(json.loads(json.dumps(to_json(changed))))
