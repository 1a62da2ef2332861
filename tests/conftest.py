"""Where the sample models, the shared ones and those of the onnx package are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import simulated_device
import warm_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.fork_client import Server
    from simulated_device import SimulatedDevice
    from warm_workers import WarmWorkers

# What a busy machine is slow at is no fault of the code: nothing here goes by the clock.
# MEMPLAN_EXAMPLES=1000 tries more examples of each property.
settings.register_profile(
    "house",
    deadline=None,
    max_examples=int(os.environ.get("MEMPLAN_EXAMPLES", "50")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# Texts are as wide as the terminal, unless this variable is set.
os.environ["COLUMNS"] = "80"

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_models"
WHOLE = frozenset({"cli", "documents", "e2e", "api", "golden", "features", "integrations"})
SHARED = ROOT.parent / "shared" / "models"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the golden reports again instead of comparing with them",
    )


@pytest.fixture(autouse=True)
def _equally_fast(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of the whole goes by who takes longer: a busy machine says this and that."""
    if WHOLE.intersection(request.path.relative_to(ROOT).parts):
        from memplan_cli.runtime.run import timing
        from memplan_cli.runtime.verification import confirm

        for module in (confirm, timing):
            monkeypatch.setattr(module, "is_slower", lambda *_, **__: False)
        # No time was measured, so that the arena is kept unless a test asks for its release.
        monkeypatch.setattr(confirm, "release_time_ratio", lambda *_: None)


@pytest.fixture(scope="session")
def _warm() -> Iterator[WarmWorkers | None]:
    """A server of warm worker processes, where the system can fork and wait for one."""
    if sys.platform != "linux":
        yield None
        return
    workers = warm_workers.start()
    yield workers
    workers.close()


@pytest.fixture(autouse=True)
def _few_imports(_warm: WarmWorkers | None) -> Iterator[None]:
    """Jobs of the runtime in processes of their own, without an import for each."""
    if _warm is None:
        yield
        return
    from memplan_cli.runtime.workers.fork_client import using

    with using(_warm.server):
        yield


@pytest.fixture(scope="session")
def _cuda_server() -> Iterator[Server]:
    """A process from which jobs on a simulated CUDA device are forked."""
    if sys.platform != "linux":
        pytest.skip("a process is forked for each job")
    server = simulated_device.start_server()
    yield server
    server.close()


@pytest.fixture
def cuda_device(_cuda_server: Server) -> Iterator[SimulatedDevice]:
    """A simulated CUDA device, which works at first."""
    with simulated_device.device_of(_cuda_server) as simulated:
        yield simulated


@pytest.fixture
def started_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions of the jobs that the test has started, in order.

    ``measured run`` is a run that measures the memory of its process, or its time.
    """
    from memplan_cli.runtime.workers import worker

    names: list[str] = []

    class RecordedJob(worker.Job):
        def __init__(self, function: str, content: Json, **options: Any) -> None:  # noqa: ANN401
            collected = content.get("spec", {}).get("collect", ())
            is_measured = not {"process", "time"}.isdisjoint(collected)
            name = function.rpartition(":")[2]
            names.append(f"measured {name}" if is_measured else name)
            super().__init__(function, content, **options)

    monkeypatch.setattr(worker, "Job", RecordedJob)
    return names


@pytest.fixture(scope="session")
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The folder of the sample models."""
    return SAMPLES


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of the models that lie beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"{os.path.relpath(SHARED, ROOT)} is not here")
    return SHARED


@pytest.fixture(scope="session")
def light_models() -> Path:
    """The folder of the nine real networks, without weights, of the onnx package."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    if not folder.is_dir():
        pytest.skip("this onnx package comes without its test models")
    return folder
