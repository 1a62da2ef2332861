"""Shapes that ONNX inference does not find, from the inference of ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.core.symbolic.sizes import BITS

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.bindings import Bindings, Known

_TYPES_JOB = "memplan_cli.runtime.graph.dump_job:session_types"

_LOAD_TIMEOUT = 120.0
"""Seconds to load a model; afterwards its sizes stay unknown."""


def inferred_shapes(
    model: ModelProto, path: Path, bindings: Bindings, names: set[str]
) -> tuple[Known, str]:
    """Return dtype and shape of the named values of the top block, as ONNX Runtime infers them.

    Values that it does not infer are left out. The second result is the error if the model does not
    load, else ``""``; it names the file ``path``, not the copy that was loaded.
    """
    from memplan_cli.core.results.observations import CPU, UNOPTIMIZED
    from memplan_cli.core.serialization import to_json
    from memplan_cli.onnx_io.shapes.onnx_inference import unreliable_values
    from memplan_cli.onnx_io.shapes.runtime_query import runtime_query
    from memplan_cli.runtime.workers.spec import SessionSpec
    from memplan_cli.runtime.workers.worker import run_job

    names = names - unreliable_values(model.graph)
    if not names:
        return {}, ""
    query = runtime_query(model, bindings, names)
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(query.data)
        job = {"session": to_json(SessionSpec(file, CPU, UNOPTIMIZED))}
        outcome = run_job(_TYPES_JOB, job, timeout=_LOAD_TIMEOUT)
    if not outcome.ok:
        return {}, outcome.reason.replace(str(file), path.name)
    shapes: dict[str, tuple[str, Shape]] = {}
    for name, (dtype, dims) in outcome.result["types"].items():
        # Without dims, the value is a scalar or its rank is unknown: the runtime does not tell
        # which, and 4 bytes would be too few for the latter.
        if dtype in BITS and name in names and dims:
            shapes[name] = (dtype, tuple(_usable_dim(dim, query.symbols) for dim in dims))
    return shapes, ""


def _usable_dim(dim: Dim, symbols: frozenset[str]) -> Dim:
    """Return a dim if it is a number or has only the given symbols; else None, for unknown.

    The runtime makes up names for other dims.
    """
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim if dim and symbol_names(parse_dim(dim)) <= symbols else None
