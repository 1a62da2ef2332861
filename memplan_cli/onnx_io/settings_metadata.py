"""The runtime settings stored in a model file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.observations import CPU, PROVIDERS, RuntimeSettings, Setting
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.metadata import ORT_CONFIG, OWN_CONFIG, PREFIX, is_own
from memplan_cli.onnx_io.wire_format import METADATA, Entries

if TYPE_CHECKING:
    from onnx import ModelProto

SETTINGS = f"{PREFIX}settings"
"""The key of the entry, whose value is JSON."""

_Judge = Callable[[Setting], bool]
"""Whether a value is one that its option can have."""

_LONGEST = 4096
"""Characters of a text; ONNX Runtime refuses some 8,000."""


def _truth(value: Setting) -> bool:
    return isinstance(value, bool)


def _text(value: Setting) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST and value.isprintable()


def _word(*words: str) -> _Judge:
    return lambda value: str(value) in words


def _number(most: int) -> _Judge:
    """Judge numbers of bytes, -1 for the runtime's own, written as such or as text."""

    def judge(value: Setting) -> bool:
        if isinstance(value, str):
            return value.isascii() and value.isdecimal() and int(value[:20]) <= most
        return not isinstance(value, bool) and -1 <= value <= most

    return judge


_INT, _SIZE = (1 << 31) - 1, (1 << 62) - 1
_FLAG = _word("0", "1", "True", "False")

_ARENA: Mapping[str, _Judge] = {
    "arena_extend_strategy": _word("kNextPowerOfTwo", "kSameAsRequested"),
    "initial_chunk_size_bytes": _number(_INT),
    "initial_growth_chunk_size_bytes": _number(_INT),
    "max_dead_bytes_per_chunk": _number(_INT),
    "max_mem": _number(_SIZE),
    "max_power_of_two_extend_bytes": _number(_SIZE),
}

_BELIEVED: Mapping[str, Mapping[str, _Judge]] = {
    "session": {
        "enable_cpu_mem_arena": _truth,
        "enable_mem_pattern": _truth,
        "enable_mem_reuse": _truth,
        "execution_mode": _word("ORT_SEQUENTIAL", "ORT_PARALLEL"),
        "execution_order": _word("DEFAULT", "PRIORITY_BASED", "MEMORY_EFFICIENT"),
        "graph_optimization_level": _word(
            *("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"),
            *("ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"),
        ),
    },
    "session_config": {
        "optimization.disable_specified_optimizers": _text,
        "session.disable_prepacking": _word("0", "1"),
        "session.use_device_allocator_for_initializers": _word("0", "1"),
        "session.use_env_allocators": _word("0", "1"),
    },
    "arena": _ARENA,
    "provider": {
        **_ARENA,
        "cudnn_conv_algo_search": _word("DEFAULT", "HEURISTIC", "EXHAUSTIVE"),
        "cudnn_conv_use_max_workspace": _FLAG,
        "gpu_mem_limit": _number(_SIZE),
        "use_tf32": _FLAG,
    },
    "run_config": {
        "memory.enable_memory_arena_shrinkage": lambda value: (
            re.fullmatch(r"(cpu|gpu):\d{1,3}(;(cpu|gpu):\d{1,3})*", str(value)) is not None
        )
    },
}
"""Options that neither write a file nor load code, by their scope, and what they may be."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Settings, and the provider whose they are.

    Attributes:
        provider: ONNX Runtime's name of it.
        settings: by scope, in the runtime's own names.
    """

    provider: str
    settings: RuntimeSettings


def settings_entry(recorded: Recorded) -> bytes:
    """Return what is put behind the bytes of a model so that its metadata has its settings.

    Protobuf reads messages of one type that follow each other as one.
    """
    text = json.dumps(to_json(recorded), separators=(",", ":"))
    return Entries(METADATA, SETTINGS)(text)


_CARRIED: Mapping[str, Mapping[Setting, int]] = {
    "execution_mode": {"ORT_SEQUENTIAL": 0, "ORT_PARALLEL": 1},
    "graph_optimization_level": {
        "ORT_DISABLE_ALL": 0,
        "ORT_ENABLE_BASIC": 1,
        "ORT_ENABLE_EXTENDED": 2,
        "ORT_ENABLE_LAYOUT": 3,
        "ORT_ENABLE_ALL": 99,
    },
}
"""What of a session's options ONNX Runtime reads from a model, in its numbers."""


def config_entry(settings: RuntimeSettings, model: ModelProto) -> bytes:
    """Return the entry by which ONNX Runtime itself sets what it can read from a model.

    It reads some options alone, and where it reads them those of its caller do not count. So
    nothing is written where nothing can be carried, nor beside what somebody else wrote: the
    first entry of the name is the one that is read.
    """
    carried = {
        name: _CARRIED[name][value]
        for name, value in sorted(settings.session.items())
        if name in _CARRIED and value in _CARRIED[name]
    }
    theirs = any(e.key == ORT_CONFIG and not is_own(e) for e in model.metadata_props)
    if theirs or not carried:
        return b""
    options = json.dumps({"session_options": carried}, separators=(",", ":"))
    return Entries(METADATA, ORT_CONFIG)(OWN_CONFIG + options.removeprefix("{"))


def recorded_settings(metadata: Mapping[str, str]) -> Recorded | None:
    """Return the settings in a model's metadata; None where there are none.

    Raises:
        ModelError: they cannot be read, or there is an option that memplan never writes.
    """
    if SETTINGS not in metadata:
        return None
    try:
        recorded = from_json(Recorded, json.loads(metadata[SETTINGS]), SETTINGS)
    except (ValueError, RecursionError, MisfitError) as error:
        raise ModelError(f"the model's {SETTINGS} cannot be read: {error}") from error
    _check(recorded)
    return recorded


def _check(recorded: Recorded) -> None:
    if recorded.provider not in PROVIDERS.values():
        raise ModelError(
            f"the model's {SETTINGS} name no provider: {recorded.provider[:80]!r}"
        )
    for scope, believed in _BELIEVED.items():
        said = getattr(recorded.settings, scope)
        strange = sorted(set(said) - set(believed))
        if strange:
            raise ModelError(
                f"the model's {SETTINGS} set {strange[0][:80]!r}, which memplan never does",
                hint="the file was made or changed by something else; load it with ONNX "
                "Runtime itself if you trust it",
            )
        odd = next((key for key, value in said.items() if not believed[key](value)), None)
        if odd is not None:
            raise ModelError(
                f"the model's {SETTINGS} set {odd!r} to {str(said[odd])[:80]!r}, which it "
                "cannot be"
            )
    if recorded.provider == CPU and recorded.settings.provider:
        raise ModelError(f"the model's {SETTINGS} have options of {CPU}, which has none")
