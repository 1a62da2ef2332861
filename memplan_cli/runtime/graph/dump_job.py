"""Jobs in which ONNX Runtime writes the graph that it makes of a model, or infers its types."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping  # noqa: TC003 - a type to read by
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.core.deserialization import from_json
from memplan_cli.core.operators import NCHWC
from memplan_cli.core.results.observations import CPU, UNOPTIMIZED
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.types import declared_bytes, dtype_name
from memplan_cli.onnx_io.writing.columns import (
    cut_columns,
    has_large_operand,
    reads_large_inside,
)
from memplan_cli.onnx_io.writing.fills import make_fills
from memplan_cli.onnx_io.writing.structure import checked
from memplan_cli.runtime.profile.record import PROFILE
from memplan_cli.runtime.profile.workspace import without_fusions
from memplan_cli.runtime.workers.session_graph import (
    NOT_PACKED,
    block_size,
    graph_settings,
    inferred_types,
    output_types,
    write_light_graph,
    write_session_graph,
)
from memplan_cli.runtime.workers.spec import SessionSpec

if TYPE_CHECKING:
    from onnx import ModelProto

    from memplan_cli.core.json_types import Json
    from memplan_cli.runtime.workers.session_graph import Types


def session_types(job: Json) -> Json:
    """Job: create a session, and return the ``types`` of its outputs.

    Args:
        job: ``session`` is a `SessionSpec`.
    """
    return {"types": output_types(SessionSpec.of_job(job).create())}


def write_light_dump(job: Json) -> Json:
    """Job: write the graph of a session without its weights, and return the ``types`` of its values.

    Args:
        job: ``session`` is a `SessionSpec`, ``out`` the file for the graph.
    """
    return {"types": write_light_graph(SessionSpec.of_job(job), Path(job["out"]))}


def write_whole_dump(job: Json) -> Json:
    """Job: write the graph of a session, and its weights beside it.

    The session has only the settings that decide its graph. A light dump leaves the weights out.

    Args:
        job: as for `write_light_dump`.
    """
    session = SessionSpec.of_job(job)
    write_session_graph(
        replace(session, settings=graph_settings(session.settings)), Path(job["out"])
    )
    return {}


@dataclass(frozen=True, slots=True)
class OfflineDump:
    """A request for the optimized graph of a model, with packed weights.

    Attributes:
        session: the session that writes the graph; its settings say how weights are packed.
        fused: the file for the graph; its weights are written beside it.
        unfused: the file for the graph without costly fusions, written if there are any.
        dims: values of symbolic dims, from which sizes of results are computed.
        in_pieces: whether large constant operands of matrix products are cut into columns.
    """

    session: SessionSpec
    fused: Path
    unfused: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    in_pieces: bool = False


def write_offline_graphs(job: Json) -> Json:
    """Job: write the optimized graph of a model, and the one without costly fusions.

    Args:
        job: ``dump`` is an `OfflineDump`.

    Returns:
        ``types`` has the inferred types of the values of each file that was written, by its name;
        ``block`` is the number of channels in a block of the blocked layout, 0 if the graph does not use it.
    """
    dump = from_json(OfflineDump, job["dump"], "the job")
    dumped = {dump.fused.name: _write_offline(dump, dump.fused)}
    nodes = [node for graph in graphs(load_model(dump.fused).graph) for node in graph.node]
    op_types = {node.op_type for node in nodes}
    costly = [fusion for op, fusion in PROFILE.costly_fusions.items() if op in op_types]
    if costly and dump.unfused is not None:
        session = dump.session.updated(without_fusions(costly))
        without_costly = replace(dump, session=session)
        dumped[dump.unfused.name] = _write_offline(without_costly, dump.unfused)
    is_blocked = any(node.domain == NCHWC for node in nodes)
    return {"types": dumped, "block": block_size() if is_blocked else 0}


def _write_offline(dump: OfflineDump, out: Path) -> Types:
    """Write one graph with packed weights to a file; return the inferred types of its values.

    Large constants of equal elements are replaced by nodes that compute them. With ``dump.in_pieces``, large
    operands are cut into pieces.
    """
    if dump.in_pieces:
        types_with_pieces = _write_in_pieces(dump, out)  # replaces constants too
        # None: there is nothing to cut, and `out` is not written yet.
        if types_with_pieces is not None:
            return types_with_pieces
    write_session_graph(dump.session, out)
    types = inferred_types(out, dump.session.provider)
    model = load_model(out)
    new_types = _replace_uniform_constants(dump, model, out.parent, types)
    if new_types:  # then `model` is no longer the graph in the file
        _overwrite(out, model)
    return types | new_types


def _write_in_pieces(dump: OfflineDump, out: Path) -> Types | None:
    """Write a graph in which large constant operands are cut into columns before they are packed.

    Loading takes less memory then: it holds one piece twice, not a whole operand. The steps are:

    1. A session optimizes the graph, and writes it with weights that are not packed.
    2. Constants of equal elements are replaced by nodes that compute them, so that step 3 does not cut them.
    3. Large constant operands are cut; their pieces are written to a data file of their own.
    4. A second session loads the result, optimizes nothing, and writes ``out`` with packed weights.

    Returns:
        The types of the values, results of pieces included. None if there is nothing to cut, and ``out`` is
        not written: the caller writes it with one session, because a second one may change the order of the
        nodes.
    """
    # Both sessions name their files after ``out``. In a folder of its own, the first dump is not overwritten.
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        unpacked = Path(folder) / out.name
        write_session_graph(dump.session.updated(NOT_PACKED), unpacked)
        types = inferred_types(unpacked, dump.session.provider)
        model = load_model(unpacked)
        types |= _replace_uniform_constants(dump, model, unpacked.parent, types)
        if not has_large_operand(model):
            return None
        sizes = {**_bytes_in_subgraphs(model, dump.dims), **_known_bytes(types, dump.dims)}
        # The result of each piece -> the result of the whole product, and the columns of the piece.
        pieces = cut_columns(model, unpacked.with_suffix(".pieces"), sizes)
        if not pieces:
            return None
        _overwrite(unpacked, model)
        packing_session = replace(dump.session, model=unpacked).updated(UNOPTIMIZED)
        write_session_graph(packing_session, out)
    for piece, (whole, columns) in pieces.items():
        if whole in types:
            dtype, dims = types[whole]
            # No dims mean an unknown rank.
            types[piece] = [dtype, [*dims[:-1], columns] if dims else []]
    return types


def _overwrite(dump: Path, changed: ModelProto) -> None:
    """Write a dump again after it was changed; fails if a change broke a rule of ONNX."""
    checked(changed, lambda: load_model(dump))
    dump.write_bytes(changed.SerializeToString())


def _replace_uniform_constants(
    dump: OfflineDump, model: ModelProto, folder: Path, types: Types
) -> Types:
    """Replace large constants of equal elements by nodes that compute them, in place; only on the CPU.

    An op can write its result over a computed operand, but must copy a constant one. ``types`` are those of
    the model. Returns the types of the new values, none if there was no such constant.
    """
    if dump.session.provider != CPU:
        return {}
    fills = make_fills(model, folder, _known_bytes(types, dump.dims))
    return {
        name: [dtype_name(constant.data_type), list(constant.dims)]
        for name, constant in fills.items()
    }


def _bytes_in_subgraphs(model: ModelProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of values in subgraphs, by name, as `cut_columns` needs them.

    Of values with the same name in several subgraphs, the largest counts. The result is empty if no matrix product
    in a subgraph has a large operand: `cut_columns` needs no bytes then, and reading the program is slow.
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
