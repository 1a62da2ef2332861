"""The settings of ONNX Runtime in the metadata of a model file: read, checked and applied to a session.

Model files are untrusted, and session options can write files or load libraries. So only options that
memplan writes itself are accepted.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Setting = str | int | bool
    """The value of an option of ONNX Runtime."""

    _IsValid = Callable[[Setting], bool]
    """Whether an option can have a value."""

SETTINGS = "pkg.memplan.settings"
"""The key of the metadata entry, whose value is JSON."""

RUNTIME = "pkg.memplan.runtime"
"""The key of a file whose graph ONNX Runtime optimized: its name, its version and the provider."""

CPU = "CPUExecutionProvider"

CUDA = "CUDAExecutionProvider"

MEMORY_NAMES: Mapping[str, str] = {CPU: "Cpu", CUDA: "Cuda"}
"""Providers -> ONNX Runtime's name of the memory in which their arena lies."""

OPTION_ENUMS: Mapping[str, str] = {
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
}
"""Attributes of ``SessionOptions`` -> the enum of ONNX Runtime to which their value belongs."""

EXTEND_STRATEGIES: Mapping[str, int] = {"kNextPowerOfTwo": 0, "kSameAsRequested": 1}
"""Values of ``arena_extend_strategy`` -> the number that ``OrtArenaCfg`` needs instead."""

_OPTIONS_FROM_FILE = "ORT_LOAD_CONFIG_FROM_MODEL"
"""If this variable is 1, ONNX Runtime takes the session options from the file's ``ort_config``."""

_MAX_TEXT = 4096
"""Most characters of a text; ONNX Runtime refuses some 8,000."""

_MAX_DIGITS = 19
"""Most digits of a number as text: `_SIZE`, the largest limit, has as many."""


def _is_bool(value: Setting) -> bool:
    return isinstance(value, bool)


def _is_text(value: Setting) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable()


def _one_of(*words: str) -> _IsValid:
    """Return a test whether a value, as text, is one of ``words``."""
    return lambda value: str(value) in words


def _at_most(limit: int) -> _IsValid:
    """Return a test for a number of bytes, as an int or as text.

    As an int it may be -1, ONNX Runtime's default.
    """

    def is_valid(value: Setting) -> bool:
        if isinstance(value, str):
            is_number = value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS
            return is_number and int(value) <= limit
        return not isinstance(value, bool) and -1 <= value <= limit

    return is_valid


_INT32, _SIZE = (1 << 31) - 1, (1 << 62) - 1
_FLAG = _one_of("0", "1", "True", "False")

_ARENA: Mapping[str, _IsValid] = {
    "arena_extend_strategy": _one_of(*EXTEND_STRATEGIES),
    "initial_chunk_size_bytes": _at_most(_INT32),
    "initial_growth_chunk_size_bytes": _at_most(_INT32),
    "max_dead_bytes_per_chunk": _at_most(_INT32),
    "max_mem": _at_most(_SIZE),
    "max_power_of_two_extend_bytes": _at_most(_SIZE),
}

_ACCEPTED: Mapping[str, Mapping[str, _IsValid]] = {
    "session": {
        "enable_cpu_mem_arena": _is_bool,
        "enable_mem_pattern": _is_bool,
        "enable_mem_reuse": _is_bool,
        "execution_mode": _one_of("ORT_SEQUENTIAL", "ORT_PARALLEL"),
        "execution_order": _one_of("DEFAULT", "PRIORITY_BASED", "MEMORY_EFFICIENT"),
        "graph_optimization_level": _one_of(
            *("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"),
            *("ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"),
        ),
    },
    "session_config": {
        "optimization.disable_specified_optimizers": _is_text,
        "session.disable_prepacking": _one_of("0", "1"),
        "session.use_device_allocator_for_initializers": _one_of("0", "1"),
        "session.use_env_allocators": _one_of("0", "1"),
    },
    "arena": _ARENA,
    "provider": {
        "cudnn_conv_algo_search": _one_of("DEFAULT", "HEURISTIC", "EXHAUSTIVE"),
        "cudnn_conv_use_max_workspace": _FLAG,
        "gpu_mem_limit": _at_most(_SIZE),
        "use_tf32": _FLAG,
    },
    "run_config": {
        "memory.enable_memory_arena_shrinkage": lambda value: (
            re.fullmatch(r"(cpu|gpu):\d{1,3}(;(cpu|gpu):\d{1,3})*", str(value)) is not None
        )
    },
}
"""Scope -> option -> test of its value. None of these options writes a file or loads code."""

_TEXT_SCOPES = frozenset({"session_config", "run_config", "io_binding"})
"""Scopes whose values are texts; options of the others may also be numbers and booleans."""


# ---- reading ----


class FileSettings(NamedTuple):
    """The settings of a model file, in ONNX Runtime's own names, by the scope where they are set.

    ``execution_provider`` is the provider that they are for. The other fields are the scopes, as in
    `memplan_cli.core.results.observations.RuntimeSettings`, which describes them; this room does not import it.
    """

    execution_provider: str
    session: Mapping[str, Setting]
    session_config: Mapping[str, str]
    arena: Mapping[str, Setting]
    provider: Mapping[str, Setting]
    run_config: Mapping[str, str]
    io_binding: Mapping[str, str]

    @property
    def scopes(self) -> Mapping[str, Mapping[str, Any]]:
        """The options of each scope, by its name."""
        return dict(zip(self._fields[1:], self[1:], strict=True))


RUNTIME_DEFAULTS = FileSettings(CPU, {}, {}, {}, {}, {}, {})
"""The settings of a file that memplan did not write."""


def file_settings(metadata: Mapping[str, str]) -> FileSettings | None:
    """Return the settings in a model's metadata; None if there are none.

    Raises:
        ModelError: the entry is invalid, or has an option or value that memplan never writes.
    """
    if SETTINGS not in metadata:
        return None
    import json

    try:
        settings = _settings_of_json(json.loads(metadata[SETTINGS]))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the model's {SETTINGS} cannot be read: {error}") from error
    _check_accepted(settings)
    return settings


def _settings_of_json(data: object) -> FileSettings:
    """Return the settings in parsed JSON, whose options and values are still unchecked.

    Raises:
        ValueError: the JSON does not have the form of settings.
    """
    if not isinstance(data, dict) or data.keys() != {"provider", "settings"}:
        raise ValueError("expected an object with a provider and settings")
    provider, scopes = data["provider"], data["settings"]
    if not isinstance(provider, str) or not isinstance(scopes, dict):
        raise ValueError(  # noqa: TRY004 - of a JSON value
            "expected the name of a provider, and a table of settings"
        )
    known = FileSettings._fields[1:]
    unknown = sorted(scopes.keys() - set(known))
    if unknown:
        raise ValueError(f"settings.{unknown[0][:80]}: is unknown")
    for scope, options in scopes.items():
        types = (str,) if scope in _TEXT_SCOPES else (str, int, bool)
        if not isinstance(options, dict) or any(
            type(v) not in types for v in options.values()
        ):
            raise ValueError(f"settings.{scope}: expected a table of options")
    return FileSettings(provider, *(scopes.get(scope, {}) for scope in known))


def _check_accepted(settings: FileSettings) -> None:
    """Refuse settings of an unknown provider, unknown options, and values that an option cannot have.

    Raises:
        ModelError: naming the provider, the option or the value.
    """
    provider = settings.execution_provider
    if provider not in MEMORY_NAMES:
        raise ModelError(f"the model's {SETTINGS} name no provider: {provider[:80]!r}")
    for scope, accepted in _ACCEPTED.items():
        options = settings.scopes[scope]
        unknown = sorted(set(options) - set(accepted))
        if unknown:
            raise ModelError(
                f"the model's {SETTINGS} set {unknown[0][:80]!r}, which memplan never does",
                hint="the file was made or changed by something else; load it with ONNX "
                "Runtime itself if you trust it",
            )
        invalid = next((k for k, value in options.items() if not accepted[k](value)), None)
        if invalid is not None:
            raise ModelError(
                f"the model's {SETTINGS} set {invalid!r} to {str(options[invalid])[:80]!r}, which it "
                "cannot be"
            )
    if provider == CPU and settings.scopes["provider"]:
        raise ModelError(f"the model's {SETTINGS} have options of {CPU}, which has none")


# ---- applying ----


def apply_options(
    options: Any,  # noqa: ANN401 - ONNX Runtime has no types
    attributes: Mapping[str, Setting],
    entries: Mapping[str, str],
) -> None:
    """Set session attributes and config entries on ``SessionOptions``."""
    import onnxruntime as ort

    for key, value in attributes.items():
        if key in OPTION_ENUMS:
            setattr(options, key, getattr(getattr(ort, OPTION_ENUMS[key]), str(value)))
        else:
            setattr(options, key, value)
    for key, value in entries.items():
        options.add_session_config_entry(key, value)


def provider_options(options: Mapping[str, Setting]) -> dict[str, str]:
    """Return the options of a provider as text."""
    return {
        key: str(int(value)) if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def register_arena(arena: Mapping[str, Setting], provider: str) -> None:
    """Register the arena of a provider in this process. Sessions use it by `use_arena_of_process`.

    The arena lasts until the process ends; sessions that use arenas of the process share it. On CUDA too, the
    size of the first region can be set in this way only: the provider's own options lack it
    (core/session/environment.cc, ``CreateAndRegisterAllocatorV2``).

    Args:
        arena: keys of ``OrtArenaCfg``.
        provider: ONNX Runtime's name of the execution provider. The arena is on its first device.
    """
    import onnxruntime as ort

    config = {key: EXTEND_STRATEGIES.get(str(value), value) for key, value in arena.items()}
    memory = ort.OrtMemoryInfo(
        MEMORY_NAMES[provider],
        ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        ort.OrtMemType.DEFAULT,
    )
    # OrtArenaCfg refuses unknown keys only in this form, with one dictionary.
    ort.create_and_register_allocator_v2(provider, memory, {}, ort.OrtArenaCfg(config))


def use_arena_of_process(options: Any) -> None:  # noqa: ANN401 - ONNX Runtime has no types
    """Let ``SessionOptions`` use the arenas that are registered in this process."""
    options.add_session_config_entry("session.use_env_allocators", "1")


def load_cuda_libraries() -> str:
    """Load the CUDA libraries from the wheels of torch or NVIDIA or from the system.

    Returns:
        A sentence with the libraries that sessions on CUDA need and that cannot be loaded; empty if there are none.
    """
    import io
    from contextlib import redirect_stdout

    import onnxruntime as ort

    # ONNX Runtime prints what it cannot load: "Failed to load NAME: reason".
    printed = io.StringIO()
    with redirect_stdout(printed):
        ort.preload_dlls()
    names = dict.fromkeys(
        re.findall(r"^Failed to load ([^:\s]+)", printed.getvalue(), re.MULTILINE)
    )
    return (
        f"CUDA libraries are missing ({', '.join(names)}): pip install 'memplan[cuda]'"
        if names
        else ""
    )


@contextmanager
def options_of_file_ignored() -> Iterator[None]:
    """Make sessions that are created in this block ignore the session options in their file.

    The user may have set the environment variable that makes ONNX Runtime use them; the block
    removes it for the time. The session option for the same purpose is refused.
    """
    value = os.environ.pop(_OPTIONS_FROM_FILE, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[_OPTIONS_FROM_FILE] = value
