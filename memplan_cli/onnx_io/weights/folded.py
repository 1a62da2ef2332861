"""A model with its constant expressions replaced by their values, as a program says."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from memplan_cli.core.program import Origin
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.graph_editor import keep, replace_nodes
from memplan_cli.onnx_io.load import subgraphs
from memplan_cli.onnx_io.types import element_type
from memplan_cli.onnx_io.weights.constants import Evaluator, Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, TensorProto

    from memplan_cli.core.program import Block, Program, Var

_LEAST = 1024
"""Bytes from which a tensor is worth a place in another file, as the runtime's own dump."""

_PAGE = 4096
"""Data is mapped where it begins on a page."""

_CHUNK = 16 << 20
"""Bytes that are put in order in memory at a time."""

_MOST_INSIDE = 64 << 20
"""Bytes of new weights up to which they are part of a model that has no other files."""


def goes_outside(model: ModelProto, added: int) -> bool:
    """Whether so many bytes of new weights go into a file beside the model."""
    return added > _MOST_INSIDE or any(
        tensor.data_location == tensor.EXTERNAL for tensor in model.graph.initializer
    )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file beside the model that new weights are written into, and its name there."""

    name: str
    file: BinaryIO

    def hold(self, tensor: TensorProto, value: NDArray[Any]) -> None:
        """Write a tensor's value, a part at a time, and let the tensor refer to it."""
        if value.nbytes < _LEAST:
            inside(tensor, value)
            return
        self.file.write(b"\0" * (-self.file.tell() % _PAGE))
        place = {"location": self.name, "offset": self.file.tell(), "length": value.nbytes}
        for part in _parts(value):
            self.file.write(part)
        tensor.data_location = tensor.EXTERNAL
        for key, entry in place.items():
            tensor.external_data.add(key=key, value=str(entry))


def inside(tensor: TensorProto, value: NDArray[Any]) -> None:
    """Put a value into a tensor."""
    tensor.raw_data = b"".join(_parts(value))


Hold = Callable[["TensorProto", "NDArray[Any]"], None]
"""Puts a value where it is to be: `inside`, or `DataFile.hold`."""


def _parts(value: NDArray[Any]) -> Iterator[bytes]:
    """Yield the bytes of an array in the order of its elements; a view is never copied whole."""
    rows = max(1, _CHUNK * len(value) // max(value.nbytes, 1)) if value.ndim else 1
    if not value.ndim or rows >= len(value):
        yield value.tobytes()
        return
    for start in range(0, len(value), rows):
        yield value[start : start + rows].tobytes()


def folded_model(
    model: ModelProto, program: Program, evaluator: Evaluator, hold: Hold
) -> tuple[ModelProto, Program]:
    """Return a copy with the values of what a program calls weights, and the program for it.

    Args:
        model: The model that the program was read from, before it was folded.
        program: Its ops, less those that were folded.
        evaluator: Computes the values from the model's weights.
        hold: Where values go; those of subgraphs stay inside the model.

    Raises:
        ModelError: a value cannot be computed, or is not of the type and shape that it has.
    """
    copy = deepcopy(model)
    weights: dict[str, dict[str, Var]] = {}
    for var in program.vars.values():
        if var.origin is Origin.WEIGHT:
            weights.setdefault(var.block, {})[var.name] = var
    folder = _Folder(evaluator, weights, hold)
    body = folder.fold(copy.graph, model.graph, program.body, None)
    return copy, replace(program, body=body)


@dataclass(frozen=True, slots=True)
class _Folder:
    evaluator: Evaluator
    weights: Mapping[str, Mapping[str, Var]]
    """By block and name."""
    hold: Hold

    def fold(
        self, graph: GraphProto, source: GraphProto, block: Block, outer: Scope | None
    ) -> Block:
        """Fold a graph in place; return its block with the nodes' new indices.

        ``source`` is the same graph before anything was folded, the one to compute from.
        """
        kept = sorted({op.source for op in block.ops if op.source >= 0})
        scope, new = Scope.of(source, outer), {old: at for at, old in enumerate(kept)}
        ops = []
        for op in block.ops:
            if op.source < 0:  # of no node: it slices or joins pieces
                ops.append(op)
                continue
            bodies = zip(
                subgraphs(graph.node[op.source]),
                subgraphs(source.node[op.source]),
                op.bodies,
                strict=True,
            )
            folded = tuple(
                self.fold(one, other, body, scope) for (_, one), (_, other), body in bodies
            )
            ops.append(op._replace(source=new[op.source], bodies=folded))
        gone = {
            name
            for at, node in enumerate(source.node)
            if at not in new
            for name in node.output
        }
        self._replace(graph, scope, block.path, gone)
        nodes = [graph.node[at] for at in kept]
        if len(nodes) < len(graph.node):
            replace_nodes(graph, nodes)
        return replace(block, ops=tuple(ops))

    def _replace(
        self, graph: GraphProto, scope: Scope, path: str, gone: Collection[str]
    ) -> None:
        """Give a graph the new weights, and take away what nothing reads any more."""
        weights = self.weights.get(path, {})
        keep(graph.initializer, lambda tensor: tensor.name in weights)
        keep(graph.value_info, lambda value: value.name not in gone)
        wanted = [name for name in weights if name in gone and name in scope.makers]
        for name, value in self.evaluator.values(scope, wanted):
            tensor = graph.initializer.add()
            _declare(tensor, weights[name], value)
            (self.hold if not path else inside)(tensor, value)


def _declare(tensor: TensorProto, var: Var, value: NDArray[Any]) -> None:
    """Say what a tensor is that has no data yet.

    Raises:
        ModelError: the value is of another type or shape than the plan was made for.
    """
    from onnx import helper

    kind = element_type(var.dtype)
    if helper.tensor_dtype_to_np_dtype(kind) != value.dtype or var.shape != value.shape:
        raise ModelError(
            f"{var.name[:120]!r} cannot be folded: it is planned as {var.dtype}"
            f"{list(var.shape or ())}, and comes to {value.dtype}{list(value.shape)}",
            hint=f"leave it as it is: --exclude {var.name}",
        )
    tensor.name, tensor.data_type = var.name, kind
    tensor.dims.extend(value.shape)
