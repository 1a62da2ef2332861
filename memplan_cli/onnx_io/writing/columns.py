"""Products with a large constant operand, computed in pieces of its columns.

A session packs a constant operand into memory of its own before it looks whether the file has
that packed already (ONNX Runtime): while a model loads, the largest operand lies in memory
twice. In pieces, the largest piece does:

    MatMul(x, w)  ->  Concat(MatMul(x, w[:, :a]), MatMul(x, w[:, a:b]), ..., axis=-1)

Each column is summed as before, so no bit changes where operands are packed: there, how many
elements are summed at a time does not depend on the number of columns.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING

import numpy as np

from memplan_cli.core.operators import Family, operator
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.graph_editor import (
    NODE,
    FreshNames,
    drop_unread,
    replace_nodes,
)
from memplan_cli.onnx_io.read import plain_attributes
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.tensor_data import DataFile, store_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.onnx_io.weights.tensor_data import Store

PIECE = 5 << 16
"""Bytes of the least piece, about: little beside what a session takes to load any model."""

LARGE = 5 << 18
"""Bytes of an operand from which a graph is cut: it is dumped twice then, and a graph that was may
have another order, in which a training step of a BERT's holds 569 MB instead of 538."""

_MORE = 1 / 3
"""Nodes that pieces may add, for each node of the graph; where they are more, pieces are larger.
With a quarter more a run of BERT-base takes 0.7 % longer, with three quarters 1.8 %; one of a
small mixture of experts with two fifths more 2.5 %."""

_LONG = 8 << 20
"""Bytes of a piece that takes a hundred times as long as its node; there may be any number of
such. A LLaMA's 4 GB in pieces of 16 MiB load in 55 MB, in pieces of half of that in 35."""

_WORTH = 10
"""What joining adds to the widest step of a run may be this part of what loading saves."""

_SHORT = 64
"""Nodes; a graph of fewer gets as many pieces as one of so many."""

_STEP = 64
"""Columns are cut where every kernel begins a block of its own."""

_FLOAT = 1
"""ONNX's number of the type."""

_OPERAND, _BIAS = 1, 2
"""Inputs: what is packed, and what Gemm adds to each row."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A node that computes with a constant, in pieces of its columns unless it is ``whole``.

    One in a subgraph (``inner``) is cut only where the size of its result is known.
    """

    node: NodeProto
    weight: TensorProto
    axis: int
    bias: TensorProto | None
    whole: bool
    inner: bool

    def cuts(self, piece: int) -> tuple[int, ...]:
        """Return where pieces of so many bytes, about, begin, and the end of the columns."""
        columns, size = self.weight.dims[self.axis], _bytes(self.weight)
        if size <= piece:
            return 0, columns
        parts = math.ceil(size / piece)
        return (*range(0, columns, math.ceil(columns / parts / _STEP) * _STEP), columns)

    def added(self, piece: int) -> int:
        """Return how many nodes the pieces are more than the one."""
        parts = len(self.cuts(piece)) - 1
        return parts if parts > 1 else 0

    def pays(self, piece: int, made: Mapping[str, int], widest: int) -> bool:
        """Whether loading needs less by more than joining makes the widest step need."""
        if self.inner and self.node.output[0] not in made:
            return False
        wider = 2 * made.get(self.node.output[0], 0) - widest
        saved = 2 * (_bytes(self.weight) - piece)
        return not self.whole and self.added(piece) > 0 and wider * _WORTH <= saved


def has_large_operand(model: ModelProto) -> bool:
    """Whether a model has a constant that could be the operand of a product to cut."""
    return any(
        len(tensor.dims) == 2 and tensor.data_type == _FLOAT and _bytes(tensor) > LARGE
        for graph in graphs(model.graph)
        for tensor in chain(graph.initializer, filter(None, map(stored_tensor, graph.node)))
    )


def reads_large_inside(model: ModelProto) -> bool:
    """Whether a subgraph has a product with a constant that could be cut."""
    return any(
        product.inner and _bytes(product.weight) > PIECE for product in _products(model.graph)
    )


def cut_columns(
    model: ModelProto, data: Path, made: Mapping[str, int]
) -> dict[str, tuple[str, int]]:
    """Cut the large constant operands of products, in place; those of the top graph's constants.

    Args:
        model: its large weights lie in the folder of ``data``.
        data: the file that the pieces go into.
        made: bytes of values, those of subgraphs too, as far as they are known: results are
            written once more when they are joined, and what would make the widest step of a run
            much wider than loading gets smaller stays whole.

    Returns:
        Of each new value, the one of which it is a part, and its columns. Empty where
        nothing was written.
    """
    count = sum(len(graph.node) for graph in graphs(model.graph))
    products = list(_products(model.graph))
    piece, cut = _choice(products, count, made, widest_of(model, made))
    found = {id(product.node): product for product in cut}
    if not found:
        return {}
    with data.open("wb") as file:
        hold = DataFile(data.name, file).store
        cutter = _Cutter(model.graph, data.parent, hold, FreshNames.of(model), {}, {})
        made_of = {
            at: cutter.pieces(product, product.cuts(piece)) for at, product in found.items()
        }
    # Innermost first: a node is copied with its subgraphs as they are by then.
    for graph in reversed(list(graphs(model.graph))):
        if any(id(node) in made_of for node in graph.node):
            _replace(graph, made_of)
    pairs = ((p.weight, p.bias) for p in found.values())
    drop_unread(model.graph, {tensor.name for pair in pairs for tensor in pair if tensor})
    return cutter.made


def _replace(graph: GraphProto, made_of: Mapping[int, Sequence[NodeProto]]) -> None:
    """Put the pieces, and what joins them, where their node was."""
    replace_nodes(
        graph, (node for each in graph.node for node in made_of.get(id(each), (each,)))
    )


def _products(top: GraphProto) -> Iterator[_Product]:
    """Yield the products that pack a constant of the top graph; some cannot be cut."""
    given = {value.name for value in top.input}
    weights = {t.name: t for t in top.initializer if t.name not in given}
    for graph in graphs(top):
        yield from _products_of(graph, weights, inner=graph is not top)


def _products_of(
    graph: GraphProto, weights: Mapping[str, TensorProto], *, inner: bool
) -> Iterator[_Product]:
    for node in graph.node:
        weight = weights.get(node.input[_OPERAND]) if len(node.input) > _OPERAND else None
        if operator(node).family is not Family.MATRIX_PRODUCT or weight is None:
            continue
        if len(weight.dims) != 2 or weight.data_type != _FLOAT:
            continue
        said = plain_attributes(node)
        axis = 0 if said.get("transB") else 1
        bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
        columns = weight.dims[axis]
        odd = bias and (bias not in weights or not _is_of_columns(weights[bias], columns))
        whole = bool(said.get("transBatchB") or odd)
        yield _Product(node, weight, axis, weights.get(bias), whole, inner)


def _choice(
    products: Sequence[_Product], nodes: int, made: Mapping[str, int], widest: int
) -> tuple[int, list[_Product]]:
    """Return the size of the pieces, and what is cut into them, that take least memory.

    While a model loads one operand at a time lies in memory twice; a node takes its bytes then, and
    afterwards.
    """
    sizes = [_bytes(product.weight) for product in products]
    least = 2 * max(sizes, default=0)
    chosen: tuple[int, list[_Product]] = PIECE, []
    piece = PIECE
    while piece < max(sizes, default=0):
        paying = [product.pays(piece, made, widest) for product in products]
        whole = (size for size, pays in zip(sizes, paying, strict=True) if not pays)
        cut = list(compress(products, paying))
        added = sum(product.added(piece) for product in cut)
        needed = 2 * max([piece, *whole]) + 2 * NODE * added
        few = added <= _MORE * max(nodes, _SHORT) or piece >= _LONG
        if needed < least and few:
            least, chosen = needed, (piece, cut)
        piece *= 2
    return chosen


def width(
    node: NodeProto, made: Mapping[str, int], results: frozenset[str] = frozenset()
) -> int:
    """Return the bytes of what a node reads and makes; a view is what it reads.

    One that is a result of the model is copied there.
    """
    made_anew = not operator(node).is_view or not results.isdisjoint(node.output)
    values = {*node.input, *(node.output if made_anew else ())}
    return sum(made.get(name, 0) for name in values)


def widest_of(model: ModelProto, made: Mapping[str, int]) -> int:
    """Return the bytes of the widest step, subgraphs included."""
    results = frozenset(value.name for value in model.graph.output)
    nodes = (node for graph in graphs(model.graph) for node in graph.node)
    return max((width(node, made, results) for node in nodes), default=0)


def _bytes(tensor: TensorProto) -> int:
    return 4 * int(math.prod(tensor.dims))


def _is_of_columns(bias: TensorProto, columns: int) -> bool:
    """Whether a bias has an element for each column, the same one for all rows."""
    shape = list(bias.dims)
    return bias.data_type == _FLOAT and shape[-1:] == [columns] == [math.prod(shape)]


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Makes the pieces of products: those of an operand that several read, once."""

    graph: GraphProto
    folder: Path
    hold: Store
    names: FreshNames
    known: dict[tuple[str, int, tuple[int, ...]], list[str]]
    made: dict[str, tuple[str, int]]

    def pieces(self, product: _Product, cuts: tuple[int, ...]) -> list[NodeProto]:
        """Return the nodes of the pieces, and the one that joins them."""
        from onnx import helper

        node = product.node
        weights = self._weights(product.weight, product.axis, cuts, self.hold)
        biases = [None] * len(weights)
        if product.bias is not None:
            axis = len(product.bias.dims) - 1
            biases = self._weights(product.bias, axis, cuts, store_inside)  # type: ignore[assignment]
        made = []
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            piece = deepcopy(node)
            piece.name = node.name and f"{node.name}/columns_{number}"
            piece.input[_OPERAND] = weight
            if bias is not None:
                piece.input[_BIAS] = bias
            piece.output[0] = self.names.fresh(f"{node.output[0]}/columns_{number}")
            wide = cuts[number + 1] - cuts[number]
            self.made[piece.output[0]] = node.output[0], wide
            made.append(piece)
        parts = [piece.output[0] for piece in made]
        join = helper.make_node("Concat", parts, node.output, node.name, axis=-1)
        return [*made, join]

    def _weights(
        self, tensor: TensorProto, axis: int, cuts: tuple[int, ...], hold: Store
    ) -> list[str]:
        """Return the names of the pieces of a weight, which are new initializers."""
        key = tensor.name, axis, cuts
        if key not in self.known:
            values = _values(tensor, self.folder)
            self.known[key] = [
                self._piece(tensor, values, axis, slice(*ends), hold)
                for ends in pairwise(cuts)
            ]
        return self.known[key]

    def _piece(
        self,
        tensor: TensorProto,
        values: NDArray[Any],
        axis: int,
        part: slice,
        hold: Store,
    ) -> str:
        piece, name = self.graph.initializer.add(), f"{tensor.name}/columns_{part.start}"
        piece.name = name = self.names.fresh(name)
        piece.data_type = tensor.data_type
        value = np.moveaxis(np.moveaxis(values, axis, 0)[part], 0, axis)
        piece.dims.extend(value.shape)
        hold(piece, value)
        return name


def _values(tensor: TensorProto, folder: Path) -> NDArray[Any]:
    """Return a tensor's numbers, mapped where they lie in a file."""
    places = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_location != tensor.EXTERNAL:
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(tensor))
    path, offset = folder / places["location"], int(places.get("offset", "0"))
    return np.memmap(path, np.float32, "r", offset, tuple(tensor.dims))
