"""Jobs in which ONNX Runtime writes the graph that it makes of a model."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping  # noqa: TC003 - a type to read by
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

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
from memplan_cli.runtime.workers.session import make_session
from memplan_cli.runtime.workers.session_graph import (
    NOT_PACKED,
    block_size,
    inferred_types,
    output_types,
    write_graph,
    writes_graph_to,
)
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.session_graph import Types


def write_dump(job: Json) -> Json:
    """Job: create a session, and return the types of its outputs.

    Args:
        job: ``session`` is a `SessionSpec`. With ``out``, the session writes its graph to that
            file and its weights beside it. With ``light``, the weights are left out, and the
            types are those of all values of the top block.
    """
    spec, out = SessionSpec.of_job(job), job.get("out")
    if job.get("light"):
        types = write_graph(spec, Path(job["out"]))
        return {"types": types}
    return {"types": output_types(spec.create(writes_graph_to(Path(out)) if out else None))}


@dataclass(frozen=True, slots=True)
class OfflineDump:
    """A request for the optimized graph of a model, with packed weights.

    Attributes:
        model: the file.
        provider: the provider for which the graph is optimized.
        settings: of the session: its optimization level, and how weights are packed.
        fused: the file for the graph; its weights are written beside it.
        unfused: the file for the graph without costly fusions, written if there are any.
        dims: values of symbolic dims, from which sizes of results are computed.
        in_pieces: whether large constant operands of matrix products are cut into columns.
    """

    model: Path
    provider: str
    settings: RuntimeSettings
    fused: Path
    unfused: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    in_pieces: bool = False


class DumpedGraph(TypedDict):
    """A graph that was written: its inferred types, and how many operands were cut."""

    types: Types
    cut: int


def write_offline_graphs(job: Json) -> Json:
    """Job: write the optimized graph of a model, and the one without costly fusions.

    Args:
        job: ``dump`` is an `OfflineDump`.

    Returns:
        ``graphs`` has a `DumpedGraph` for each file that was written, by name; ``block`` is the
        number of channels in a block of the blocked layout, 0 if the graph does not use it.
    """
    dump = from_json(OfflineDump, job["dump"], "the job")
    dumped = {dump.fused.name: _write_offline(dump, dump.fused, dump.settings)}
    nodes = [node for graph in graphs(load_model(dump.fused).graph) for node in graph.node]
    op_types = {node.op_type for node in nodes}
    costly = [fusion for op, fusion in PROFILE.costly_fusions.items() if op in op_types]
    if costly and dump.unfused is not None:
        settings = dump.settings.updated(without_fusions(costly))
        dumped[dump.unfused.name] = _write_offline(dump, dump.unfused, settings)
    is_blocked = any(node.domain == NCHWC for node in nodes)
    return {"graphs": dumped, "block": block_size() if is_blocked else 0}


def _write_offline(dump: OfflineDump, out: Path, settings: RuntimeSettings) -> DumpedGraph:
    """Write one graph with packed weights to a file."""
    dumped = _write_in_pieces(dump, out, settings) if dump.in_pieces else None
    if dumped is not None:
        return dumped
    _write_session_graph(dump.model, dump.provider, out, settings)
    types = inferred_types(out, dump.provider)
    model = load_model(out)
    if _replace_uniform_constants(dump, model, out.parent, types):
        out.write_bytes(model.SerializeToString())
    return {"types": types, "cut": 0}


def _write_in_pieces(
    dump: OfflineDump, out: Path, settings: RuntimeSettings
) -> DumpedGraph | None:
    """Write a graph in which large operands are cut into columns before they are packed.

    The graph is dumped without packed weights, cut, and dumped again with packed weights.
    Returns None if there is nothing to cut, because the second dump may change the order of nodes.
    """
    # The second dump reads files with the names that it writes, so it needs another folder.
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        unpacked = Path(folder) / out.name
        _write_session_graph(dump.model, dump.provider, unpacked, settings.updated(NOT_PACKED))
        types = inferred_types(unpacked, dump.provider)
        model = load_model(unpacked)
        _replace_uniform_constants(dump, model, unpacked.parent, types)
        pieces = {}
        if has_large_operand(model):
            sizes = {**_bytes_in_subgraphs(model, dump.dims), **_known_bytes(types, dump.dims)}
            pieces = cut_columns(model, unpacked.with_suffix(".pieces"), sizes)
        if not pieces:
            return None
        unpacked.write_bytes(model.SerializeToString())
        _write_session_graph(unpacked, dump.provider, out, settings.updated(UNOPTIMISED))
    for piece, (whole, columns) in pieces.items():
        if whole in types:
            dtype, dims = types[whole]
            # Without dims the rank is unknown.
            types[piece] = [dtype, [*dims[:-1], columns] if dims else dims]
    return {"types": types, "cut": len({whole for whole, _ in pieces.values()})}


def _replace_uniform_constants(
    dump: OfflineDump, model: ModelProto, folder: Path, types: Types
) -> bool:
    """Replace constants of one repeated value by nodes that compute them, on the CPU.

    Changes the model, and adds the types of the new values to ``types``. Returns whether there
    were such constants.
    """
    if dump.provider != CPU:
        return False
    fills = make_fills(model, folder, _known_bytes(types, dump.dims))
    for name, constant in fills.items():
        types[name] = [dtype_name(constant.data_type), list(constant.dims)]
    return bool(fills)


def _bytes_in_subgraphs(model: ModelProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of values in subgraphs, by name, if one of them could be cut.

    Of values with the same name in several subgraphs, the largest counts.
    """
    if not reads_large_inside(model):
        return {}
    from memplan_cli.onnx_io.shapes.bindings import Bindings
    from memplan_cli.onnx_io.shapes.reading import read_program
    from memplan_cli.runtime.simulate.trace import tensor_bytes

    program = read_program(model, Bindings(dims)).program
    sizes: dict[str, int] = {}
    for identity, size in tensor_bytes(program, dims).items():
        var = program.vars[identity]
        if var.block:
            sizes[var.name] = max(size, sizes.get(var.name, 0))
    return sizes


def _known_bytes(types: Types, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of the values whose dims are all known."""
    sizes = {
        name: declared_bytes(dtype, shape, dims) for name, (dtype, shape) in types.items()
    }
    return {name: size for name, size in sizes.items() if size is not None}


def _write_session_graph(
    model: Path, provider: str, out: Path, settings: RuntimeSettings
) -> None:
    make_session(model, settings.updated(writes_graph_to(out)), provider)
