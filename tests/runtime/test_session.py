from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from builders import parse
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import CPU, CUDA, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.onnx_io.runs.prepared_models import smallest_model
from memplan_cli.reporting.commands.doctor import DOCTOR
from memplan_cli.runtime.doctor import diagnose, find_problems
from memplan_cli.runtime.workers import session
from memplan_cli.runtime.workers.session import (
    ProviderProbe,
    make_session,
    probe_provider,
    resolve_provider,
    session_options,
)

if TYPE_CHECKING:
    from pathlib import Path


def no_cuda(provider: str) -> ProviderProbe:
    return ProviderProbe(works=provider == CPU, reason="no driver")


def test_auto_is_cpu_where_no_session_gets_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_provider", no_cuda)
    assert resolve_provider("auto") == CPU


def test_auto_is_cuda_where_a_session_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_provider", lambda _: ProviderProbe(works=True))
    assert resolve_provider("auto") == CUDA


def test_cuda_is_refused_where_no_session_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_provider", no_cuda)
    with pytest.raises(RuntimeUnavailableError, match="no driver"):
        resolve_provider("cuda")


def test_the_list_of_available_providers_is_not_believed() -> None:
    import onnxruntime as ort

    if probe_provider(CUDA).works:
        pytest.skip("a session really gets CUDA here")
    if CUDA not in ort.get_available_providers():
        pytest.skip("the CPU wheel does not list CUDA")
    assert resolve_provider("auto") == CPU


def test_an_unknown_provider_is_a_usage_error() -> None:
    with pytest.raises(SettingsError, match="'gpu'"):
        resolve_provider("gpu")


def test_settings_go_to_their_own_scope() -> None:
    import onnxruntime as ort

    settings = RuntimeSettings(
        session={
            "execution_order": "PRIORITY_BASED",
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "enable_mem_pattern": False,
        },
        session_config={"session.disable_prepacking": "1"},
    )
    options = session_options(settings)
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert options.enable_mem_pattern is False
    assert options.get_session_config_entry("session.disable_prepacking") == "1"


def test_a_session_is_on_the_provider_asked_for() -> None:
    made = make_session(smallest_model(), RuntimeSettings(), CPU)
    assert made.get_providers() == [CPU]


def test_settings_survive_json() -> None:
    settings = RuntimeSettings(
        session={"enable_mem_reuse": False},
        session_config={"a": "1"},
        arena={"arena_extend_strategy": "kSameAsRequested"},
        run_config={"b": "2"},
    )
    assert from_json(RuntimeSettings, to_json(settings), "it") == settings


def test_the_doctor_sees_that_cpu_works() -> None:
    diagnosis = diagnose()
    assert diagnosis.providers[CPU].works
    assert diagnosis.versions["onnx"]


def test_the_doctor_finds_that_the_weights_of_a_file_are_missing(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    model = parse("g (float[4] x) => (float[4] y) { y = Add(x, w) }")
    model.graph.initializer.append(weight)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert not diagnose(path).problems
    (tmp_path / "m.data").unlink()
    (problem,) = diagnose(path).problems
    assert problem.startswith("m.onnx: its weights are missing: there is no file ")


def test_the_doctor_says_how_large_a_page_is() -> None:
    diagnosis = diagnose()
    assert diagnosis.page_bytes == os.sysconf("SC_PAGE_SIZE")
    line = (
        f"Memory pages have {diagnosis.page_bytes:,} bytes. Files are mapped at multiples of"
    )
    assert line in DOCTOR["text"](diagnosis)


def test_two_wheels_in_one_folder_are_a_problem_with_a_way_out() -> None:
    cpu = ProviderProbe(works=True)
    (problem,) = find_problems({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.1"}, cpu)
    assert "pip uninstall onnxruntime onnxruntime-gpu" in problem
    assert find_problems({"onnxruntime-gpu": "1.31.1"}, cpu) == ()


def test_no_wheel_at_all_is_a_problem() -> None:
    (problem,) = find_problems({}, ProviderProbe(works=False))
    assert "pip install 'memplan[cpu]'" in problem
