"""Model files: parsed, digested, and parsed again on demand."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.functions import inlined, why_endless
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import graphs, subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto


def load_model(path: Path) -> ModelProto:
    """Parse an ONNX file without its external data; its own functions are inlined.

    Raises:
        ModelError: it is missing, no file, empty, no protobuf, or holds no graph.
    """
    return _inlined(load_as_written(path), path)


def load_again(path: Path) -> ModelProto:
    """Parse a file that `load_model` took before.

    Raises:
        ModelError: as `load_model`, but for what only a look at all names finds.
    """
    return _inlined(_parsed(path), path)


def _inlined(model: ModelProto, path: Path) -> ModelProto:
    if model.functions:
        endless = why_endless(model)
        if endless:
            raise ModelError(f"the functions of {path} cannot be inlined: {endless}")
        try:
            return inlined(model)
        except Exception as error:
            raise ModelError(
                f"the functions of {path} cannot be inlined: {_first_line(error)}"
            ) from error
    return model


def load_as_written(path: Path) -> ModelProto:
    """Parse an ONNX file without its external data; calls of its functions stay calls.

    Raises:
        ModelError: as `load_model`.
    """
    model = _parsed(path)
    _refuse_broken_text(model, path)
    return model


def _parsed(path: Path) -> ModelProto:
    model: ModelProto = messages().ModelProto()
    data = _read_bytes(path)
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError has no stable place to import from
        raise ModelError(
            f"{path} is not an ONNX model: {_first_line(error)}",
            hint="memplan reads ONNX protobuf files; is it truncated or another format?",
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        missing = "no opset" if model.HasField("graph") else "no graph"
        raise ModelError(f"{path} is not an ONNX model: it has {missing}")
    return model


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def graph_digest(model: ModelProto) -> str:
    """Return the SHA-256 of the graph: nodes, types and weights' shapes, not their data.

    The order of the nodes counts; memplan's own metadata and doc strings do not.
    """
    digest = hashlib.sha256()
    for domain, version in sorted((o.domain, o.version) for o in model.opset_import):
        digest.update(f"{domain}:{version}\n".encode())
    for piece in _pieces(model.graph):
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return digest.hexdigest()


def standard_opset(model: ModelProto) -> int:
    """Return the version of the standard operators that a model uses; 0 for none."""
    return max(
        (each.version for each in model.opset_import if each.domain in STANDARD_DOMAINS),
        default=0,
    )


def _refuse_broken_text(model: ModelProto, path: Path) -> None:
    """Refuse names that are no UTF-8: protobuf gives them as bytes, unlike any other."""
    names: list[str | bytes] = [o.domain for o in model.opset_import]
    names += [entry.key for entry in model.metadata_props]
    for graph in graphs(model.graph):
        _add_names(graph, names)
        _add_node_names(graph, names)
    if set(map(type, names)) != {str}:
        broken = next(name for name in names if isinstance(name, bytes))
        raise ModelError(
            f"{path} is not a valid ONNX model: the name {broken[:80]!r} is not UTF-8"
        )


def _add_names(graph: GraphProto, names: list[str | bytes]) -> None:
    """Collect the names of a graph's values and tensors."""
    values = [*graph.input, *graph.output, *graph.value_info]
    names.append(graph.name)
    names += [value.name for value in values]
    for value in values:
        if value.metadata_props:
            names += [entry.key for entry in value.metadata_props]
    # A large graph has few types, and each dim is an object.
    types = [value.type for value in values]
    for kind in {kind.SerializeToString(): kind for kind in types}.values():
        names += [dim.dim_param for dim in kind.tensor_type.shape.dim]
    for tensor in (
        *graph.initializer,
        *(sparse.values for sparse in graph.sparse_initializer),
    ):
        names.append(tensor.name)
        for entry in tensor.external_data:
            names += (entry.key, entry.value)


def _add_node_names(graph: GraphProto, names: list[str | bytes]) -> None:
    """Collect what nodes are called, read and write, and their attributes' names.

    Nodes that are ASCII as a whole, most of a large graph, have no other names.
    """
    for node in graph.node:
        if node.SerializeToString().isascii():
            continue
        names += (node.name, node.op_type, node.domain)
        # A slice is a list made in one step; going through the field itself takes twice as long.
        names += node.input[:]
        names += node.output[:]
        if node.attribute:
            names += [attribute.name for attribute in node.attribute]
        if node.metadata_props:
            names += [entry.key for entry in node.metadata_props]


def _pieces(graph: GraphProto) -> Iterator[bytes]:
    for value in (*graph.input, *graph.output):
        yield value.name.encode() + value.type.SerializeToString(deterministic=True)
    for tensor in graph.initializer:
        yield f"{tensor.name}:{tensor.data_type}:{list(tensor.dims)}".encode()
    for node in graph.node:
        yield _bare(node).SerializeToString(deterministic=True)


def _bare(node: NodeProto) -> NodeProto:
    """Return a node, its subgraphs included, without notes and inferred types."""
    has_bodies = node.attribute and any(subgraphs(node))
    if not has_bodies and not node.metadata_props and not node.doc_string:
        return node
    bare = deepcopy(node)
    noted = [bare]
    for graph in (inner for _, body in subgraphs(bare) for inner in graphs(body)):
        del graph.value_info[:]
        noted.extend((*graph.node, *graph.input, *graph.output))
    for item in noted:
        del item.metadata_props[:]
        item.ClearField("doc_string")
    return bare


def _read_bytes(path: Path) -> bytes:
    refuse_endless(path, ModelError)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise ModelError(f"{path} is a folder, not a model file") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not data:
        raise ModelError(f"{path} is empty")
    return data


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


LARGE = 20_000
"""Nodes from which on a graph is released: parsed, it takes seven megabytes."""

_Stamp = tuple[int, int, int]


class LazyModel:
    """A model, or the file that it can be parsed from again."""

    def __init__(self, model: ModelProto, path: Path | None = None) -> None:
        """Wrap a model; without the file that it came from, it stays in memory."""
        is_large = len(model.graph.node) >= LARGE
        self._path = path if is_large else None
        self._stamp = None if self._path is None else _stamp(self._path)
        self._model: ModelProto | None = model

    @property
    def model(self) -> ModelProto:
        """The model: whoever keeps it while it is released keeps its memory.

        Raises:
            ModelError: it was released, and its file is another one now.
        """
        if self._model is None and self._path is not None:
            found = load_again(self._path)
            if _stamp(self._path) != self._stamp:
                raise ModelError(f"{self._path} changed while it was planned")
            self._model = found
        assert self._model is not None  # noqa: S101 - only what has a file is released
        return self._model

    def release(self) -> None:
        """Release a large model until somebody reads it."""
        if self._path is not None and self._model is not None:
            self._model = None


def lazy(model: ModelProto | LazyModel) -> LazyModel:
    """Return a model as a lazy one; one without a file stays in memory."""
    return model if isinstance(model, LazyModel) else LazyModel(model)


def _stamp(path: Path) -> _Stamp:
    """Return what is another one where a file was written to or replaced."""
    try:
        found = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
