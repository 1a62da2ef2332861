"""The graph as the runtime optimises it, written as a model of its own.

Such a file is run with optimisation off. It is tied to the version of the runtime and, at
the level that changes layouts, to the hardware it was made on; its metadata says both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.results.observations import CPU, RuntimeSettings
from memplan_cli.core.serialization import to_json
from memplan_cli.onnx_io.graph_editor import FreshNames
from memplan_cli.onnx_io.interface import forget_constant_inputs, free_dims
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import HARDWARE, RUNTIME
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.prepacked import hoist_packed, write_on_pages
from memplan_cli.onnx_io.weights.tensor_data import sparse_weights
from memplan_cli.runtime.graph.distinct_names import with_distinct_names
from memplan_cli.runtime.graph.executed import bound_shapes, runtime_shapes
from memplan_cli.runtime.installed import hardware
from memplan_cli.runtime.run.record import shapes_of_types
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.workers.worker import start_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Program, Var
    from memplan_cli.runtime.run.record import RuntimeShapes

COUNTED = re.compile(r"_token_\d+$")
"""What the runtime puts behind a name that is taken."""

_PACKED = "session.save_external_prepacked_constant_initializers"


class Packing(Enum):
    """Where weights are put into the form that the kernels want."""

    AT_LOAD = "at load"
    """In the arena, by each session."""
    IN_FILE = "in the file"
    """Beforehand: the file gets up to twice as large, and is mapped."""
    IN_PIECES = "in the file, large operands in pieces"
    """The same, with large operands in pieces: a session packs an operand before it knows whether
    a packed one is stored."""


def packing_for(provider: str, model: ModelProto) -> Packing:
    """Return how the weights of a model are packed for a provider.

    ONNX Runtime does not store packed weights of a graph with a sparse initializer (measured).
    """
    sparse = (weight for graph in graphs(model.graph) for weight in sparse_weights(graph))
    if provider != CPU or any(sparse):
        return Packing.AT_LOAD
    from memplan_cli.onnx_io.writing.columns import has_large_operand

    return Packing.IN_PIECES if has_large_operand(model) else Packing.IN_FILE


@dataclass(frozen=True, slots=True)
class Dump:
    """A graph that the runtime wrote, and the types that it infers in it.

    ``block`` is how many channels lie beside each other where it lays them out in blocks.
    """

    path: Path
    shapes: RuntimeShapes = field(repr=False)
    block: int = 0
    cut: int = 0
    """Products whose large operand is in pieces."""


class Dumping:
    """A dump under way, that ends with the block in which it is used."""

    def __init__(
        self,
        model: Path,
        out: Sequence[Path],
        provider: str = CPU,
        packing: Packing = Packing.AT_LOAD,
        dims: Mapping[str, int] | None = None,
    ) -> None:
        """Start to write the graph at the runtime's highest level for a provider.

        Where it has fusions that cost workspace, the one without them goes to the second
        file, if there is one to go to. Both come from one process.

        On CPU only the highest level has the blocked layouts: a lower one makes convolutional
        nets up to three times slower.

        Raises:
            RuntimeUnavailableError: weights are missing.
        """
        require_weights(model)
        highest = RuntimeSettings(
            session={"graph_optimization_level": "ORT_ENABLE_ALL"},
            session_config={_PACKED: "0" if packing is Packing.AT_LOAD else "1"},
        )
        asked = {
            "model": str(model),
            "provider": provider,
            "settings": to_json(highest),
            "fused": str(out[0]),
            "unfused": str(out[1]) if len(out) > 1 else None,
            "dims": dict(dims or {}),
            "in_pieces": packing is Packing.IN_PIECES,
        }
        self._model, self._out, self._provider = model, tuple(out), provider
        self._job = start_job("offline", {"dump": asked}, about=model)

    def __enter__(self) -> Self:
        """Use it in a block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it if it is under way still."""
        self._job.end()

    def result(self) -> tuple[Dump, ...]:
        """Return what was written, weights beside it on pages of their own.

        The runtime crashes on packed ones that are not aligned, and writes them so.

        Raises:
            RuntimeUnavailableError: the model does not load.
        """
        outcome = self._job.outcome()
        result = outcome.require(f"{self._model} does not load")
        written: Any = result["graphs"]
        block = int(str(result["block"]))
        original, provider = load_model(self._model), self._provider
        return tuple(
            replace(
                _tidied(path, original, shapes_of_types(found["types"]), provider),
                cut=found["cut"],
                block=block,
            )
            for path in self._out
            if (found := written.get(path.name))
        )


def _tidied(dump: Path, original: ModelProto, shapes: RuntimeShapes, provider: str) -> Dump:
    """Make a dump's names distinct and the same each time; put its weights where they cost least."""
    graph = load_model(dump)
    graph = with_distinct_names(graph) or graph
    forget_constant_inputs(graph)
    hoist_packed(graph)
    count_anew(graph, original)
    forget_types(graph)
    data = dump.with_name(f"{dump.name}.data")
    if data.exists():
        write_on_pages(graph, data)
    dump.write_bytes(graph.SerializeToString())
    return Dump(dump, shapes or runtime_shapes(dump, provider))


def forget_types(dump: ModelProto) -> None:
    """Drop the declared types that any reader infers, and those of values that are gone.

    The runtime declares every value that it ever had in the graph, and a session keeps what is
    declared. Of its own operators it alone knows what they make.
    """
    for graph in graphs(dump.graph):
        known = {
            name
            for node in graph.node
            if node.domain not in STANDARD_DOMAINS
            for name in node.output
        }
        kept = [value for value in graph.value_info if value.name in known]
        del graph.value_info[:]
        graph.value_info.extend(kept)


def count_anew(dump: ModelProto, original: ModelProto) -> bool:
    """Name the nodes that the original does not have by their places in the dump.

    ONNX Runtime counts the names that it makes up in the order in which it comes by, and
    that of its blocked layouts is another one each time (measured): only the numbers differ.

    Names of tensors stay as they are, and so do those of nodes without a name.

    Returns:
        Whether a name was changed.
    """
    kept = {node.name for graph in graphs(original.graph) for node in graph.node}
    names = FreshNames(kept, separator="_token_")
    changed = False
    for graph in graphs(dump.graph):
        for node in graph.node:
            if not node.name or node.name in kept:
                continue
            name = names.fresh(COUNTED.sub("", node.name))
            changed |= name != node.name
            node.name = name
    return changed


def offline_metadata(version: str, provider: str = CPU) -> Mapping[str, str]:
    """Return the model metadata that says what an offline file is tied to."""
    return {
        RUNTIME: f"onnxruntime {version} {provider}",
        HARDWARE: hardware(),
    }


def offline_program(
    dump: Path,
    dims: Mapping[str, int],
    provider: str = CPU,
    shapes: RuntimeShapes | None = None,
) -> Program:
    """Read a dump; what our own inference leaves open, the runtime may know of its own ops.

    It is asked where ``shapes`` does not say it.

    Raises:
        RuntimeUnavailableError: the dump does not load.
    """
    model = load_model(dump)
    program = read_checked(model, Bindings(dims=dims)).program
    missing = {var.name for var in program.vars.values() if _is_open(var)}
    if not missing:
        return program
    found = runtime_shapes(dump, provider) if shapes is None else shapes
    wanted = {name: each for name, each in found.items() if name in missing}
    known = bound_shapes(wanted, dims, free_dims(model))
    return read_checked(model, Bindings(dims=dims, known=known)).program


def _is_open(var: Var) -> bool:
    """Whether our own inference leaves something of a value's size open."""
    return var.shape is None or None in var.shape or var.dtype == "unknown"
