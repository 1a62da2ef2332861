"""Have the runtime write its own graph for a provider, and the one without costly fusions."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping  # noqa: TC003 - a type to read by
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.operators import NCHWC
from memplan_cli.core.results.observations import CPU, UNOPTIMISED, RuntimeSettings
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.types import declared_bytes, dtype_name
from memplan_cli.onnx_io.writing.columns import (
    cut_columns,
    has_large_operand,
    reads_large_inside,
)
from memplan_cli.onnx_io.writing.fills import make_fills
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import without_fusions
from memplan_cli.runtime.workers.blocks import block_size
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.session_graph import NOT_PACKED, into, types_of

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.runtime.workers.session_graph import Types
    from memplan_cli.runtime.workers.worker import Json


@dataclass(frozen=True, slots=True)
class OfflineDump:
    """What is to be dumped.

    Attributes:
        model: the file.
        provider: for which it is optimised.
        settings: of the session: its level, how weights are packed.
        fused: where the graph goes, its weights beside it.
        unfused: where that without costly fusions goes, if there are any.
        dims: values of symbolic dims, by which sizes of results are known.
        in_pieces: whether large constant operands of products are cut into columns.
    """

    model: Path
    provider: str
    settings: RuntimeSettings
    fused: Path
    unfused: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    in_pieces: bool = False


def run(job: Json) -> Json:
    """Write the graphs; return, by file name, the inferred types and the number of cut products."""
    asked = from_json(OfflineDump, job["dump"], "the job")
    found = {asked.fused.name: _dumped(asked, asked.fused, asked.settings)}
    kinds = {n.op_type for g in graphs(load_model(asked.fused).graph) for n in g.node}
    costly = [fusion for kind, fusion in PROFILE.costly_fusions.items() if kind in kinds]
    if costly and asked.unfused is not None:
        settings = asked.settings.updated(without_fusions(costly))
        found[asked.unfused.name] = _dumped(asked, asked.unfused, settings)
    return {"graphs": found, "block": block_size() if _has_blocks(asked.fused) else 0}


def _has_blocks(path: Path) -> bool:
    """Whether a graph has convolutions over blocks of channels."""
    return any(n.domain == NCHWC for g in graphs(load_model(path).graph) for n in g.node)


def _dumped(asked: OfflineDump, out: Path, settings: RuntimeSettings) -> object:
    """Write one graph; return its types and the number of cut products."""
    found = _dumped_in_pieces(asked, out, settings) if asked.in_pieces else None
    if found is not None:
        return found
    _dump(asked.model, asked.provider, out, settings)
    types = types_of(out, asked.provider)
    model = load_model(out)
    if _filled(asked, model, out.parent, types):
        out.write_bytes(model.SerializeToString())
    return {"types": types, "cut": 0}


def _dumped_in_pieces(asked: OfflineDump, out: Path, settings: RuntimeSettings) -> object:
    """Write a graph without packed weights, cut its large operands, and dump it packed.

    An operand that is cut is never packed whole. Returns None if no operand is cut, because the
    order of a graph that is dumped twice may change.
    """
    # What is read and what is written have one name, and so two folders.
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        plain = Path(folder) / out.name
        _dump(asked.model, asked.provider, plain, settings.updated(NOT_PACKED))
        types = types_of(plain, asked.provider)
        model = load_model(plain)
        _filled(asked, model, plain.parent, types)
        pieces = _cut(asked, model, plain.with_suffix(".pieces"), types)
        if not pieces:
            return None
        plain.write_bytes(model.SerializeToString())
        _dump(plain, asked.provider, out, settings.updated(UNOPTIMISED))
    for piece, (whole, columns) in pieces.items():
        if whole in types:
            types[piece] = _with_columns(types[whole], columns)
    cut = len({whole for whole, _ in pieces.values()})
    return {"types": types, "cut": cut}


def _cut(
    asked: OfflineDump, model: ModelProto, data: Path, types: Types
) -> dict[str, tuple[str, int]]:
    """Cut large operands of products into columns; return the pieces of results."""
    if not has_large_operand(model):
        return {}
    made = {**_bytes_inside(model, asked.dims), **_bytes(types, asked.dims)}
    return cut_columns(model, data, made)


def _filled(asked: OfflineDump, model: ModelProto, folder: Path, types: Types) -> bool:
    """Have a run make constants of one value, and say their types; whether there were any."""
    if asked.provider != CPU:
        return False
    fills = make_fills(model, folder, _bytes(types, asked.dims))
    for name, constant in fills.items():
        types[name] = [dtype_name(constant.data_type), list(constant.dims)]
    return bool(fills)


def _with_columns(kind: list[object], columns: int) -> list[object]:
    """Return a value's type with so many columns; what has no dims has no known rank."""
    dtype, shape = cast("tuple[str, list[object]]", kind)
    return [dtype, [*shape[:-1], columns] if shape else shape]


def _bytes_inside(model: ModelProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the most bytes of each value of subgraphs, by name, where one could be cut."""
    if not reads_large_inside(model):
        return {}
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program
    from memplan_cli.runtime.simulate.trace import tensor_bytes

    program = read_program(model, Bindings(dims)).program
    found: dict[str, int] = {}
    for identity, size in tensor_bytes(program, dims).items():
        var = program.vars[identity]
        if var.block:
            found[var.name] = max(size, found.get(var.name, 0))
    return found


def _bytes(types: Types, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of the values whose dims are known."""
    said = cast("Mapping[str, tuple[str, list[int | str | None]]]", types)
    sizes = {name: declared_bytes(*kind, dims) for name, kind in said.items()}
    return {name: size for name, size in sizes.items() if size is not None}


def _dump(model: Path, provider: str, out: Path, settings: RuntimeSettings) -> None:
    make_session(model, settings.updated(into(out)), provider)
