"""Sessions that really are on the provider asked for."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import (
    CPU,
    CUDA,
    EXTEND_STRATEGIES,
    OPTION_ENUMS,
    PROVIDERS,
    RuntimeSettings,
)
from memplan_cli.errors import RuntimeUnavailableError, SettingsError
from memplan_cli.runtime.workers.worker import run_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from memplan_cli.core.results.observations import Setting

DETERMINISTIC = RuntimeSettings(
    session={
        "intra_op_num_threads": 1,
        "inter_op_num_threads": 1,
        "use_deterministic_compute": True,
    }
)
"""One thread: with more, CPU ScatterND(reduction="add") loses updates (measured)."""

DETERMINISTIC_CUDA = DETERMINISTIC.updated(
    RuntimeSettings(provider={"use_tf32": 0, "cudnn_conv_algo_search": "DEFAULT"})
)

_READ_CONFIG = "ORT_LOAD_CONFIG_FROM_MODEL"
"""Where it is 1, ONNX Runtime takes the options of a file's ``ort_config``."""

_PROBE_TIMEOUT = 120.0
"""Seconds for a session of one op; the first on CUDA loads all of its libraries."""


@dataclass(frozen=True, slots=True)
class ProviderProbe:
    """Whether a session on a provider could be made, and why not."""

    provider: str
    works: bool
    reason: str = ""


def resolve_provider(wanted: str) -> str:
    """Return the execution provider to use for ``auto``, ``cpu``, ``cuda`` or its own name.

    ``auto`` is CUDA where a session really gets it, else CPU.

    Raises:
        RuntimeUnavailableError: ``cuda`` was asked for and no session gets it.
        SettingsError: ``wanted`` is none of these words.
    """
    if wanted == "auto":
        return CUDA if probe_provider(CUDA).works else CPU
    if wanted not in (*PROVIDERS, *PROVIDERS.values()):
        raise SettingsError(
            f"unknown provider {wanted!r}", hint="Choose one of auto, cpu, cuda."
        )
    provider = PROVIDERS.get(wanted, wanted)
    if provider == CPU:
        return CPU
    probe = probe_provider(provider)
    if not probe.works:
        raise RuntimeUnavailableError(
            f"no session gets {provider} here: {probe.reason}",
            hint="--provider cpu works everywhere; `memplan doctor` says what this machine has",
        )
    return provider


@lru_cache(maxsize=8)
def probe_provider(provider: str) -> ProviderProbe:
    """Create and run a session on one provider, with the fall-back to CPU forbidden."""
    if provider == CUDA and not _has_cuda_driver():
        return ProviderProbe(provider, works=False, reason="there is no NVIDIA driver")
    outcome = run_job("probe", {"provider": provider}, timeout=_PROBE_TIMEOUT)
    return ProviderProbe(provider, outcome.ok, outcome.reason)


def _has_cuda_driver() -> bool:
    """Without the driver's library no session can get CUDA; looking costs nothing."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def deterministic(provider: str) -> RuntimeSettings:
    """Return what makes two runs give the same bits, as far as the provider can."""
    return DETERMINISTIC_CUDA if provider == CUDA else DETERMINISTIC


def make_session(model: Path | bytes, settings: RuntimeSettings, provider: str) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Create an ``InferenceSession``; call it in a worker process only.

    Raises:
        RuntimeUnavailableError: the session is not on the provider asked for.
    """
    import onnxruntime as ort

    if provider == CUDA:
        load_cuda_libraries()
    options = session_options(settings)
    if settings.arena and provider == CPU:
        register_arena(settings.arena)
        options.add_session_config_entry("session.use_env_allocators", "1")
    providers = [(provider, provider_options(settings, provider))]
    source = model if isinstance(model, bytes) else str(model)
    with given_options_count():
        session = ort.InferenceSession(source, options, providers=providers)
    if session.get_providers()[0] != provider:
        raise RuntimeUnavailableError(f"the session is on {session.get_providers()[0]}")
    return session


@contextmanager
def given_options_count() -> Iterator[None]:
    """Create sessions with the options that they are given, whatever their file says.

    ONNX Runtime takes those of the file instead, and refuses a session that is told not to.
    """
    said = os.environ.pop(_READ_CONFIG, None)
    try:
        yield
    finally:
        if said is not None:
            os.environ[_READ_CONFIG] = said


def session_options(settings: RuntimeSettings) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return ``SessionOptions`` with every session attribute and entry set."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 3
    apply_options(options, settings)
    return options


def apply_options(options: Any, settings: RuntimeSettings) -> None:  # noqa: ANN401
    """Set every session attribute and entry on ``SessionOptions``."""
    import onnxruntime as ort

    for key, value in settings.session.items():
        if key in OPTION_ENUMS:
            setattr(options, key, getattr(getattr(ort, OPTION_ENUMS[key]), str(value)))
        else:
            setattr(options, key, value)
    for key, value in settings.session_config.items():
        options.add_session_config_entry(key, value)


def provider_options(settings: RuntimeSettings, provider: str) -> dict[str, str]:
    """Return the options of a provider; on CUDA the arena's keys are among them."""
    own = {**(settings.arena if provider != CPU else {}), **settings.provider}
    return {key: _option(value) for key, value in own.items()}


def run_options(settings: RuntimeSettings) -> Any:  # noqa: ANN401 - ONNX Runtime has no types
    """Return ``RunOptions`` with every run entry set."""
    return run_entries(settings, None)


def run_entries(settings: RuntimeSettings, options: Any) -> Any:  # noqa: ANN401
    """Set every run entry on ``RunOptions``, new ones where none are given."""
    import onnxruntime as ort

    options = ort.RunOptions() if options is None else options
    for key, value in settings.run_config.items():
        options.add_run_config_entry(key, value)
    return options


def register_arena(arena: Mapping[str, Setting]) -> None:
    """Register the CPU arena of this process; it lasts until the process ends."""
    import onnxruntime as ort

    config = {key: EXTEND_STRATEGIES.get(str(value), value) for key, value in arena.items()}
    # The dictionary form refuses keys it does not know, which is what we want.
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg(config))


def load_cuda_libraries() -> None:
    """Load the CUDA libraries that the wheels of torch or NVIDIA bring along."""
    import onnxruntime as ort

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()


def _option(value: Setting) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)
