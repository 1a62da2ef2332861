"""The pass in workflows of the real Olive; skipped where that is not installed.

`make test-integrations` makes an environment that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from builders import parse
from memplan_cli.core.results.observations import RuntimeSettings

os.environ["OLIVE_DISABLE_TELEMETRY"] = "1"

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("olive", reason="olive-ai is not installed: make test-integrations")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of Olive and of what it imports
]


@pytest.fixture(scope="module")
def package() -> dict[str, Any]:
    """The package configuration as its command prints it."""
    command = [sys.executable, "-m", "memplan_cli.integrations.olive"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def run(model: Path, package: dict[str, Any], *passes: dict[str, Any]) -> Path:
    """Run a workflow of the passes; return the folder that Olive wrote."""
    from olive.workflows import run as olive_run

    out = model.parent / "out"
    config = {
        "input_model": {"type": "ONNXModel", "model_path": str(model)},
        "passes": {f"p{at}": one for at, one in enumerate(passes)},
        "output_dir": str(out),
        "cache_dir": str(model.parent / "cache"),
        "log_severity_level": 3,
    }
    olive_run(config, package_config=package)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with enough in memory to gain, and a weight that leaves its file."""
    graph = parse("""
    g (float[1, 1024] x) => (float[1, 1024] y) {
        a = MatMul(x, w)
        b = Relu(a)
        c = Relu(b)
        d = Relu(c)
        y = Add(d, x)
    }""")
    weight = np.ones((1024, 1024), np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(graph, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def entries(path: Path) -> dict[str, str]:
    found = onnx.load(path, load_external_data=False).metadata_props
    return {entry.key: entry.value for entry in found}


def test_the_pass_is_in_the_package_configuration_beside_olives_own(
    package: dict[str, Any],
) -> None:
    passes = package["passes"]
    assert (
        passes["MemplanOptimize"]["module_path"]
        == "memplan_cli.integrations.olive.MemplanOptimize"
    )
    assert "OnnxPeepholeOptimizer" in passes


def test_a_workflow_writes_a_model_with_its_plan_and_its_weights(
    model: Path, package: dict[str, Any]
) -> None:
    import memplan

    out = run(model, package, {"type": "MemplanOptimize", "level": 1})
    assert "level=1" in entries(out / "model.onnx")["pkg.memplan.plan"]
    assert json.loads((out / "model.json").read_text())["report"]["level"] == 1
    assert memplan.validate(out / "model.onnx", original=model).validation.passed
    session = memplan.load(out / "model.onnx")
    x = np.ones((1, 1024), np.float32)
    assert (session.run(None, {"x": x})[0] == 1025).all()


def test_the_pass_comes_after_passes_of_olive(model: Path, package: dict[str, Any]) -> None:
    first = {"type": "OnnxPeepholeOptimizer", "onnxoptimizer_optimize": False}
    out = run(model, package, first, {"type": "MemplanOptimize", "validation": "outputs"})
    assert "pkg.memplan.plan" in entries(out / "model.onnx")
    config = json.loads((out / "model_config.json").read_text())["config"]
    assert any(
        name.endswith("model.json") for name in config["model_attributes"]["additional_files"]
    )


def test_settings_of_the_pass_are_memplans_own(model: Path, package: dict[str, Any]) -> None:
    (model.parent / "edge.yaml").write_text("level: 0\nmem_param:\n  exclude_blob: [b]\n")
    own = {"type": "MemplanOptimize", "settings_file": str(model.parent / "edge.yaml")}
    out = run(model, package, {**own, "validation": "none", "exclude": ["c"]})
    plan = json.loads((out / "model.json").read_text())
    assert plan["report"]["level"] == 0
    pinned = {one["name"] for one in plan["tensors"] if one["pinned"] is not None}
    assert pinned == {"b", "c"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"level": 7}, "level"),
        ({"dims": {"bach": 2}}, "bach"),
        ({"chunk": "auto", "budget": "1"}, "memplan"),
        ({"validation": "perhaps"}, "expected outputs, full or none"),
    ],
)
def test_what_memplan_refuses_ends_the_workflow_with_its_message(
    model: Path, package: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        run(model, package, {"type": "MemplanOptimize", **wrong})
    assert not (model.parent / "out" / "model.onnx").exists()


def test_a_parameter_that_there_is_not_is_refused(
    model: Path, package: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="levle"):
        run(model, package, {"type": "MemplanOptimize", "levle": 1})


def test_olive_is_told_what_its_sessions_can_be_set_to() -> None:
    from memplan_cli.integrations.olive import session_options

    settings = RuntimeSettings(
        session={"graph_optimization_level": "ORT_DISABLE_ALL", "enable_mem_pattern": False},
        session_config={"session.disable_prepacking": "1"},
    )
    assert session_options(settings) == {
        "graph_optimization_level": 0,
        "extra_session_config": {"session.disable_prepacking": "1"},
    }
    assert session_options(RuntimeSettings()) == {}
