"""`load` gives the session that a file was planned for, in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import memplan
import memplan_cli
from builders import parse
from memplan_cli import Check, api
from memplan_cli.errors import ModelError
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.loading.settings import SETTINGS
from memplan_cli.onnx_io.metadata import ORT_CONFIG
from memplan_cli.onnx_io.settings_metadata import recorded_settings
from memplan_cli.runtime.doctor import compare_with_environment
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

RUN = """
import json, sys
import numpy as np
import memplan
session = memplan.load(sys.argv[1], **json.loads(sys.argv[2]))
import onnxruntime as ort
assert isinstance(session, ort.InferenceSession)
feed = {
    i.name: np.ones([d if isinstance(d, int) else 1 for d in i.shape], np.float32)
    for i in session.get_inputs()
}
outputs = session.run(None, feed)
options = session.get_session_options()
print(json.dumps({
    "order": str(options.execution_order),
    "level": str(options.graph_optimization_level),
    "pattern": options.enable_mem_pattern,
    "sum": float(sum(np.abs(o.astype(np.float64)).sum() for o in outputs)),
}))
"""


def loaded(model: Path, **kwargs: object) -> dict[str, object]:
    """Return what a process of its own says of the session: an arena is the process's."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(model), json.dumps(kwargs)],
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout), warnings=done.stderr)


@pytest.fixture(scope="module")
def written(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("load") / "out.onnx"
    assert api.optimize(samples / "branchy_cnn.onnx", out=out).passed
    return out


def test_memplan_is_memplan_cli() -> None:
    assert memplan.load is memplan_cli.load
    assert all(
        getattr(memplan, name) is getattr(memplan_cli, name) for name in memplan_cli.__all__
    )


def test_a_written_file_is_loaded_as_its_report_says(written: Path, samples: Path) -> None:
    recorded = recorded_settings(scanned_metadata(written))
    report = json.loads(written.with_suffix(".json").read_text())["report"]
    assert recorded is not None
    settings = report["runtime"]["settings"]
    assert dict(recorded.settings.session) == settings["session"]
    found = loaded(written)
    assert str(found["order"]).endswith(str(settings["session"]["execution_order"]))
    assert found["pattern"] is settings["session"]["enable_mem_pattern"]
    assert found["sum"] == loaded(samples / "branchy_cnn.onnx")["sum"]
    assert found["warnings"] == ""


def test_a_file_of_somebody_else_gets_the_defaults(samples: Path) -> None:
    found = loaded(samples / "branchy_cnn.onnx")
    elsewhere = loaded(
        samples / "branchy_cnn.onnx",
        providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    assert "its arena is not used" not in str(elsewhere["warnings"]), "it has none"
    assert str(found["level"]).endswith("ORT_ENABLE_ALL")
    assert found["pattern"] is True


def test_bound_values_are_in_host_memory_for_any_provider_but_cuda(tmp_path: Path) -> None:
    model = tmp_path / "exp.onnx"
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Exp(x) }"), model)
    openvino = memplan.load(model)
    openvino.get_providers = lambda: ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    binding = openvino.bound({"x": np.zeros(2, np.float32)})
    openvino.run_with_iobinding(binding)
    assert binding.copy_outputs_to_cpu()[0].tolist() == [1, 1]


def test_what_optimization_would_undo_is_run_as_written_also_where_nothing_was_run(
    tmp_path: Path,
) -> None:
    model, out = tmp_path / "step.onnx", tmp_path / "out.onnx"
    onnx.save(
        parse("g (float[4] w, float[4] d) => (float[4] new_w) { new_w = Sub(w, d) }"), model
    )
    settings = Settings(donate={"w": "new_w"})
    done = api.optimize(model, settings, out=out, check=None)
    assert done.plan.report.donated.pairs
    recorded = recorded_settings(scanned_metadata(out))
    assert recorded is not None
    assert recorded.settings.session["graph_optimization_level"] == "ORT_DISABLE_ALL"
    assert recorded.settings.io_binding == {"new_w": "w"}


PLAIN = """
import json, sys
import onnxruntime as ort
options = ort.SessionOptions()
options.enable_mem_pattern = False
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
found = session.get_session_options()
print(json.dumps([str(found.graph_optimization_level), found.enable_mem_pattern]))
"""


def opened_plainly(model: Path, variable: str) -> list[object]:
    """Return what a session of the runtime's own says, under a value of its variable."""
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(model)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ORT_LOAD_CONFIG_FROM_MODEL": variable},
    )
    return list(json.loads(done.stdout))


def test_the_runtime_reads_what_it_can_from_the_file_itself(tmp_path: Path) -> None:
    model, out = tmp_path / "step.onnx", tmp_path / "out.onnx"
    onnx.save(
        parse("g (float[4] w, float[4] d) => (float[4] new_w) { new_w = Sub(w, d) }"), model
    )
    settings = Settings(donate={"w": "new_w"})
    api.optimize(model, settings, out=out, check=None)
    disabled, enabled = (
        f"GraphOptimizationLevel.ORT_{w}" for w in ("DISABLE_ALL", "ENABLE_ALL")
    )
    assert opened_plainly(out, "0") == [enabled, False]
    # The runtime takes the file's options instead of its caller's, and not besides.
    assert opened_plainly(out, "1") == [disabled, True]
    assert opened_plainly(model, "1") == [enabled, True]
    api.optimize(out, out=tmp_path / "again.onnx", check=None)
    assert ORT_CONFIG not in scanned_metadata(tmp_path / "again.onnx")


def test_load_takes_all_of_the_settings_also_where_the_runtime_reads_some(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(written)
    model.metadata_props.add(key=ORT_CONFIG, value='{"session_options":{}}')
    onnx.save(model, tmp_path / "other.onnx")
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    assert loaded(tmp_path / "other.onnx") == loaded(written)
    assert loaded(written)["pattern"] is False


def test_a_second_optimize_leaves_no_settings_of_the_first(
    written: Path, tmp_path: Path
) -> None:
    out, edited = tmp_path / "again.onnx", tmp_path / "edited.onnx"
    option = b'"max_dead_bytes_per_chunk":'
    edited.write_bytes(written.read_bytes().replace(option + b"1", option + b"2"))
    first = recorded_settings(scanned_metadata(edited))
    runtime = api.optimize(edited, out=out, check=None).plan.report.runtime
    entries = [entry for entry in onnx.load(out).metadata_props if entry.key == SETTINGS]
    recorded = recorded_settings(scanned_metadata(out))
    assert len(entries) == 1
    assert recorded is not None
    assert runtime is not None
    assert recorded.settings == runtime.settings, "predicted for this file"
    assert recorded != first


def test_settings_that_memplan_never_writes_are_not_applied(
    written: Path, tmp_path: Path
) -> None:
    evil = tmp_path / "evil.onnx"
    text = written.read_bytes().replace(b"enable_mem_pattern", b"profile_file_prefi")
    evil.write_bytes(text)
    with pytest.raises(ModelError, match="never does"):
        memplan_cli.load(evil)


def test_the_doctor_says_what_of_a_file_is_lost_with_another_runtime(
    samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    assert api.optimize(samples / "branchy_cnn.onnx", Settings(target="cpu"), out=out).passed
    facts, lost = compare_with_environment(out, {"onnxruntime": "0.1"})
    assert facts["settings"] == "in the file"
    (line,) = lost
    assert "here is onnxruntime 0.1" in line
    here = memplan_cli.doctor(out)
    assert not any(out.name in problem for problem in here.problems)


@pytest.fixture(scope="module")
def written_for_cpu(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cpu") / "out.onnx"
    assert api.optimize(samples / "tied_head.onnx", Settings(target="cpu"), out=out).passed
    return out


def test_a_file_made_with_another_runtime_loads_with_a_warning_that_names_both(
    written_for_cpu: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    made_with = f"onnxruntime {ort.__version__} ".encode()
    memplan_cli.load(written_for_cpu)
    # Objects of other tests, collected now, may give warnings of pytest or Python.
    assert not [warning for warning in recwarn if "made with" in str(warning.message)]
    shutil.copy(f"{written_for_cpu}.data", tmp_path)
    older = tmp_path / "out.onnx"
    # The same length, so that the protobuf stays valid.
    length = len(made_with) - len("onnxruntime  ")
    older.write_bytes(
        written_for_cpu.read_bytes().replace(
            made_with, f"onnxruntime {'0' * length} ".encode()
        )
    )
    expected = f"made with onnxruntime {'0' * length} .* onnxruntime {ort.__version__}"
    with pytest.warns(UserWarning, match=expected) as warned:
        memplan_cli.load(older)
    (shown,) = [warning for warning in warned if "made with" in str(warning.message)]
    assert shown.filename == __file__


def test_a_file_moved_without_its_data_says_which_file_is_missing(
    written_for_cpu: Path, tmp_path: Path
) -> None:
    shutil.copy(written_for_cpu, tmp_path)
    with pytest.raises(ModelError, match=r"there is no file .*out\.onnx\.data") as caught:
        memplan_cli.load(tmp_path / "out.onnx")
    assert "out.onnx.data too" in caught.value.hint
    assert caught.value.__suppress_context__  # no traceback of ONNX Runtime


def test_a_mistyped_file_is_one_message_with_the_nearest_name(samples: Path) -> None:
    for function in (memplan_cli.load, memplan_cli.plan):
        with pytest.raises(ModelError, match=r"there is no file .*branchy_cn\.onnx") as caught:
            function(samples / "branchy_cn.onnx")
        assert caught.value.hint == f"did you mean {samples / 'branchy_cnn.onnx'}?"
        assert caught.value.__suppress_context__


AGAIN = """g (float[8,8] x, float[8,64] k, float[64,64] m, float[64,8] l) => (float[8,8] z) {
    a = Exp(x) b = MatMul(a, k) c = MatMul(b, m) d = MatMul(c, l) e = Add(d, a) z = Neg(e) }"""


@pytest.mark.parametrize("check", [None, Check(provider="cpu")])
def test_settings_of_a_recomputed_file_leave_optimization_off(
    tmp_path: Path, check: Check | None
) -> None:
    model = tmp_path / "again.onnx"
    onnx.save(parse(AGAIN), model)
    asked = Settings(recompute="auto", budget=0.95)
    done = api.optimize(model, asked, check=None)
    assert done.model is not None
    assert done.plan.report.recompute.nodes
    found = api.settings(done.model, Settings(), check)
    assert found.settings.session["graph_optimization_level"] == "ORT_DISABLE_ALL"
    assert found.settings.session["execution_order"] == "PRIORITY_BASED"
    plain = api.settings(model, Settings(), None)
    assert "graph_optimization_level" not in plain.settings.session
