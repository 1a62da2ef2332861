"""Matrix products with a large constant operand, computed in pieces of the operand's columns.

ONNX Runtime packs a constant operand into new memory before it looks for a prepacked one in the file:
while a model loads, the largest operand is in memory twice. In pieces, only the largest piece is:

    MatMul(x, w)  ->  Concat(MatMul(x, w[:, :a]), MatMul(x, w[:, a:b]), ..., axis=-1)

Each column is summed as before. No bit changes, because the block size of sums over a packed operand does
not depend on the number of columns.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, compress, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from memplan_cli.core.operators import Family, operator
from memplan_cli.onnx_io.constants import stored_tensor
from memplan_cli.onnx_io.graph_editor import (
    NODE,
    drop_unread,
    fresh_names,
    replace_nodes,
)
from memplan_cli.onnx_io.read import plain_attributes
from memplan_cli.onnx_io.traversal import defined, graphs
from memplan_cli.onnx_io.weights.tensor_data import DataFile, read_tensor, store_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

    from memplan_cli.core.names import FreshNames
    from memplan_cli.onnx_io.weights.tensor_data import Store

PIECE = 5 << 16
"""Approximate bytes of the smallest pieces: little beside what a session takes for any model."""

LARGE = 5 << 18
"""Operands above this many bytes make a graph worth cutting. A cut graph is dumped a second time and may
then have another node order, in which a training step of BERT holds 569 MB instead of 538."""

_MAX_ADDED_SHARE = 1 / 3
"""Most added nodes per node of the graph; with more, pieces are larger. A quarter more nodes make a run
of BERT-base 0.7 % longer, three quarters 1.8 %; two fifths more make one of a small mixture of experts
2.5 % longer."""

_FREE_PIECE = 8 << 20
"""Bytes of a piece that takes a hundred times as long as its node's overhead: any number of such pieces
may be added. LLaMA's 4 GB load in 55 MB with pieces of 16 MiB, and in 35 MB with 8 MiB."""

_SAVING_PER_WIDENING = 10
"""A byte added to the widest step of a run must save at least this many bytes while loading."""

_MIN_COUNTED_NODES = 64
"""A smaller graph may get as many pieces as one of this many nodes."""

_COLUMN_STEP = 64
"""Pieces begin at a multiple of this many columns, where every kernel begins a block."""

_FLOAT = 1
"""TensorProto.FLOAT."""

_OPERAND, _BIAS = 1, 2
"""Input positions: the packed operand, and what Gemm adds to each row."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A matrix product with a constant operand of the main graph.

    Attributes:
        node: the MatMul, Gemm or fused product.
        weight: the constant operand.
        axis: the axis of its columns.
        bias: the constant bias, if any.
        can_be_cut: whether columns can be computed in pieces.
        in_subgraph: whether the node is in a subgraph: it is cut only if its result's size is known.
    """

    node: NodeProto
    weight: TensorProto
    axis: int
    bias: TensorProto | None
    can_be_cut: bool
    in_subgraph: bool

    def bounds(self, piece_bytes: int) -> tuple[int, ...]:
        """Return the first column of each piece of about this size, and the number of columns."""
        columns, size = self.weight.dims[self.axis], _float_bytes(self.weight)
        if size <= piece_bytes:
            return 0, columns
        parts = math.ceil(size / piece_bytes)
        step = math.ceil(columns / parts / _COLUMN_STEP) * _COLUMN_STEP
        return (*range(0, columns, step), columns)

    def added_nodes(self, piece_bytes: int) -> int:
        """Return how many nodes are added: a product for each piece and a Concat, less the node."""
        parts = len(self.bounds(piece_bytes)) - 1
        return parts if parts > 1 else 0

    def pays(self, piece_bytes: int, value_bytes: Mapping[str, int], widest: int) -> bool:
        """Whether computing the product in pieces of columns saves enough bytes for those that it costs.

        While the model loads, the whole constant operand is in memory twice; if it is cut, only one piece is. In
        a run, the Concat of the pieces may need more memory than any step did before. For each byte more in a
        run, `_SAVING_PER_WIDENING` bytes must be saved while the model loads.

        Args:
            piece_bytes: Size of the pieces of the operand.
            value_bytes: Bytes of values, as far as they are known.
            widest: Bytes of the step of a run that has the most operands and results (`widest_of`).
        """
        if not self.can_be_cut or self.added_nodes(piece_bytes) == 0:
            return False
        result = self.node.output[0]
        # The runtime tells nearly all sizes of the main graph, where an unknown one counts as 0, but few of
        # subgraphs, where an unknown one may be large.
        if self.in_subgraph and result not in value_bytes:
            return False
        saved_while_loading = 2 * (_float_bytes(self.weight) - piece_bytes)
        # The results of the pieces are together as large as the result of their Concat.
        concat_bytes = 2 * value_bytes.get(result, 0)
        added_to_run = max(0, concat_bytes - widest)
        return saved_while_loading >= _SAVING_PER_WIDENING * added_to_run


def has_large_operand(model: ModelProto) -> bool:
    """Whether a model has a float32 matrix constant above `LARGE` bytes."""
    return any(
        len(tensor.dims) == 2 and tensor.data_type == _FLOAT and _float_bytes(tensor) > LARGE
        for graph in graphs(model.graph)
        for tensor in chain(graph.initializer, filter(None, map(stored_tensor, graph.node)))
    )


def reads_large_inside(model: ModelProto) -> bool:
    """Whether a subgraph has a product whose operand is larger than a piece."""
    return any(
        product.in_subgraph and _float_bytes(product.weight) > PIECE
        for product in _products(model.graph)
    )


def cut_columns(
    model: ModelProto, data: Path, value_bytes: Mapping[str, int]
) -> dict[str, tuple[str, int]]:
    """Compute matrix products with a large constant in pieces of its columns; change the model in place.

    While ONNX Runtime loads the model, only a piece of the constant is in memory twice, not all of it.
    Products of all graphs are cut, if their constant operand is one of the main graph.

    Args:
        model: The model; its external data lies in the folder of ``data``.
        data: The file that the pieces of operands are written to.
        value_bytes: Bytes of values of all graphs, as far as they are known. A product stays whole if
            the node that joins its pieces would need too much more than any node did before.

    Returns:
        For the result of each piece, the result that it is a part of and its number of columns. Empty
        if nothing was cut and no file was written.
    """
    best = _best_cut(model, value_bytes)
    if not best.products:
        return {}
    with data.open("wb") as file:
        store = DataFile(data.name, file).store
        cutter = _Cutter(model.graph, data.parent, store, fresh_names(model))
        replacements = {
            id(product.node): cutter.pieces(product, product.bounds(best.piece_bytes))
            for product in best.products
        }
    _replace_by_id(model, replacements)
    # The cut products read pieces of these.
    constants = [
        tensor for product in best.products for tensor in (product.weight, product.bias)
    ]
    drop_unread(model.graph, {tensor.name for tensor in constants if tensor is not None})
    return cutter.columns


def _replace_by_id(model: ModelProto, replacements: Mapping[int, Sequence[NodeProto]]) -> None:
    """Replace nodes of all graphs of a model by others, by the Python ``id`` of the node.

    The caller keeps references to the replaced nodes: without one, protobuf may give a node another id.
    """
    # Innermost graphs first, because a node is copied with its subgraphs.
    for graph in reversed(list(graphs(model.graph))):
        if any(id(node) in replacements for node in graph.node):
            nodes = [new for node in graph.node for new in replacements.get(id(node), (node,))]
            replace_nodes(graph, nodes)


def _products(main: GraphProto) -> Iterator[_Product]:
    """Yield the products of all graphs whose operand is a constant matrix of the main graph.

    Constants that a caller can override, or whose name stands for another value in a subgraph, are left out.
    """
    other_values = {value.name for value in main.input}
    for graph in graphs(main):
        if graph is not main:
            other_values.update(defined(graph))
    weights = {t.name: t for t in main.initializer if t.name not in other_values}
    for graph in graphs(main):
        for node in graph.node:
            if operator(node).family is Family.MATRIX_PRODUCT and len(node.input) > _OPERAND:
                weight = weights.get(node.input[_OPERAND])
                if weight is not None and len(weight.dims) == 2 and weight.data_type == _FLOAT:
                    yield _product(node, weight, weights, in_subgraph=graph is not main)


def _product(
    node: NodeProto,
    weight: TensorProto,
    weights: Mapping[str, TensorProto],
    *,
    in_subgraph: bool,
) -> _Product:
    """Describe a product whose second operand is ``weight``, a constant matrix.

    Its columns can be computed in pieces if it has no bias, or a constant one with a number for
    each column, and no transBatchB, which moves the axes of the operand.
    """
    attributes = plain_attributes(node)
    column_axis = 0 if attributes.get("transB") else 1
    bias = node.input[_BIAS] if len(node.input) > _BIAS else ""
    columns = weight.dims[column_axis]
    has_fitting_bias = not bias or (bias in weights and _is_row(weights[bias], columns))
    return _Product(
        node,
        weight,
        axis=column_axis,
        bias=weights.get(bias),
        can_be_cut=has_fitting_bias and not attributes.get("transBatchB"),
        in_subgraph=in_subgraph,
    )


class _Cut(NamedTuple):
    """A choice of products that are cut into pieces of one size.

    Attributes:
        piece_bytes: the size of the pieces.
        products: the products that are cut.
        largest_part: bytes of the largest piece, or operand of a product that stays whole.
    """

    piece_bytes: int
    products: Sequence[_Product]
    largest_part: int

    @property
    def added_nodes(self) -> int:
        """How many nodes the cut adds to the model."""
        return sum(product.added_nodes(self.piece_bytes) for product in self.products)

    @property
    def loading_cost(self) -> int:
        """Bytes that a session needs for the cut: its nodes, and the largest part twice while the model loads.

        The bytes of nodes count double, because they stay after loading.
        """
        return 2 * self.largest_part + 2 * NODE * self.added_nodes


def _best_cut(model: ModelProto, value_bytes: Mapping[str, int]) -> _Cut:
    """Return the cut that needs the least memory while a model loads.

    A cut divides weights of matrix products into pieces of columns; a Concat joins the products of the pieces.
    Smaller pieces need less memory, but more nodes, so several sizes are tried. ``value_bytes`` has the bytes
    of values, as far as they are known.
    """
    products = list(_products(model.graph))
    # The most bytes that a step of a run needs: a Concat of results costs only what it needs beyond them.
    widest_step = widest_of(model, value_bytes)
    largest = max((_float_bytes(product.weight) for product in products), default=0)
    node_count = sum(len(graph.node) for graph in graphs(model.graph))
    max_added = _MAX_ADDED_SHARE * max(node_count, _MIN_COUNTED_NODES)
    no_cut = _Cut(piece_bytes=largest, products=(), largest_part=largest)
    cuts = [no_cut]  # the first, so that `min` prefers it among equals
    piece_bytes = PIECE
    while piece_bytes < largest:
        # A weight is cut if this saves enough while loading, compared with what the Concat adds to a run.
        are_cut = [product.pays(piece_bytes, value_bytes, widest_step) for product in products]
        largest_part = max(
            piece_bytes if is_cut else _float_bytes(product.weight)
            for product, is_cut in zip(products, are_cut, strict=True)
        )
        cut = _Cut(piece_bytes, tuple(compress(products, are_cut)), largest_part)
        # Beside a large piece, the time of a node does not count.
        if cut.added_nodes <= max_added or piece_bytes >= _FREE_PIECE:
            cuts.append(cut)
        piece_bytes *= 2
    return min(cuts, key=lambda cut: cut.loading_cost)


def width(
    node: NodeProto,
    value_bytes: Mapping[str, int],
    graph_outputs: frozenset[str] = frozenset(),
) -> int:
    """Return the bytes of a node's distinct inputs and results.

    The result of a view is not counted, unless it is a graph output, which is a copy.
    """
    has_own_result = not operator(node).is_view or not graph_outputs.isdisjoint(node.output)
    values = {*node.input, *(node.output if has_own_result else ())}
    return sum(value_bytes.get(name, 0) for name in values)


def widest_of(model: ModelProto, value_bytes: Mapping[str, int]) -> int:
    """Return the largest `width` of all nodes of a model, subgraphs included."""
    graph_outputs = frozenset(value.name for value in model.graph.output)
    nodes = (node for graph in graphs(model.graph) for node in graph.node)
    return max((width(node, value_bytes, graph_outputs) for node in nodes), default=0)


def _float_bytes(tensor: TensorProto) -> int:
    return 4 * int(math.prod(tensor.dims))


def _is_row(bias: TensorProto, columns: int) -> bool:
    """Whether a bias has one float for each column, the same for all rows."""
    shape = list(bias.dims)
    return bias.data_type == _FLOAT and shape[-1:] == [columns] == [math.prod(shape)]


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Makes pieces of products; an operand that several products read is cut once.

    Attributes:
        graph: the main graph, which gets the pieces of weights as initializers.
        folder: where external data lies.
        store: stores the pieces of operands.
        names: fresh names.
        cut_weights: names of the pieces, by name, axis and bounds of the whole weight.
        columns: as `cut_columns` returns it.
    """

    graph: GraphProto
    folder: Path
    store: Store
    names: FreshNames
    cut_weights: dict[tuple[str, int, tuple[int, ...]], list[str]] = field(
        default_factory=dict
    )
    columns: dict[str, tuple[str, int]] = field(default_factory=dict)

    def pieces(self, product: _Product, bounds: tuple[int, ...]) -> list[NodeProto]:
        """Return the nodes that compute a product in pieces of its columns, and the Concat of the pieces.

        The slices of weight and bias are added to the graph's initializers, and each node's result to
        `columns`. ``bounds`` are the first columns of the pieces, and the number of columns.
        """
        from onnx import helper

        node = product.node
        weights = self._weight_pieces(product.weight, product.axis, bounds, self.store)
        biases: list[str] = []
        if product.bias is not None:
            axis = len(product.bias.dims) - 1
            # A row of numbers is small: its pieces stay in the model file.
            biases = self._weight_pieces(product.bias, axis, bounds, store_inside)
        pieces = []
        for index, (start, stop) in enumerate(pairwise(bounds)):
            piece = deepcopy(node)
            piece.name = node.name and self.names.fresh(f"{node.name}/columns_{index}")
            piece.input[_OPERAND] = weights[index]
            if biases:
                piece.input[_BIAS] = biases[index]
            piece.output[0] = self.names.fresh(f"{node.output[0]}/columns_{index}")
            self.columns[piece.output[0]] = node.output[0], stop - start
            pieces.append(piece)
        results = [piece.output[0] for piece in pieces]
        concat = helper.make_node("Concat", results, node.output, node.name, axis=-1)
        return [*pieces, concat]

    def _weight_pieces(
        self, tensor: TensorProto, axis: int, bounds: tuple[int, ...], store: Store
    ) -> list[str]:
        """Add the pieces of a weight to the graph's initializers, once; return their names."""
        key = tensor.name, axis, bounds
        if key not in self.cut_weights:
            values = np.moveaxis(read_tensor(tensor, self.folder), axis, 0)
            self.cut_weights[key] = [
                self._add_weight(
                    tensor, start, np.moveaxis(values[start:stop], 0, axis), store
                )
                for start, stop in pairwise(bounds)
            ]
        return self.cut_weights[key]

    def _add_weight(
        self, whole: TensorProto, start: int, values: NDArray[Any], store: Store
    ) -> str:
        """Add an initializer with some columns of a weight, from ``start`` on; return its name."""
        tensor = self.graph.initializer.add()
        name = self.names.fresh(f"{whole.name}/columns_{start}")
        tensor.name = name
        tensor.data_type = whole.data_type
        tensor.dims.extend(values.shape)
        store(tensor, values)
        return name
