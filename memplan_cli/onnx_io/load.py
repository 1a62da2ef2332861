"""Model files read, their digests, and walks over graphs and their subgraphs.

Weights kept as external data stay on disk: nothing here opens them.
"""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING

from memplan_cli.core.operators import STANDARD_DOMAINS
from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.functions import inlined, why_endless
from memplan_cli.onnx_io.protobuf import messages

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


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield a graph and every graph in its nodes' attributes."""
    stack = [graph]
    while stack:
        current = stack.pop()
        yield current
        for node in current.node:
            if not node.attribute:
                continue
            for attribute in node.attribute:  # as `subgraphs`, without a generator for each
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def subgraphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the subgraphs of a node, by attribute name."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for index, graph in enumerate(attribute.graphs):
            yield f"{attribute.name}[{index}]", graph


def defined(graph: GraphProto) -> Iterator[str]:
    """Yield the names that a graph itself defines, one for each definition."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from filter(None, node.output)


def free_names(graph: GraphProto) -> tuple[str, ...]:
    """Return what a graph, or any graph below it, reads from outside, in order, once each.

    The nodes may stand in any order: a name that one of them makes is never free.
    """
    inside = set(defined(graph))
    found = dict.fromkeys(name for node in graph.node for name in reads(node))
    found.update(dict.fromkeys(value.name for value in graph.output))
    return tuple(name for name in found if name and name not in inside)


def captures(node: NodeProto) -> tuple[str, ...]:
    """Return what a node's subgraphs read from outside of them, in order, once each."""
    if not node.attribute:
        return ()
    return tuple(dict.fromkeys(n for _, graph in subgraphs(node) for n in free_names(graph)))


def reads(node: NodeProto) -> tuple[str, ...]:
    """Return a node's inputs, omitted ones as ``""``, then what its subgraphs capture."""
    return (*node.input, *captures(node))


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
