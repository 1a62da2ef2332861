"""Channels in blocks: only samples, rows and columns are cut, through a view in which these are an axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from features.test_chunk_rewrite import run
from memplan_cli.core.operators import NCHWC
from memplan_cli.features.chunking.axes.split import ModelContext
from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.constants import small_constants
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_checked
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.runtime.workers.session_graph import block_size

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

SIDE = 24


def in_blocks() -> onnx.ModelProto:
    """Return two convolutions over blocks of channels, and what is added between them."""
    rng = np.random.default_rng(3)
    weights = [
        numpy_helper.from_array(rng.standard_normal((32, 32, 3, 3)).astype(np.float32), name)
        for name in ("w1", "w2")
    ]
    window = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    nodes = [
        helper.make_node("ReorderInput", ["x"], ["a"], "n_a", domain=NCHWC),
        helper.make_node("Conv", ["a", "w1"], ["b"], "n_b", domain=NCHWC, **window),
        helper.make_node("Add", ["a", "b"], ["c"], "n_c"),
        helper.make_node("Conv", ["c", "w2"], ["d"], "n_d", domain=NCHWC, **window),
        helper.make_node("ReorderOutput", ["d"], ["y"], "n_y", domain=NCHWC, channels=32),
    ]
    dims = (1, 32, SIDE, SIDE)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in "xabcdy"]
    graph = helper.make_graph(nodes, "blocks", values[:1], values[-1:], weights)
    graph.value_info.extend(values[1:-1])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def graph_of(model: onnx.ModelProto, block: int) -> Graph:
    facts = ModelContext(small_constants(model), standard_opset(model), block)
    return Graph.of(read_checked(model, Bindings()).program, facts)


def test_only_samples_rows_and_columns_are_cut() -> None:
    graph = graph_of(in_blocks(), block_size())
    assert graph.blocked_vars == set("abcd")
    for at, _ in enumerate(graph.ops):
        for split in graph.splits(at):
            assert all(part.axis in {2, 3} for part in split.outputs if part is not None)


def test_nothing_is_cut_where_nobody_knows_the_block() -> None:
    graph = graph_of(in_blocks(), 0)
    assert not any(graph.splits(at) for at, _ in enumerate(graph.ops))


@pytest.mark.parametrize("seed", "abcdy")
@pytest.mark.parametrize("count", [2, 3, 6])
@pytest.mark.parametrize("axis", [2, 3])
def test_rows_and_columns_of_blocks_give_the_same_bits(
    seed: str, count: int, axis: int
) -> None:
    model = in_blocks()
    graph = graph_of(model, block_size())
    var = next(var for var in graph.program.vars if var == seed)
    for region in regions_from(graph, var, axis):
        chunked = rewrite_in_chunks(graph, [(region, count)])
        assert chunked is not None
        written, _ = chunked_model(model, chunked.program, chunked.constants)
        assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
