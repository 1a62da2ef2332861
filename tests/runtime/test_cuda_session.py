"""What a session on CUDA is created with, without a GPU: calls of ONNX Runtime are recorded, not made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.external_data_helper import set_external_data

from builders import parse
from memplan_cli.core.results.observations import CPU, CUDA, Peaks, RuntimeSettings
from memplan_cli.errors import ModelError
from memplan_cli.loading import session as loading_session
from memplan_cli.loading.session import load_session
from memplan_cli.onnx_io.settings_metadata import RecordedSettings, settings_entry
from memplan_cli.runtime.settings_search.predicted import SettingsChoice, released_between_runs
from memplan_cli.runtime.simulate.regions import EXACT, one_region, release_entries
from memplan_cli.runtime.workers import session

if TYPE_CHECKING:
    from pathlib import Path

Providers = list[tuple[str, dict[str, str]]]

ARENA = one_region(3 << 20)


@dataclass
class Calls:
    """The arenas that were registered, and what sessions were created with."""

    arenas: list[tuple[str, object]] = field(default_factory=list)
    options: list[ort.SessionOptions] = field(default_factory=list)
    providers: list[Providers] = field(default_factory=list)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record arenas and sessions. A session of any provider is one of the CPU that names the provider."""
    recorded = Calls()
    create = ort.InferenceSession.__init__

    def init(
        self: ort.InferenceSession,
        model: object,
        options: object,
        *,
        providers: Providers,
        enable_fallback: int,
    ) -> None:
        assert enable_fallback == 0
        recorded.options.append(options)
        recorded.providers.append(providers)
        plain = ort.SessionOptions()
        create(self, model, plain, providers=[CPU])
        self.get_providers = lambda: [providers[0][0], CPU]

    def register(provider: str, _memory: object, _options: object, arena: object) -> None:
        recorded.arenas.append((provider, arena))

    monkeypatch.setattr(ort.InferenceSession, "__init__", init)
    monkeypatch.setattr(ort, "create_and_register_allocator_v2", register)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(loading_session, "_registered_arenas", {})
    return recorded


def written(tmp_path: Path, settings: RuntimeSettings) -> Path:
    """Return a model with settings for CUDA in its metadata."""
    path = tmp_path / "exp.onnx"
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Exp(x) }"), path)
    path.write_bytes(path.read_bytes() + settings_entry(RecordedSettings(CUDA, settings)))
    return path


def uses_registered_arena(options: ort.SessionOptions) -> bool:
    return bool(options.get_session_config_entry("session.use_env_allocators") == "1")


def test_a_worker_registers_the_arena_of_cuda_and_gives_its_keys_to_no_provider(
    calls: Calls, tmp_path: Path
) -> None:
    settings = RuntimeSettings(arena=ARENA, provider={"use_tf32": False})
    session.make_session(written(tmp_path, settings), settings, CUDA)
    ((provider, arena),) = calls.arenas
    assert (provider, type(arena)) == (CUDA, ort.OrtArenaCfg)
    assert calls.providers == [[(CUDA, {"use_tf32": "0"})]]
    assert uses_registered_arena(calls.options[0])


def test_a_file_for_cuda_is_loaded_with_an_arena_of_the_process(
    calls: Calls, tmp_path: Path
) -> None:
    path = written(tmp_path, RuntimeSettings(arena=ARENA))
    load_session(path)
    load_session(path)
    assert [provider for provider, _ in calls.arenas] == [CUDA]
    assert all(map(uses_registered_arena, calls.options))
    assert calls.providers == [[(CUDA, {})]] * 2


def test_a_second_arena_of_cuda_is_the_first_one_and_a_warning(
    calls: Calls, tmp_path: Path
) -> None:
    load_session(written(tmp_path, RuntimeSettings(arena=ARENA)))
    other = written(tmp_path, RuntimeSettings(arena=one_region(5 << 20)))
    with pytest.warns(UserWarning, match="already has an arena"):
        load_session(other)
    assert len(calls.arenas) == 1


def test_a_file_for_cuda_that_releases_its_arena_runs_on_the_cpu(tmp_path: Path) -> None:
    settings = RuntimeSettings(arena=EXACT, run_config=release_entries(CUDA))
    with pytest.warns(UserWarning, match="its arena is not used"):
        loaded = load_session(written(tmp_path, settings), providers=[CPU])
    (y,) = loaded.run(None, {"x": np.zeros(2, np.float32)})
    assert y.tolist() == [1, 1]


@pytest.mark.usefixtures("calls")
def test_a_file_for_cuda_without_its_weights_is_no_failure_of_cuda(tmp_path: Path) -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }")
    path, (weight,) = tmp_path / "add.onnx", model.graph.initializer
    weight.CopyFrom(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    set_external_data(weight, "gone.data")
    weight.ClearField("raw_data")
    entry = settings_entry(RecordedSettings(CUDA, RuntimeSettings()))
    path.write_bytes(model.SerializeToString() + entry)
    with pytest.raises(ModelError, match=r"there is no file .*gone\.data"):
        load_session(path)


def test_keys_of_the_arena_are_no_options_of_the_provider(tmp_path: Path) -> None:
    path = written(tmp_path, RuntimeSettings(provider={"initial_chunk_size_bytes": 1}))
    with pytest.raises(ModelError, match=r"initial_chunk_size_bytes.*never does"):
        load_session(path)


@pytest.mark.parametrize(("provider", "device"), [(CPU, "cpu:0"), (CUDA, "gpu:0")])
def test_the_arena_that_is_released_is_that_of_the_provider(
    provider: str, device: str
) -> None:
    choice = SettingsChoice(RuntimeSettings(arena=ARENA), Peaks(1, 1), provider=provider)
    run_config = released_between_runs(choice).settings.run_config
    assert run_config == {"memory.enable_memory_arena_shrinkage": device}
