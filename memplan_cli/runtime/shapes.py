"""Shapes that ONNX's inference does not know, from ONNX Runtime's inference or from a run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.symbolic.dims import parse_dim
from memplan_cli.core.symbolic.polynomials import symbol_names
from memplan_cli.core.symbolic.sizes import BITS
from memplan_cli.runtime.profile.type_names import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onnx import ModelProto

    from memplan_cli.core.program import Dim, Shape
    from memplan_cli.onnx_io.shapes.bindings import Bindings, Known
    from memplan_cli.onnx_io.shapes.runtime_query import NumberedModel
    from memplan_cli.runtime.workers.session_profile import Kernel

_TYPES_JOB = "memplan_cli.runtime.graph.dump_job:session_types"

_LOAD_TIMEOUT = 120.0
"""Seconds to load a model; afterwards its sizes stay unknown."""


def inferred_shapes(
    model: ModelProto, bindings: Bindings, names: set[str]
) -> tuple[Known, str]:
    """Return the shapes that ONNX Runtime infers for values of the top block.

    Args:
        model: the model.
        bindings: values of its dims.
        names: the values whose shapes are wanted.

    Returns:
        Dtype and shape by name, of the values that it infers, and the error if the model does not
        load, else ``""``.
    """
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
        outcome = run_job(_TYPES_JOB, job, timeout=_LOAD_TIMEOUT)
    if not outcome.ok:
        return {}, outcome.reason
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


def largest_shapes(copy: NumberedModel, kernels: Iterable[Kernel]) -> Known:
    """Return dtype and largest shape of every value in the kernels of a run, by its id.

    Args:
        copy: the model that was run, with the ids of its values by node.
        kernels: of the run.
    """
    shapes: dict[str, tuple[str, Shape]] = {}
    for kernel in kernels:
        for ids, tensors in (
            (copy.reads.get(kernel.node), kernel.read),
            (copy.writes.get(kernel.node), kernel.wrote),
        ):
            if ids is not None and len(ids) == len(tensors):
                for name, (runtime_type, shape) in zip(ids, tensors, strict=True):
                    before = shapes.get(name)
                    largest = tuple(shape) if before is None else _largest(before[1], shape)
                    shapes[name] = (dtype_of(runtime_type), largest)
    return {name: (dtype, shape) for name, (dtype, shape) in shapes.items() if dtype in BITS}


def _largest(before: Shape, shape: Sequence[int]) -> Shape:
    """Return the larger size of each dim; the later shape if the ranks differ."""
    if len(before) != len(shape):
        return tuple(shape)
    pairs = zip(before, shape, strict=True)
    return tuple(max(old, new) for old, new in pairs if isinstance(old, int))
