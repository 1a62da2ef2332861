"""Create sessions, and find out on which execution providers sessions can be created."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import (
    CPU,
    CUDA,
    PROVIDERS,
    RuntimeSettings,
)
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.loading.settings import (
    apply_options,
    load_cuda_libraries,
    options_of_file_ignored,
    provider_options,
    register_arena,
    use_arena_of_process,
)
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.json_types import Json

DETERMINISTIC = RuntimeSettings(
    session={
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 1,
        "use_deterministic_compute": True,
    }
)
"""One thread, because with several the CPU's ScatterND with ``reduction="add"`` loses updates."""

DETERMINISTIC_CUDA = DETERMINISTIC.updated(
    RuntimeSettings(provider={"use_tf32": 0, "cudnn_conv_algo_search": "HEURISTIC"})
)

_PROBE_TIMEOUT = 120.0
"""Seconds for a session of one op; the first session on CUDA loads all libraries of CUDA."""

_PROBE_JOB = "memplan_cli.runtime.workers.session:run_on_provider"


@dataclass(frozen=True, slots=True)
class ProviderProbe:
    """Whether a session on a provider could be created and run, and the error if not."""

    works: bool
    reason: str = ""


def resolve_provider(name: str) -> str:
    """Return ONNX Runtime's name of a provider.

    Args:
        name: ``cpu``, ``cuda``, ONNX Runtime's name, or ``auto``: CUDA if a session can be
            created on it, else the CPU.

    Raises:
        RuntimeUnavailableError: no session can be created on the provider.
        SettingsError: there is no such provider.
    """
    if name == "auto":
        return CUDA if probe_provider(CUDA).works else CPU
    if name not in (*PROVIDERS, *PROVIDERS.values()):
        raise SettingsError(
            f"unknown provider {name!r}", hint="Choose one of auto, cpu, cuda."
        )
    provider = PROVIDERS.get(name, name)
    if provider == CPU:
        return CPU
    probe = probe_provider(provider)
    if not probe.works:
        raise RuntimeUnavailableError(
            f"no session can be created on {provider}: {probe.reason}",
            hint="--provider cpu works everywhere; `memplan doctor` shows what works here",
        )
    return provider


@lru_cache(maxsize=8)
def probe_provider(provider: str) -> ProviderProbe:
    """Create and run a session of one op on a provider, in a worker process."""
    if provider == CUDA and not _has_cuda_driver():
        return ProviderProbe(works=False, reason="there is no NVIDIA driver")
    outcome = run_job(_PROBE_JOB, {"provider": provider}, timeout=_PROBE_TIMEOUT)
    return ProviderProbe(outcome.ok, outcome.reason)


def run_on_provider(job: Json) -> Json:
    """Job: create and run a session of one op on a provider, and return its providers.

    Args:
        job: ``provider`` is ONNX Runtime's name of it. The fall-back to the CPU is forbidden.

    Raises:
        Exception: whatever ONNX Runtime raises if the provider does not work.
    """
    import numpy as np

    from memplan_cli.onnx_io.runs.prepared_models import smallest_model

    provider = str(job["provider"])
    settings = RuntimeSettings()
    if provider != CPU:
        settings = RuntimeSettings(session_config={"session.disable_cpu_ep_fallback": "1"})
    session = make_session(smallest_model(), settings, provider)
    (result,) = session.run(None, {"x": np.ones(4, np.float32)})
    if not np.allclose(result, np.exp(np.ones(4))):
        raise ArithmeticError(f"exp(1) is computed as {result[0]}")
    return {"providers": session.get_providers()}


def _has_cuda_driver() -> bool:
    """Return whether the library of the CUDA driver can be loaded."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def deterministic(provider: str) -> RuntimeSettings:
    """Return the settings that make runs on a provider as reproducible as the provider allows."""
    return DETERMINISTIC_CUDA if provider == CUDA else DETERMINISTIC


def make_session(model: Path | bytes, settings: RuntimeSettings, provider: str) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Create an ``InferenceSession``, in a worker process only: an arena in the settings is that of the process.

    Args:
        model: the file, or its content.
        settings: session options, provider options, and the arena.
        provider: ONNX Runtime's name of the execution provider.

    Raises:
        RuntimeUnavailableError: the session is on another provider, or CUDA libraries are missing.
    """
    import onnxruntime as ort

    missing_libraries = load_cuda_libraries() if provider == CUDA else ""
    try:
        options = session_options(settings)
        if settings.arena:
            register_arena(settings.arena, provider)
            use_arena_of_process(options)
        provider_with_options = (provider, provider_options(settings.provider))
        source = model if isinstance(model, bytes) else str(model)
        with options_of_file_ignored():
            # With its fallback, ONNX Runtime would print an error of the provider, and use the CPU instead.
            session = ort.InferenceSession(
                source, options, providers=[provider_with_options], enable_fallback=0
            )
    except Exception as error:
        if missing_libraries:
            raise RuntimeUnavailableError(missing_libraries) from error
        raise
    # Even without the fallback, ONNX Runtime leaves out a provider whose library cannot be loaded.
    first = session.get_providers()[0]
    if first != provider:
        raise RuntimeUnavailableError(missing_libraries or f"the session is on {first}")
    return session


def session_options(settings: RuntimeSettings) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return new ``SessionOptions`` with the session attributes and entries of some settings."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    apply_options(options, settings.session, settings.session_config)
    return options


def run_options(settings: RuntimeSettings) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return new ``RunOptions`` with the run entries of some settings."""
    import onnxruntime as ort

    options = ort.RunOptions()
    for key, value in settings.run_config.items():
        options.add_run_config_entry(key, value)
    return options
