"""Offline optimization: the graph as the runtime optimizes it, written as a model of its own.

The written model is run without optimization. It is tied to the version of the runtime and, at
the level that changes layouts, to the hardware on which it was made; its metadata states both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self

from memplan_cli.core.names import FreshNames
from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.loading.settings import RUNTIME
from memplan_cli.onnx_io.interface import free_dims
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import HARDWARE
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.prepacked import write_on_pages
from memplan_cli.onnx_io.weights.tensor_data import sparse_weights
from memplan_cli.onnx_io.writing.structure import checked
from memplan_cli.runtime.graph.dump_job import OfflineDump
from memplan_cli.runtime.graph.dumps import bound_shapes, runtime_shapes, with_distinct_names
from memplan_cli.runtime.installed import hardware
from memplan_cli.runtime.run.run_model import require_weights, shapes_of_types
from memplan_cli.runtime.workers.spec import SessionSpec
from memplan_cli.runtime.workers.worker import start_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Program, Var
    from memplan_cli.runtime.run.run_model import RuntimeShapes
    from memplan_cli.runtime.workers.session_graph import Types

_OFFLINE_JOB = "memplan_cli.runtime.graph.dump_job:write_offline_graphs"

_GENERATED_NUMBER = re.compile(r"_token_\d+$")
"""The suffix by which the runtime makes a name that it generates unique."""

_SAVE_PACKED = "session.save_external_prepacked_constant_initializers"
"""ONNX Runtime's option: ``"1"`` writes packed weights to the file of a graph, beside the weights."""


class Packing(Enum):
    """Where weights are packed into the layout that kernels use."""

    AT_LOAD = "at load"
    """By each session, in its arena."""
    IN_FILE = "in the file"
    """Beforehand. The file gets up to twice as large, and is mapped."""
    IN_PIECES = "in the file, large operands in pieces"
    """Beforehand, with large operands cut into pieces: a session packs an operand before it finds
    the packed copy in the file, so a whole one would raise the load peak."""


def packing_for(provider: str, model: ModelProto) -> Packing:
    """Return how the weights of a model are packed for a provider.

    ONNX Runtime does not store packed weights of a graph with a sparse initializer (measured).
    """
    sparse = (weight for graph in graphs(model.graph) for weight in sparse_weights(graph))
    if provider != CPU or any(sparse):
        return Packing.AT_LOAD
    from memplan_cli.onnx_io.writing.columns import has_large_operand

    # Only large operands raise the load peak noticeably when they are packed. Cutting them takes longer: one session
    # writes the optimized graph, and a second one packs the weights of the graph with cut operands.
    return Packing.IN_PIECES if has_large_operand(model) else Packing.IN_FILE


@dataclass(frozen=True, slots=True)
class Dump:
    """A file with the graph that the runtime optimized.

    Attributes:
        path: the file; weights are in a file beside it.
        shapes: what the runtime infers for values of the main graph.
        block: channels in a block of the runtime's blocked layouts; 0 if none is used.
    """

    path: Path
    shapes: RuntimeShapes = field(repr=False)
    block: int = 0


class DumpJob:
    """A worker job that writes optimized graphs; used as a context manager, which ends it."""

    def __init__(
        self,
        model: Path,
        out: Sequence[Path],
        provider: str = CPU,
        packing: Packing = Packing.AT_LOAD,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        """Start to write the graph at the highest optimization level.

        Args:
            model: the file.
            out: the file for the graph, and optionally a second file, for the graph without fused ops whose
                kernels need large temporary buffers. The second file is written only if the graph has such ops.
            provider: the provider for which the graph is optimized.
            packing: where weights are packed: by each session, or in the written files (`Packing`).
            dims: values of symbolic dims.

        Raises:
            RuntimeUnavailableError: weights are missing.
        """
        require_weights(model)
        settings = RuntimeSettings(
            # On CPU only this level has blocked layouts, without which convolutions take up to three times as long.
            session={"graph_optimization_level": "ORT_ENABLE_ALL"},
            session_config={_SAVE_PACKED: "0" if packing is Packing.AT_LOAD else "1"},
        )
        request = OfflineDump(
            SessionSpec(model, provider, settings),
            fused=out[0],
            unfused=out[1] if len(out) > 1 else None,
            dims=dims or {},
            in_pieces=packing is Packing.IN_PIECES,
        )
        self._model, self._out, self._provider = model, tuple(out), provider
        self._job = start_job(_OFFLINE_JOB, {"dump": to_json(request)})

    def __enter__(self) -> Self:
        """Return the job itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the job if it still runs."""
        self._job.end()

    def result(self) -> tuple[Dump, ...]:
        """Wait for the job, tidy the files that it has written, and return them.

        Raises:
            RuntimeUnavailableError: the model does not load.
        """
        # The keys are those of `dump_job.write_offline_graphs`.
        answer = self._job.outcome().require(f"{self._model} does not load")
        types_by_file: Mapping[str, Types] = answer["types"]
        channels_in_block: int = answer["block"]  # on this machine, in any graph
        original = load_model(self._model)
        dumps = []
        for path in self._out:
            if path.name not in types_by_file:
                continue  # the second graph, which is not always written
            _tidy_dump(path, original)
            inferred = shapes_of_types(types_by_file[path.name])
            shapes = inferred or runtime_shapes(path, self._provider)
            dumps.append(Dump(path, shapes, channels_in_block))
        return tuple(dumps)


def _tidy_dump(dump: Path, original: ModelProto) -> None:
    """Rewrite the file of a dump: with deterministic names, and without types that can be inferred.

    Large weights are in ``<name>.data`` beside the file. ``original`` is the model that was optimized.
    """
    model = with_distinct_names(load_model(dump))
    renumber_generated_names(model, original)
    drop_inferable_types(model)  # a session holds all declared types
    # Raises an error if these changes made a valid graph invalid (the file still has the graph before them), or if
    # the inputs are not those of the original.
    checked(model, source=lambda: load_model(dump), fed_like=original)
    data = dump.with_name(f"{dump.name}.data")
    if data.exists():
        # The runtime writes packed weights unaligned, and crashes when it maps them so.
        write_on_pages(model, data)
    dump.write_bytes(model.SerializeToString())


def drop_inferable_types(dump: ModelProto) -> None:
    """Drop declared types in place, except those of outputs of non-standard operators.

    The runtime declares every value that the graph ever had, and a session keeps all
    declarations in memory. Only types that ONNX inference cannot find are needed.
    """
    for graph in graphs(dump.graph):
        needed = {
            name
            for node in graph.node
            if node.domain not in STANDARD_DOMAINS
            for name in node.output
        }
        kept = [value for value in graph.value_info if value.name in needed]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def renumber_generated_names(dump: ModelProto, original: ModelProto) -> None:
    """Number the generated node names of a dump by node order, in place.

    The runtime numbers the names that it generates in the order in which it creates nodes, which
    differs from session to session for blocked layouts (measured). Names of nodes of the original
    and of tensors stay, and nodes without a name get none.
    """
    original_names = {node.name for graph in graphs(original.graph) for node in graph.node}
    names = FreshNames(original_names, separator="_token_")
    for graph in graphs(dump.graph):
        for node in graph.node:
            if node.name and node.name not in original_names:
                node.name = names.fresh(_GENERATED_NUMBER.sub("", node.name))


def offline_metadata(version: str, provider: str) -> Mapping[str, str]:
    """Return the model metadata that states the runtime and hardware of an offline file."""
    return {
        RUNTIME: f"onnxruntime {version} {provider}",
        HARDWARE: hardware(),
    }


def offline_program(
    dump: Path,
    dims: Mapping[str, int],
    provider: str,
    shapes: RuntimeShapes | None = None,
) -> Program:
    """Return the program of a file that has the graph as ONNX Runtime optimized it.

    Shapes that ONNX inference leaves open are those that the runtime infers. They are given as ``shapes``; if
    these are None and a shape is open, a session of the file infers them.

    Raises:
        RuntimeUnavailableError: the file does not load.
    """
    model = load_model(dump)
    program = read_checked(model, Bindings(dims=dims)).program
    open_values = {var.name for var in program.vars.values() if _is_open(var)}
    if not open_values:
        return program
    inferred = runtime_shapes(dump, provider) if shapes is None else shapes
    missing = {name: shape for name, shape in inferred.items() if name in open_values}
    known_shapes = bound_shapes(missing, dims, free_dims(model))
    return read_checked(model, Bindings(dims=dims, known=known_shapes)).program


def _is_open(var: Var) -> bool:
    """Return whether ONNX inference leaves the dtype or a dim of a value unknown."""
    return var.shape is None or None in var.shape or var.dtype == "unknown"
