"""Shapes that ONNX Runtime knows and ONNX inference does not: from its inference, or from a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.type_names import dtype_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.bindings import Bindings, Known
    from memplan_cli.onnx_io.shapes.runtime_query import NumberedModel

_LOAD_TIMEOUT = 120.0
"""Seconds to load a model; without an answer, sizes stay unknown."""


def inferred_shapes(
    model: ModelProto, bindings: Bindings, names: set[str]
) -> tuple[Known, str]:
    """Return what a session says of the named values of the top block, or why there is none."""
    from memplan_cli.core.results.observations import CPU, UNOPTIMISED
    from memplan_cli.core.serialization import to_json
    from memplan_cli.onnx_io.shapes.runtime_query import runtime_query
    from memplan_cli.onnx_io.shapes.workarounds import unreliable_values
    from memplan_cli.runtime.workers.spec import SessionSpec
    from memplan_cli.runtime.workers.worker import run_job

    names = names - unreliable_values(model.graph)
    if not names:
        return {}, ""
    query = runtime_query(model, bindings, names)
    with tempfile.TemporaryDirectory(prefix="memplan-shapes-") as folder:
        file = Path(folder) / "model.onnx"
        file.write_bytes(query.data)
        job = {"session": to_json(SessionSpec(file, CPU, UNOPTIMISED))}
        outcome = run_job("dump", job, timeout=_LOAD_TIMEOUT)
    if not outcome.ok:
        return {}, outcome.reason
    types: Any = outcome.result["types"]
    found: dict[str, tuple[str, Shape]] = {}
    for name, (dtype, dims) in types.items():
        # No dims can mean a scalar or that not even the rank is known: the runtime says
        # the same of both, and a scalar that is none would be planned in four bytes.
        if dtype in BITS and name in names and dims:
            found[name] = (dtype, tuple(_dim(dim, query.symbols) for dim in dims))
    return found, ""


def _dim(dim: Dim, symbols: frozenset[str]) -> Dim:
    """Keep numbers, and names that the model's inputs have: others the runtime made up."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim if dim and symbol_names(parse_dim(dim)) <= symbols else None


def shapes_of(copy: NumberedModel, nodes: Any) -> Known:  # noqa: ANN401 - JSON of a worker
    """Return the largest shape that a run shows of every value, by its id."""
    found: dict[str, tuple[str, Shape]] = {}
    for node, read, written in nodes:
        for names, seen in ((copy.reads.get(node), read), (copy.writes.get(node), written)):
            if names is not None and len(names) == len(seen):
                for name, (kind, shape) in zip(names, seen, strict=True):
                    _widen(found, name, (dtype_of(kind), tuple(shape)))
    return {name: facts for name, facts in found.items() if facts[0] in BITS}


def _widen(
    found: dict[str, tuple[str, Shape]], name: str, seen: tuple[str, Sequence[Dim]]
) -> None:
    dtype, shape = seen
    before = found.get(name)
    if before is not None and len(before[1]) == len(shape):
        pairs = zip(before[1], shape, strict=True)
        shape = [max(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    found[name] = (dtype, tuple(shape))
