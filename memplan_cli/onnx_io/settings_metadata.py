"""ONNX Runtime's settings in the metadata of a model file, with which the file runs as planned.

Model files are untrusted, and session options can write files or load libraries. So only options that
memplan writes itself are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.observations import (
    CPU,
    MODEL_OPTIONS,
    PROVIDERS,
    RuntimeSettings,
    Setting,
)
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.metadata import ORT_CONFIG, OWN_CONFIG, PREFIX, is_own
from memplan_cli.onnx_io.wire_format import METADATA, Entries

if TYPE_CHECKING:
    from onnx import ModelProto

SETTINGS = f"{PREFIX}settings"
"""The key of the entry, whose value is JSON."""

_IsValid = Callable[[Setting], bool]
"""Whether an option can have a value."""

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
    "arena_extend_strategy": _one_of("kNextPowerOfTwo", "kSameAsRequested"),
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
        **_ARENA,
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


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """The settings of one execution provider.

    Attributes:
        provider: ONNX Runtime's name of the provider.
        settings: the settings, in ONNX Runtime's own names.
    """

    provider: str
    settings: RuntimeSettings


def settings_entry(recorded: RecordedSettings) -> bytes:
    """Return an encoded metadata entry with settings, to be appended to the bytes of a model.

    Protobuf merges messages of one type that follow each other.
    """
    text = json.dumps(to_json(recorded), separators=(",", ":"))
    return Entries(METADATA, SETTINGS)(text)


def config_entry(settings: RuntimeSettings, model: ModelProto) -> bytes:
    """Return an encoded metadata entry with the options in `MODEL_OPTIONS`; empty if none is set.

    ONNX Runtime reads these from a model, and then ignores all session options of its caller. It reads
    the first entry only, so the result is also empty if the model has an entry of another program.
    """
    options = {
        name: MODEL_OPTIONS[name][value]
        for name, value in sorted(settings.session.items())
        if name in MODEL_OPTIONS and value in MODEL_OPTIONS[name]
    }
    has_other_entry = any(e.key == ORT_CONFIG and not is_own(e) for e in model.metadata_props)
    if has_other_entry or not options:
        return b""
    text = json.dumps({"session_options": options}, separators=(",", ":"))
    # `OWN_CONFIG` is the start of a JSON object, by which `is_own` recognizes the entry.
    own_text = OWN_CONFIG + text.removeprefix("{")
    encode = Entries(METADATA, ORT_CONFIG)
    return encode(own_text)


def recorded_settings(metadata: Mapping[str, str]) -> RecordedSettings | None:
    """Return the settings in a model's metadata; None if there are none.

    Raises:
        ModelError: the entry is invalid, or has an option or value that memplan never writes.
    """
    if SETTINGS not in metadata:
        return None
    try:
        recorded = from_json(RecordedSettings, json.loads(metadata[SETTINGS]), SETTINGS)
    except (ValueError, RecursionError, MisfitError) as error:
        raise ModelError(f"the model's {SETTINGS} cannot be read: {error}") from error
    _check_accepted(recorded)
    return recorded


def _check_accepted(recorded: RecordedSettings) -> None:
    """Refuse settings of an unknown provider, unknown options, and values that an option cannot have.

    Raises:
        ModelError: naming the provider, the option or the value.
    """
    if recorded.provider not in PROVIDERS.values():
        raise ModelError(
            f"the model's {SETTINGS} name no provider: {recorded.provider[:80]!r}"
        )
    for scope, accepted in _ACCEPTED.items():
        options = getattr(recorded.settings, scope)
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
    if recorded.provider == CPU and recorded.settings.provider:
        raise ModelError(f"the model's {SETTINGS} have options of {CPU}, which has none")
