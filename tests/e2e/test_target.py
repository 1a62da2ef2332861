"""Optimize for one provider: the runtime's own graph competes with the graph as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from memplan_cli import Check, Settings, api
from memplan_cli.api.output import rewriting
from memplan_cli.core.results.observations import RuntimeSettings, Validation
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.run import compare
from memplan_cli.runtime.run.compare import WrittenRun
from memplan_cli.runtime.run.run_model import RunRecord
from memplan_cli.runtime.verification import confirm
from memplan_cli.runtime.workers import worker
from memplan_cli.runtime.workers.session import probe_provider
from shared_models import filled
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from memplan_cli.runtime.run.baseline import Baseline
    from memplan_cli.settings.choices import NotesChoice, TargetChoice

CPU = Settings(target="cpu")


def metadata(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in load_model(path).metadata_props}


def test_the_graph_optimized_offline_says_what_it_is_tied_to(
    samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "net.onnx"
    for _ in range(2):  # the second time, its own data is in the way
        done = api.optimize(samples / "branchy_cnn.onnx", CPU, out=out, check=None)
        assert done.model == out
    assert metadata(out)["pkg.memplan.runtime"].startswith("onnxruntime ")
    assert "pkg.memplan.hardware" in metadata(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "net.json",
        "net.onnx",
        "net.onnx.data",
    ]


@pytest.mark.parametrize(
    ("target", "notes", "written"),
    [
        ("cpu", "auto", "plan"),
        ("cpu", "model", "model"),
        ("portable", "auto", "model"),
        ("portable", "plan", "plan"),
    ],
)
def test_nodes_of_a_file_for_a_target_have_no_notes_by_default(
    samples: Path,
    tmp_path: Path,
    target: TargetChoice,
    notes: NotesChoice,
    written: NotesChoice,
) -> None:
    original, out = samples / "branchy_cnn.onnx", tmp_path / "net.onnx"
    api.optimize(original, Settings(target=target, notes=notes), out=out, check=None)
    has_notes = any(node.metadata_props for node in load_model(out).graph.node)
    assert has_notes == (written == "model")
    assert api.validate(out, original, Check(provider="cpu")).passed


def test_an_earlier_output_keeps_its_weights_where_a_new_one_fails(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    out = tmp_path / "net.onnx"
    api.optimize(samples / "branchy_cnn.onnx", CPU, out=out, check=None)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.setattr(rewriting.RewrittenFiles, "finish", broken)
    with pytest.raises(KeyboardInterrupt):
        api.optimize(samples / "train_mlp.onnx", CPU, out=out, check=None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_better_of_both_graphs_is_proved_and_measured(
    samples: Path, tmp_path: Path
) -> None:
    check = Check(provider="cpu")
    done = api.optimize(
        samples / "branchy_cnn.onnx", CPU, out=tmp_path / "net.onnx", check=check
    )
    assert done.passed
    report = done.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert report.runtime is not None
    before, after = (
        report.runtime.observed["original"],
        report.runtime.observed["optimized"],
    )
    assert (after.first_run_peak or 0) <= (before.first_run_peak or 0)
    assert (after.held or 0) < (before.held or 0)


UNREAD = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[1,1,64,64] x) => (double[4,1,64,64] y)
    { a = Exp(x)  u, i = MaxPool<kernel_shape = [1, 1]>(a)  c = Cast<to = 11>(i)
      b = Cast<to = 11>(a)  d = Concat<axis = 0>(b, c, b, c)  y = Neg(d) }"""


def test_what_nobody_reads_is_read_so_that_the_runtime_frees_it(tmp_path: Path) -> None:
    model = tmp_path / "unread.onnx"
    model.write_bytes(onnx.parser.parse_model(UNREAD).SerializeToString())
    check = Check(provider="cpu")
    done = api.optimize(model, CPU, out=tmp_path / "net.onnx", check=check)
    assert done.passed
    written = load_model(tmp_path / "net.onnx")
    (reader,) = [node for node in written.graph.node if node.op_type == "Shape"]
    assert list(reader.input) == ["u"]
    report = done.plan.report
    assert any("nobody reads" in warning for warning in report.warnings)
    assert report.runtime is not None
    before, after = (
        report.runtime.observed["original"],
        report.runtime.observed["optimized"],
    )
    unread = 4 * 64 * 64
    assert (after.first_run_peak or 0) <= (before.first_run_peak or 0) - unread + 256


PYRAMID = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[n,24,h,w] x) => (float[n,24,h2,w2] y)
    { roi = Constant<value = float[0] {}>()
      scales = Constant<value = float[4] {1, 1, 2, 2}>()
      a = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, kernel)
      b = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a, kernel)
      c = Resize<mode = "nearest">(b, roi, scales)  d = Add(a, c)
      y = Conv<pads = [1, 1, 1, 1]>(d, kernel) }"""
"""ONNX Runtime pads 24 channels to whole blocks of its layout. The number of channels is known to its
inference only, and height and width after the Resize to memplan's only."""


def test_a_plan_has_totals_if_two_inferences_know_parts_of_a_shape(tmp_path: Path) -> None:
    parsed = onnx.parser.parse_model(PYRAMID)
    kernel = np.random.default_rng(0).standard_normal((24, 24, 3, 3), dtype=np.float32)
    parsed.graph.initializer.append(numpy_helper.from_array(kernel, "kernel"))
    model = tmp_path / "pyramid.onnx"
    model.write_bytes(parsed.SerializeToString())
    settings = replace(CPU, dims={"n": 1, "h": 64, "w": 64})
    check = Check(provider="cpu", depth="outputs")
    done = api.optimize(model, settings, out=tmp_path / "net.onnx", check=check)
    assert done.passed
    assert any("reorder" in tensor.name for tensor in done.plan.tensors)
    assert done.plan.report.coverage == 1.0
    assert done.plan.report.memory.total is not None


def test_a_dim_that_was_bound_is_bound_in_the_runtimes_graph_too(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[batch,64] x) => (float[batch,64] y)
        { s = Sigmoid(x)  m = Mul(x, s)  n = Exp(m)  y = Neg(n) }"""
    model = tmp_path / "free.onnx"
    model.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    asked = replace(CPU, dims={"batch": 4})
    done = api.optimize(model, asked, out=tmp_path / "net.onnx", check=None)
    assert "QuickGelu" in {
        node.op_type for node in load_model(tmp_path / "net.onnx").graph.node
    }
    assert {arena.unit for arena in done.plan.arenas} == {"1"}


def packed(path: Path) -> bool:
    entries = [e.key for t in load_model(path).graph.initializer for e in t.external_data]
    return any(key.startswith("prepacked") for key in entries)


def one_matmul(path: Path) -> Path:
    drawn = np.random.default_rng(0).standard_normal((64, 96), dtype=np.float32)
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g (float[8,64] x) => (float[8,96] y) { p = MatMul(x, w)  y = Exp(p) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(drawn, "w"))
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_are_packed_in_the_file_and_not_in_the_arena(tmp_path: Path) -> None:
    out = tmp_path / "net.onnx"
    model = one_matmul(tmp_path / "model.onnx")
    done = api.optimize(model, CPU, out=out, check=Check(provider="cpu"))
    assert done.passed
    assert packed(out)
    assert done.plan.report.runtime is not None
    seen = done.plan.report.runtime.observed
    assert (seen["original"].weights or 0) >= 64 * 96 * 4
    assert (seen["optimized"].weights or 0) == 0


def test_weights_are_not_packed_in_the_file_where_the_runtime_fails_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, tried = compare.run_written, []

    def crashes(baseline: Baseline, path: Path, *how: Any, **more: Any) -> WrittenRun:  # noqa: ANN401
        tried.append(packed(path))
        if not tried[-1]:
            return real(baseline, path, *how, **more)
        note = "the rewritten model does not run (crash): SIGSEGV"
        verdict = Validation("failed", baseline.provider, notes=(note,))
        record = RunRecord(baseline.record.spec, worker.Outcome("crash", {}, "SIGSEGV"))
        return WrittenRun(RuntimeSettings(), verdict, record)

    monkeypatch.setattr(confirm, "run_written", crashes)
    model, out = one_matmul(tmp_path / "model.onnx"), tmp_path / "net.onnx"
    done = api.optimize(model, CPU, out=out, check=Check(provider="cpu"))
    assert tried == [True, False]
    assert done.passed
    assert not packed(out)


def test_a_target_of_a_model_of_before_version_4_holds(tmp_path: Path) -> None:
    def branch(name: str) -> str:
        made = f"{name} () => (float[4,256] {name}y) <float[256,256] {name}w> "
        return f"{made} {{ {name}y = MatMul(x, {name}w) }}"

    text = f"""<ir_version: 4, opset_import: ["" : 9]>
    g (bool go, float[4,256] x) => (float[4,256] y) {{
        z = If (go) <then_branch = {branch("t")}, else_branch = {branch("e")}>
        y = Relu(z)
    }}"""
    model, draw = onnx.parser.parse_model(text), np.random.default_rng(0)
    model.ir_version = 3
    for attribute in model.graph.node[0].attribute:
        values = draw.standard_normal((256, 256)).astype(np.float32)
        weight = numpy_helper.from_array(values, f"{attribute.name[0]}w")
        node = onnx.helper.make_node("Constant", [], [weight.name], value=weight)
        del attribute.g.initializer[:]
        attribute.g.node.insert(0, node)
    path, out = tmp_path / "old.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    assert api.optimize(path, CPU, out=out, check=Check(provider="cpu")).passed
    found = memplan("validate", out, "--original", path)
    assert found.exit_code == 0, found.output


def test_the_model_and_its_target_may_have_one_name(samples: Path, tmp_path: Path) -> None:
    """The data of the dump and of the model itself would have one name too."""
    model = tmp_path / "in" / "net.onnx"
    out = tmp_path / "out" / "net.onnx"
    model.parent.mkdir()
    out.parent.mkdir()
    loaded = onnx.load(samples / "branchy_cnn.onnx")
    onnx.save(
        loaded, model, save_as_external_data=True, location="net.onnx.data", size_threshold=64
    )
    done = api.optimize(model, CPU, out=out, check=Check(provider="cpu"))
    assert done.passed
    assert done.model == out


def test_all_graphs_are_held_against_one_run_and_only_the_winner_runs(
    samples: Path, tmp_path: Path, started_jobs: list[str]
) -> None:
    model = samples / "branchy_cnn.onnx"
    api.optimize(model, CPU, out=tmp_path / "net.onnx", check=Check(provider="cpu"))
    assert sorted(started_jobs) == ["measured run", "measured run", "write_offline_graphs"]


def test_a_provider_that_is_not_there_is_an_error(samples: Path, tmp_path: Path) -> None:
    if probe_provider("CUDAExecutionProvider").works:
        pytest.skip("this machine has CUDA")
    with pytest.raises(RuntimeUnavailableError, match="CUDA"):
        api.optimize(
            samples / "branchy_cnn.onnx",
            replace(CPU, target="cuda"),
            out=tmp_path / "net.onnx",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("check", [None, Check(provider="cpu")])
def test_a_budget_that_cannot_be_met_writes_nothing_for_any_target(
    target: TargetChoice, check: Check | None, samples: Path, tmp_path: Path
) -> None:
    asked = Settings(target=target, recompute="auto", budget=1000)
    out = tmp_path / "net.onnx"
    done = api.optimize(samples / "train_mlp.onnx", asked, out=out, check=check)
    assert not done.passed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["vit_ts", "gpt_cache_dynamo"])
def test_a_target_with_free_dims_is_held_against_its_model_and_run_as_it_stands(
    name: str, tmp_path: Path, shared_models: Path
) -> None:
    assert shared_models
    (tmp_path / "messy").mkdir()
    filled(f"messy/{name}", tmp_path)
    model, out = tmp_path / "messy" / f"{name}.onnx", tmp_path / "out.onnx"
    assert api.optimize(model, Settings(target="cpu"), out=out).passed
    found = api.validate(out, model).validation
    assert (found.status, found.bit_identical) == ("passed", True), found.notes
