"""The runtime's settings in a model file: what the file needs to be run as planned.

A file comes from anywhere, and options of a session can write files or load libraries. So
only options that memplan writes itself are believed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import MisfitError, from_json
from memplan_cli.core.results.observations import CPU, PROVIDERS, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.metadata import PREFIX
from memplan_cli.onnx_io.scan import METADATA
from memplan_cli.onnx_io.writing.wire import Entries

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SETTINGS = f"{PREFIX}settings"
"""The key of the entry, whose value is JSON."""

_ARENA = frozenset(
    {
        "arena_extend_strategy",
        "initial_chunk_size_bytes",
        "initial_growth_chunk_size_bytes",
        "max_dead_bytes_per_chunk",
        "max_mem",
        "max_power_of_two_extend_bytes",
    }
)

_BELIEVED: Mapping[str, Collection[str]] = {
    "session": frozenset(
        {
            "enable_cpu_mem_arena",
            "enable_mem_pattern",
            "enable_mem_reuse",
            "execution_mode",
            "execution_order",
            "graph_optimization_level",
        }
    ),
    "session_config": frozenset(
        {
            "optimization.disable_specified_optimizers",
            "session.disable_prepacking",
            "session.use_device_allocator_for_initializers",
            "session.use_env_allocators",
        }
    ),
    "arena": _ARENA,
    "provider": _ARENA
    | {"cudnn_conv_algo_search", "cudnn_conv_use_max_workspace", "gpu_mem_limit", "use_tf32"},
    "run_config": frozenset({"memory.enable_memory_arena_shrinkage"}),
}
"""Options that neither write a file nor load code, by their scope."""


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
        strange = sorted(set(getattr(recorded.settings, scope)) - set(believed))
        if strange:
            raise ModelError(
                f"the model's {SETTINGS} set {strange[0][:80]!r}, which memplan never does",
                hint="the file was made or changed by something else; load it with ONNX "
                "Runtime itself if you trust it",
            )
    if recorded.provider == CPU and recorded.settings.provider:
        raise ModelError(f"the model's {SETTINGS} have options of {CPU}, which has none")
