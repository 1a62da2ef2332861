"""Which bytes are a model? Reading a file, its digests, and what it refuses.

Weights kept as external data stay on disk: nothing here opens them.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onnx import GraphProto, ModelProto, NodeProto


def load_model(path: Path) -> ModelProto:
    """Parse an ONNX file without its external data.

    Raises:
        ModelError: it is missing, no file, empty, no protobuf, or holds no graph.
    """
    from onnx import ModelProto, inliner

    model = ModelProto()
    data = _read_bytes(path)
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's DecodeError has no stable home to import from
        raise ModelError(
            f"{path} is not an ONNX model: {_first_line(error)}",
            hint="memplan reads ONNX protobuf files; is it truncated or another format?",
        ) from error
    if not model.HasField("graph") or not model.opset_import:
        missing = "no opset" if model.HasField("graph") else "no graph"
        raise ModelError(f"{path} is not an ONNX model: it has {missing}")
    _refuse_broken_text(model, path)
    if model.functions:
        try:
            return inliner.inline_local_functions(model)
        except Exception as error:
            raise ModelError(
                f"the functions of {path} cannot be inlined: {_first_line(error)}"
            ) from error
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


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every graph in its nodes' attributes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            for attribute in node.attribute:  # as `subgraphs`, without a generator for each
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the graphs that a node owns, by attribute name."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def _refuse_broken_text(model: ModelProto, path: Path) -> None:
    """Refuse names that are no UTF-8: protobuf hands them out as bytes, unlike any other."""
    entries = [*(o.domain for o in model.opset_import), *(e.key for e in model.metadata_props)]
    for names in (entries, *map(_names, graphs(model.graph))):
        for name in names:
            if isinstance(name, bytes):
                raise ModelError(
                    f"{path} is not a valid ONNX model: the name {name[:80]!r} is not UTF-8"
                )


def _names(graph: GraphProto) -> Iterator[str | bytes]:
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (entry.key for entry in value.metadata_props)
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in (
        *graph.initializer,
        *(sparse.values for sparse in graph.sparse_initializer),
    ):
        yield tensor.name
        yield from (
            text for entry in tensor.external_data for text in (entry.key, entry.value)
        )
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)
        yield from (entry.key for entry in node.metadata_props)


def _pieces(graph: GraphProto) -> Iterator[bytes]:
    for value in (*graph.input, *graph.output):
        yield value.name.encode() + value.type.SerializeToString(deterministic=True)
    for tensor in graph.initializer:
        yield f"{tensor.name}:{tensor.data_type}:{list(tensor.dims)}".encode()
    for node in graph.node:
        yield _bare(node).SerializeToString(deterministic=True)


def _bare(node: NodeProto) -> NodeProto:
    """Return a node, its bodies included, without notes and inferred types."""
    if not node.metadata_props and not node.doc_string and not any(subgraphs(node)):
        return node
    bare = type(node)()
    bare.CopyFrom(node)
    noted = [bare]
    for graph in (inner for _, body in subgraphs(bare) for inner in graphs(body)):
        del graph.value_info[:]
        noted.extend((*graph.node, *graph.input, *graph.output))
    for item in noted:
        del item.metadata_props[:]
        item.ClearField("doc_string")
    return bare


def _read_bytes(path: Path) -> bytes:
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
