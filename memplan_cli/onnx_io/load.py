"""Model files: parsing, digests, and large models that are parsed again when they are needed.

External data is never opened here.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.errors import ModelError, not_a_model, refuse_endless, unreadable
from memplan_cli.onnx_io.functions import inlined, why_endless
from memplan_cli.onnx_io.interface import forget_constant_inputs
from memplan_cli.onnx_io.protobuf import messages
from memplan_cli.onnx_io.traversal import graphs, subgraphs
from memplan_cli.onnx_io.types import without_container

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto


def load_model(path: Path) -> ModelProto:
    """Parse an ONNX file without its external data, and inline the functions that it defines.

    Raises:
        ModelError: the file cannot be read, is no ONNX model with a graph and an opset, has names that are not
            UTF-8, or defines functions that cannot be inlined.
    """
    return _inlined(load_as_written(path), path)


def load_again(path: Path) -> ModelProto:
    """Parse a file like `load_model`, but do not check its names again.

    Raises:
        ModelError: as `load_model`, names aside.
    """
    return _inlined(_parsed(path), path)


def _inlined(model: ModelProto, path: Path) -> ModelProto:
    """Return a model with its own functions inlined; the model itself if it has none.

    Raises:
        ModelError: a function calls itself, the result would be too large, or onnx fails.
    """
    if not model.functions:
        return model
    reason = why_endless(model)
    if reason:
        raise ModelError(f"the functions of {path} cannot be inlined: {reason}")
    try:
        return inlined(model)
    except Exception as error:
        raise ModelError(
            f"the functions of {path} cannot be inlined: {first_line(error)}"
        ) from error


def load_as_written(path: Path) -> ModelProto:
    """Parse an ONNX file like `load_model`, but do not inline functions.

    Raises:
        ModelError: as `load_model`, functions aside.
    """
    model = _parsed(path)
    _refuse_broken_text(model, path)
    return model


def _parsed(path: Path) -> ModelProto:
    """Parse a model file; one of an IR version before 4 becomes one of version 4 (`forget_constant_inputs`).

    Raises:
        ModelError: the file cannot be read, is no protobuf message, or has no graph or no opset.
    """
    model: ModelProto = messages().ModelProto()
    data = _read_bytes(path)
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError has no stable place to import from
        raise not_a_model(path, error) from error
    if not model.HasField("graph") or not model.opset_import:
        missing = "no opset" if model.HasField("graph") else "no graph"
        raise ModelError(f"{path} is not an ONNX model: it has {missing}")
    forget_constant_inputs(model)
    return model


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def graph_digest(model: ModelProto) -> str:
    """Return the SHA-256 of a model's graph.

    It covers opsets, names and types of inputs and outputs, names, dtypes and shapes of weights, and the
    nodes in order with their subgraphs. The data of weights of the main graph does not count, nor do
    metadata and doc strings of nodes and values.
    """
    digest = hashlib.sha256()
    for domain, version in sorted((o.domain, o.version) for o in model.opset_import):
        digest.update(f"{domain}:{version}\n".encode())
    for part in _digest_parts(model.graph):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def standard_opset(model: ModelProto) -> int:
    """Return the opset of the standard domain that a model imports; 0 if it imports none."""
    return max(
        (opset.version for opset in model.opset_import if opset.domain in STANDARD_DOMAINS),
        default=0,
    )


def _refuse_broken_text(model: ModelProto, path: Path) -> None:
    """Refuse a model in which a name or key is not UTF-8: protobuf returns such a text as bytes.

    Raises:
        ModelError: showing the text.
    """
    texts: list[str | bytes] = [o.domain for o in model.opset_import]
    texts += [entry.key for entry in model.metadata_props]
    for graph in graphs(model.graph):
        texts += _value_texts(graph)
        texts += _non_ascii_node_texts(graph)
    broken = next((text for text in texts if isinstance(text, bytes)), None)
    if broken is not None:
        raise ModelError(
            f"{path} is not a valid ONNX model: the name {broken[:80]!r} is not UTF-8"
        )


def _value_texts(graph: GraphProto) -> list[str | bytes]:
    """Return the texts of a graph that memplan reads, without those of nodes; bytes if they are not UTF-8.

    They are the names of the graph, its values, dims and weights, the metadata keys of values, and all of
    external data: its locations are names of files.
    """
    values = [*graph.input, *graph.output, *graph.value_info]
    texts: list[str | bytes] = [graph.name]
    for value in values:
        texts.append(value.name)
        texts += [entry.key for entry in value.metadata_props]
    # A large graph has few distinct types: read the dims of each once.
    types = {value.type.SerializeToString(): value.type for value in values}
    for value_type in types.values():
        texts += [dim.dim_param for dim in without_container(value_type).tensor_type.shape.dim]
    sparse = (part for s in graph.sparse_initializer for part in (s.values, s.indices))
    for tensor in (*graph.initializer, *sparse):
        texts.append(tensor.name)
        for entry in tensor.external_data:
            texts += (entry.key, entry.value)
    return texts


def _non_ascii_node_texts(graph: GraphProto) -> list[str | bytes]:
    """Return the names and keys in those nodes of a graph that are not all ASCII; bytes if they are not UTF-8.

    Most nodes of a large graph are all ASCII, so no text in them can be broken.
    """
    texts: list[str | bytes] = []
    for node in graph.node:
        if node.SerializeToString().isascii():
            continue
        texts += (node.name, node.op_type, node.domain, *node.input, *node.output)
        texts += [attribute.name for attribute in node.attribute]
        texts += [entry.key for entry in node.metadata_props]
    return texts


def _digest_parts(graph: GraphProto) -> Iterator[bytes]:
    """Yield the inputs, outputs, weights (without data) and nodes (without annotations) of a graph as bytes."""
    for value in (*graph.input, *graph.output):
        yield value.name.encode() + value.type.SerializeToString(deterministic=True)
    for tensor in graph.initializer:
        yield f"{tensor.name}:{tensor.data_type}:{list(tensor.dims)}".encode()
    for node in graph.node:
        yield _without_annotations(node).SerializeToString(deterministic=True)


def _without_annotations(node: NodeProto) -> NodeProto:
    """Return a node without metadata and doc strings, also in its subgraphs, which are without value_info too.

    The node itself is returned if it has no subgraphs, metadata or doc string, else a copy.
    """
    has_bodies = node.attribute and any(subgraphs(node))
    if not has_bodies and not node.metadata_props and not node.doc_string:
        return node
    bare = deepcopy(node)
    annotated = [bare]
    for graph in (inner for _, body in subgraphs(bare) for inner in graphs(body)):
        del graph.value_info[:]
        annotated += (*graph.node, *graph.input, *graph.output)
    for item in annotated:
        del item.metadata_props[:]
        item.ClearField("doc_string")
    return bare


def _read_bytes(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        ModelError: it is missing, empty, a folder, or cannot be read.
    """
    refuse_endless(path, ModelError)
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        hint = "name a model in it; `memplan sweep FOLDER` plans all"
        raise ModelError(f"{path} is a folder, not a model file", hint=hint) from error
    except OSError as error:
        raise unreadable(path, error, ModelError) from None
    if not data:
        raise ModelError(f"{path} is empty")
    return data


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, shortened for a message, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


LARGE = 20_000
"""Nodes from which a graph is released: parsed, it takes seven megabytes."""


class LazyModel:
    """A model that can be released from memory and parsed again from its file.

    Parsed, a graph takes thirteen times the bytes of its file, and planning does not need it once the
    program is read. Parsing it again for writing takes a fiftieth of the whole time.
    """

    def __init__(self, model: ModelProto, path: Path | None = None) -> None:
        """Wrap a model; a small one, or one without a file, is never released."""
        is_large = len(model.graph.node) >= LARGE
        # None: the model stays in memory.
        self._path = path if is_large else None
        self._stamp = None if self._path is None else _stamp(self._path)
        self._model: ModelProto | None = model  # None while it is released

    @property
    def model(self) -> ModelProto:
        """The model, parsed again if it was released. Do not hold it across `release`.

        Raises:
            ModelError: the file changed since it was first parsed.
        """
        if self._model is None and self._path is not None:
            model = load_again(self._path)
            if _stamp(self._path) != self._stamp:
                raise ModelError(f"{self._path} changed while it was planned")
            self._model = model
        assert self._model is not None  # noqa: S101 - a model without a file is never released
        return self._model

    def release(self) -> None:
        """Free the memory of a large model until it is needed again; a small one stays in memory."""
        if self._path is not None:
            self._model = None


def lazy(model: ModelProto | LazyModel) -> LazyModel:
    """Wrap a model without a file, which stays in memory; return a lazy model as it is."""
    return model if isinstance(model, LazyModel) else LazyModel(model)


def _stamp(path: Path) -> tuple[int, int, int]:
    """Return inode, size and modification time, by which a changed file is recognized."""
    try:
        stat = path.stat()
    except OSError as error:
        raise unreadable(path, error, ModelError) from None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
