"""The graph that ONNX Runtime makes of a model, and the types that it infers for its values."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan_cli.core.results.observations import UNOPTIMIZED, RuntimeSettings
from memplan_cli.onnx_io.graph_editor import keep
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.profile.type_names import dtype_of
from memplan_cli.runtime.workers.session import make_session

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.runtime.workers.spec import SessionSpec

_MIN_EXTERNAL_BYTES = "1024"
"""Weights from this size on go to an external file; small ones, which decide shapes, do not."""

_MULTIPLE_OF_BLOCKS = 64
"""A number of channels that every possible block size divides."""

NOT_PACKED = RuntimeSettings(session_config={"session.disable_prepacking": "1"})
"""Settings of a session whose graph is written without packed copies of the weights."""

Types = dict[str, list[Any]]
"""``[dtype, dims]`` of values by name; a dim is a number, a symbol, or None if it is unknown."""


def write_session_graph(spec: SessionSpec, out: Path) -> None:
    """Write the graph of a session to a file.

    Large weights are written to ``<name of the file>.data`` beside it.
    """
    writing = RuntimeSettings(
        session={"optimized_model_filepath": str(out)},
        session_config={
            "session.optimized_model_external_initializers_file_name": f"{out.name}.data",
            "session.optimized_model_external_initializers_min_size_in_bytes": (
                _MIN_EXTERNAL_BYTES
            ),
        },
    )
    session = spec.updated(writing).create()
    # Before IR version 4, weights are inputs too. ONNX Runtime may leave the input of a weight that it removes. Such
    # inputs, which callers would have to feed, are removed.
    model = load_model(out)  # without external weights, so that it is cheap to write again
    known = {
        each.name for each in (*session.get_inputs(), *session.get_overridable_initializers())
    }
    if any(value.name not in known for value in model.graph.input):
        keep(model.graph.input, lambda value: value.name in known)
        out.write_bytes(model.SerializeToString())


def graph_settings(settings: RuntimeSettings) -> RuntimeSettings:
    """Return the settings that decide what graph a session makes: its level and config entries."""
    level = settings.session.get("graph_optimization_level", "ORT_ENABLE_ALL")
    return RuntimeSettings(
        session={"graph_optimization_level": level}, session_config=settings.session_config
    )


def write_light_graph(spec: SessionSpec, out: Path) -> Types:
    """Write the graph that a session would run, without large weights; return its `inferred_types`.

    The weights are written to the null device, where there is one: a copy of them would take
    time and their size on disk. They are not packed, because packed copies do not change the graph.

    Only the `graph_settings` of the session are used.
    """
    weights = out.with_name(f"{out.name}.data")
    with suppress(OSError, NotImplementedError):
        weights.symlink_to(os.devnull)
    settings = graph_settings(spec.settings).updated(NOT_PACKED)
    try:
        write_session_graph(replace(spec, settings=settings), out)
    finally:
        weights.unlink(missing_ok=True)
    return inferred_types(out, spec.provider)


def inferred_types(graph: Path, provider: str) -> Types:
    """Return the types that ONNX Runtime infers for the values of the top block of a graph.

    Empty if no session can be created on a copy of the graph without its weights.
    """
    from memplan_cli.onnx_io.runs.prepared_models import give_every_output
    from memplan_cli.onnx_io.shapes.light_model import light_copy

    copy = light_copy(load_model(graph))
    give_every_output(copy.graph)
    try:
        session = make_session(copy.SerializeToString(), UNOPTIMIZED, provider)
    except Exception:  # noqa: BLE001 - some kernels need the values of their weights
        return {}
    return output_types(session)


def output_types(session: Any) -> Types:  # noqa: ANN401 - ONNX Runtime has no types
    """Return the types of the outputs of a session that are tensors."""
    types: Types = {}
    for output in session.get_outputs():
        if output.type.startswith("tensor("):
            dims = [dim if isinstance(dim, int | str) else None for dim in output.shape]
            types[output.name] = [dtype_of(output.type), dims]
    return types


def block_size() -> int:
    """Return how many channels a block has in the CPU's blocked layout, on this machine.

    A session reorders a tensor of ``[1, 64, 1, 2]`` with elements 0, 1, 2, ... In the result, the
    second element of the first channel, 1, follows the first elements of the first block.
    """
    import numpy as np

    from memplan_cli.core.results.observations import CPU
    from memplan_cli.onnx_io.runs.prepared_models import model_in_blocks

    dims = 1, _MULTIPLE_OF_BLOCKS, 1, 2
    session = make_session(model_in_blocks(dims).SerializeToString(), RuntimeSettings(), CPU)
    elements = np.arange(2 * _MULTIPLE_OF_BLOCKS, dtype=np.float32).reshape(dims)
    reordered = np.asarray(session.run(None, {"x": elements})[0]).ravel()
    return int(np.flatnonzero(reordered == 1.0)[0])
