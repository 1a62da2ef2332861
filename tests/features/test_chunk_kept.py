"""Rows that a tile before has made are kept where that is less work, and the bits stay."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from features.chunk_graphs import mixed
from features.chunk_models import Maker, convolutions
from features.test_chunk_rewrite import graph_of, largest, last_region, run
from memplan_cli.features.chunking import ranges
from memplan_cli.features.chunking.ranges import chunk_ranges
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.chunked import chunked_model

if TYPE_CHECKING:
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region

ALWAYS = patch.object(ranges, "FLOPS_PER_BYTE", 1e-9)
"""Copies cost next to nothing: whatever there is of a halo is kept."""


def windows(seed: int, layers: int) -> onnx.ModelProto:
    """Return a chain of windows of random kernels, strides and dilations, some of them pools."""
    rng = np.random.default_rng(seed)
    make, x, before = Maker(), "x", 4
    for _ in range(layers):
        kernel, dilation = int(rng.choice((1, 3, 5))), int(rng.choice((1, 1, 2)))
        pad = kernel // 2 * dilation
        told = {"pads": (pad,) * 4, "strides": (int(rng.choice((1, 1, 1, 2))),) * 2}
        if kernel == 5:
            x = make.node("MaxPool", x, kernel_shape=(5, 5), dilations=(dilation,) * 2, **told)
        else:
            weight = make.weight(24, before, kernel, kernel)
            x, before = make.node("Conv", x, weight, dilations=(dilation,) * 2, **told), 24
        x = make.node("Relu", x) if rng.integers(2) else x
    return make.model({"x": (1, 4, 96, 40)}, x)


def in_pieces(model: onnx.ModelProto, graph: Graph, region: Region, count: int) -> bool:
    """Whether a region can be put in so many pieces; its bits are the same then."""
    chunked = rewrite_in_chunks(graph, [(region, count)])
    if chunked is None:
        return False
    written, program = chunked_model(model, chunked.program, chunked.constants)
    onnx.checker.check_model(written, full_check=True)
    assert read_program(written).program.body == program.body
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
    return True


@settings(max_examples=6)
@example(seed=19, layers=2, count=3)  # one row is carried
@given(seed=st.integers(0, 2**32 - 1), layers=st.integers(2, 5), count=st.integers(2, 7))
def test_kept_rows_of_random_windows_keep_the_bits(seed: int, layers: int, count: int) -> None:
    model = windows(seed, layers)
    graph = graph_of(model)
    seeds = {op.outputs[0] for op in graph.ops if len(graph.dims(op.outputs[0])) == 4}
    found = [each for var in sorted(seeds) for each in regions_from(graph, var, 2)]
    with ALWAYS:
        for region in {each.key: each for each in found}.values():
            in_pieces(model, graph, region, count)


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(2, 6), count=st.integers(2, 5))
def test_kept_rows_of_a_random_graph_keep_the_bits(seed: int, steps: int, count: int) -> None:
    model = mixed(seed, steps)
    graph = graph_of(model)
    with ALWAYS:
        for axis in range(len(graph.dims(largest(graph)))):
            for region in regions_from(graph, largest(graph), axis):
                in_pieces(model, graph, region, count)


@pytest.mark.parametrize("count", [3, 8])
def test_no_row_is_computed_twice_where_rows_are_kept(count: int) -> None:
    model = convolutions(size=96, layers=5)
    graph = graph_of(model)
    region = last_region(graph, largest(graph), 2)
    with ALWAYS:
        pieces = chunk_ranges(graph, region, count)
        assert pieces is not None
        assert not pieces[0].carried
        assert all(each.carried for each in pieces[1:])
        for one, other in pairwise(pieces):
            assert all(other.computed[at][0] == one.computed[at][1] for at in region.splits)
        assert in_pieces(model, graph, region, count)


def test_a_light_halo_is_computed_twice() -> None:
    make = Maker()
    x = make.node("MaxPool", "x", kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    x = make.node("MaxPool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    graph = graph_of(make.model({"x": (1, 4, 64, 64)}, x))
    pieces = chunk_ranges(graph, last_region(graph, graph.ops[0].outputs[0], 2), 4)
    assert pieces is not None
    assert not any(each.carried for each in pieces)


def test_an_op_computes_nothing_in_a_chunk_for_which_all_its_rows_are_kept() -> None:
    make = Maker()
    x = make.node("Conv", "x", make.weight(24, 4, 3, 3), pads=(1, 1, 1, 1))
    far = {"dilations": (16, 16), "pads": (16, 16, 16, 16)}
    x = make.node("Conv", x, make.weight(4, 24, 3, 3), **far)
    model = make.model({"x": (1, 4, 32, 64)}, x)
    graph = graph_of(model)
    region = last_region(graph, graph.ops[0].outputs[0], 2)
    with ALWAYS:
        chunks = chunk_ranges(graph, region, 4)
        assert chunks is not None
        assert [chunk.computed.get(0) for chunk in chunks] == [(0, 24), (24, 32), None, None]
        # The last chunk needs rows 8..32 of the first convolution, which are there.
        assert [*chunks[3].carried.values()] == [(8, 32)]
        assert in_pieces(model, graph, region, 4)


def test_rows_are_computed_again_if_to_join_them_costs_more() -> None:
    make = Maker()
    rows = make.node("MaxPool", make.node("Neg", "x"), kernel_shape=(33, 1))
    graph = graph_of(make.model({"x": (1, 1, 64, 64)}, rows))
    region = last_region(graph, largest(graph), 2)
    assert len(region.splits) == 2
    chunks = chunk_ranges(graph, region, 8)
    assert chunks is not None
    # Each chunk reads 36 rows, 32 of them like the chunk before.
    assert [len(chunk.carried) for chunk in chunks] == [0] * 8
