"""The runtime's own graph of a model, written by a session that runs nothing.

Weights are left out where the system has a place that swallows them: the graph is read for
its nodes, and what a session wrote once more would take its size on disk and its time.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import UNOPTIMISED, RuntimeSettings
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.workers.spec import SessionSpec

_OUTSIDE = "1024"
"""Bytes from which a weight goes to a file of its own: values that decide shapes stay."""

NOT_PACKED = RuntimeSettings(session_config={"session.disable_prepacking": "1"})
"""The graph is the same, and made without a packed copy of the weights."""

Types = dict[str, list[object]]


def into(out: Path) -> RuntimeSettings:
    """Return what has a session write its graph there, with its weights beside it."""
    return RuntimeSettings(
        session={"optimized_model_filepath": str(out)},
        session_config={
            "session.optimized_model_external_initializers_file_name": f"{out.name}.data",
            "session.optimized_model_external_initializers_min_size_in_bytes": _OUTSIDE,
        },
    )


def write_graph(spec: SessionSpec, out: Path) -> Types:
    """Write the graph that a session with these settings runs; return what it knows of types.

    Of each value at the top: its type, and its dims as far as the runtime infers them. None
    where it refuses the graph without its weights.
    """
    data = out.with_name(f"{out.name}.data")
    with suppress(OSError, NotImplementedError):
        data.symlink_to(os.devnull)
    level = spec.settings.session.get("graph_optimization_level", "ORT_ENABLE_ALL")
    wanted = RuntimeSettings(
        session={"graph_optimization_level": level},
        session_config=spec.settings.session_config,
    )
    make_session(spec.model, wanted.updated(NOT_PACKED).updated(into(out)), spec.provider)
    data.unlink(missing_ok=True)
    return types_of(out, spec.provider)


def types_of(graph: Path, provider: str) -> Types:
    """Return type and dims of every value at the top of a graph; nothing where it is refused."""
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.runs.prepared_models import give_every_output
    from memplan_cli.onnx_io.shapes.light_model import light_copy

    twin = light_copy(load_model(graph))
    give_every_output(twin.graph)
    try:
        session = make_session(twin.SerializeToString(), UNOPTIMISED, provider)
    except Exception:  # noqa: BLE001 - some kernels insist on weights that they know
        return {}
    return types_of_outputs(session)


def types_of_outputs(session: Any) -> Types:  # noqa: ANN401 - ONNX Runtime has no types
    """Return type and dims of the tensors that a session gives; None is an unknown dim."""
    found: Types = {}
    for output in session.get_outputs():
        if output.type.startswith("tensor("):
            shape = [dim if isinstance(dim, int | str) else None for dim in output.shape]
            found[output.name] = [dtype_of(output.type), shape]
    return found
