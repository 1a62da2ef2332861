"""The commands that run a model: settings, simulate, validate with its extras."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import onnx
import pytest

from memplan_cli.planning.plan_file import read_plan
from memplan_cli.runtime.profile import in_place
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path


def test_settings_are_python_that_runs_and_json_with_every_scope(samples: Path) -> None:
    model = samples / "branchy_cnn.onnx"
    snippet = memplan("settings", model)
    assert snippet.exit_code == 0
    compile(snippet.stdout, "settings.py", "exec")
    found = json.loads(memplan("settings", model, "--format", "json").stdout)
    assert set(found["settings"]) == {
        "session",
        "session_config",
        "arena",
        "provider",
        "run_config",
    }
    assert found["observed"] is None, "nothing was measured, so nothing is said"


def test_simulated_allocators_need_at_least_what_is_live(samples: Path) -> None:
    done = memplan("simulate", samples / "branchy_cnn.onnx", "--format", "json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["planned"] > 0
    assert {run["allocator"] for run in found["simulations"]} == {
        "bfc",
        "best-fit",
        "bfc-exact",
        "ort",
    }
    assert all(run["held"] >= run["live"] > 0 for run in found["simulations"][:3])


def test_validate_replays_and_measures_what_optimize_wrote(
    samples: Path, tmp_path: Path
) -> None:
    model, out = samples / "train_mlp.onnx", tmp_path / "net.onnx"
    settings = tmp_path / "settings.py"
    written = memplan("optimize", model, "-o", out, "--settings-out", settings, "--quiet")
    assert written.exit_code == 0
    compile(settings.read_text(), "settings.py", "exec")
    assert json.loads(settings.with_suffix(".json").read_text())["session"]
    words = ("validate", out, "--original", model, "--replay", "--measure")
    done = memplan(*words, "--format", "json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert found["replay"] == "passed"
    assert found["runtime"]["observed"]["original"]["first_run_peak"] > 0


@pytest.mark.parametrize("notes", ["model", "plan"])
def test_validate_believes_a_model_with_notes_and_one_without(
    samples: Path, tmp_path: Path, notes: str
) -> None:
    original, out = samples / "train_mlp.onnx", tmp_path / "out.onnx"
    memplan("optimize", original, "-o", out, "--notes", notes, "--no-validate", "--quiet")
    said = [entry.key for node in onnx.load(out).graph.node for entry in node.metadata_props]
    assert ("pkg.memplan.step" in said) is (notes == "model")
    done = memplan("validate", out, "--original", original)
    assert done.exit_code == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="what a process takes is Linux's to say")
@pytest.mark.parametrize("notes", ["model", "plan"])
def test_notes_that_make_a_session_larger_than_the_original_are_told(
    tmp_path: Path, notes: str
) -> None:
    """2,000 nodes of eight elements: any order needs the same, and notes take megabytes."""
    kinds = itertools.islice(itertools.cycle(("Sin", "Tanh", "Neg")), 2_000)
    nodes = [
        onnx.helper.make_node(kind, [f"v{at}"], [f"v{at + 1}"])
        for at, kind in enumerate(kinds)
    ]
    ends = (onnx.helper.make_tensor_value_info(f"v{at}", 1, [8]) for at in (0, 2_000))
    given, made = ([end] for end in ends)
    opset = [onnx.helper.make_opsetid("", 17)]
    graph = onnx.helper.make_graph(nodes, "chain", given, made)
    model = tmp_path / "chain.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), model)
    done = memplan("optimize", model, "-o", tmp_path / "o.onnx", "--notes", notes)
    assert done.exit_code == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert ("--notes plan omits" in said) is (notes == "model")


def test_notes_that_are_nowhere_are_a_usage_error(samples: Path, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "o.onnx", "--notes", "nowhere")
    done = memplan("optimize", samples / "train_mlp.onnx", *words)
    assert done.exit_code == 2
    assert "'model', 'plan'" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_plan_of_another_model_is_not_replayed(samples: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.onnx", tmp_path / "other.onnx"
    for out, level in ((one, 2), (other, 1)):
        model = samples / "train_mlp.onnx"
        memplan("optimize", model, "-o", out, "--level", level, "--no-validate", "--quiet")
    other.with_suffix(".json").replace(one.with_suffix(".json"))
    done = memplan("validate", one, "--original", samples / "train_mlp.onnx", "--replay")
    assert done.exit_code == 2
    assert "belongs to another model" in done.stderr


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({}, "do not say the values of its dims"),
        ({"dims": {"batch": "8"}}, "expected a whole number, not '8'"),
        ({"dims": [8]}, "expected a table of keys ({name: value}), not a list"),
    ],
)
def test_a_plan_that_does_not_say_its_dims_is_refused(
    samples: Path, tmp_path: Path, stated: dict[str, object], reason: str
) -> None:
    original, out = samples / "train_mlp.onnx", tmp_path / "out.onnx"
    memplan("optimize", original, "-o", out, "--no-validate", "--quiet")
    plan = replace(read_plan(out.with_suffix(".json")), settings=stated)
    out.with_suffix(".json").write_text(plan.dumps(), encoding="utf-8")
    model = onnx.load(out)
    (entry,) = [e for e in model.metadata_props if e.key == "pkg.memplan.plan"]
    entry.value = f"digest={plan.digest}"
    onnx.save(model, out)
    done = memplan("validate", out, "--original", original, "--replay")
    assert done.exit_code == 2
    assert reason in done.stderr


def test_settings_out_without_a_run_is_a_usage_error(samples: Path, tmp_path: Path) -> None:
    words = ("--no-validate", "--settings-out", tmp_path / "s.py")
    done = memplan("optimize", samples / "train_mlp.onnx", "-o", tmp_path / "o.onnx", *words)
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_validate_says_what_is_missing_or_out_of_range(samples: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.memplan.onnx"
    alone.write_bytes((samples / "train_mlp.onnx").read_bytes())
    for words, said in (
        ((alone,), "name that model with --original"),
        ((tmp_path / "none.onnx",), "there is no file"),
        ((tmp_path / "none.memplan.onnx",), "there is no file"),
        ((samples / "train_mlp.onnx",), "does not say which model it was made from"),
        ((samples / "train_mlp.onnx", "--rtol", "-1"), "-1.0 is not in the range"),
        ((samples / "train_mlp.onnx", "--atol", "-1"), "-1.0 is not in the range"),
    ):
        done = memplan("validate", *words)
        assert done.exit_code == 2
        assert said in done.stderr
        assert done.stdout == ""


def test_predictions_for_another_runtime_than_the_one_probed_are_doubted(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "runtime_version", lambda: "9.9.9")
    out = tmp_path / "net.onnx"
    assert memplan("optimize", samples / "train_mlp.onnx", "-o", out, "--quiet").exit_code == 0
    warnings = read_plan(out.with_suffix(".json")).report.warnings
    assert any("installed is 9.9.9" in warning for warning in warnings)


def test_settings_for_a_dim_that_is_none_are_refused(samples: Path) -> None:
    done = memplan("settings", samples / "dynamic_batch.onnx", "--dim", "batsch=8")
    assert done.exit_code == 2
    assert (
        "the model has no dim 'batsch': its dims are batch\nHint: did you mean 'batch'?"
        in done.stderr
    )
