"""Regions: nothing outside lies between two ops that are computed together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from builders import parse
from features.chunk_models import Maker, convolutions, transformer, two_readers
from features.test_chunk_rewrite import graph_of, run
from memplan_cli.core.program import intermediates
from memplan_cli.features.chunking.region import growth_series, regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.writing.chunked import chunked_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import onnx

    from memplan_cli.features.chunking.graph import Graph


def around_a_sum() -> onnx.ModelProto:
    """Columns by their maxima, and by a running sum of these, which needs all columns."""
    make = Maker()
    rows, columns = (make.constant(np.array(each, np.int64)) for each in ([0], 1))
    a = make.node("Exp", "x")
    most = make.node("ReduceMax", a, rows)
    running = make.node("CumSum", most, columns)
    apart = make.node("Mul", make.node("Sub", a, most), running)
    return make.model({"x": (512, 64)}, make.node("ReduceSum", apart, rows))


def between(graph: Graph, ops: Collection[int]) -> set[int]:
    """Return the ops outside that read, at any depth, and are read, at any depth."""

    def reached(start: Collection[int], ahead: Callable[[int], Collection[int]]) -> set[int]:
        seen: set[int] = set()
        stack = list(start)
        while stack:
            for each in ahead(stack.pop()):
                if each not in seen:
                    seen.add(each)
                    stack.append(each)
        return seen

    def readers(at: int) -> Collection[int]:
        return [each for var in graph.ops[at].outputs for each in graph.consumers(var)]

    def makers(at: int) -> Collection[int]:
        found = (graph.dataflow.producer.get(var) for var in graph.ops[at].inputs)
        return [each for each in found if each is not None]

    return (reached(ops, readers) & reached(ops, makers)) - set(ops)


@pytest.mark.parametrize("make", [around_a_sum, transformer, convolutions, two_readers])
def test_nothing_outside_lies_between_two_ops_of_a_region(
    make: Callable[[], onnx.ModelProto],
) -> None:
    graph = graph_of(make())
    count = 0
    for op in graph.ops:
        for var in op.outputs:
            for axis in range(len(graph.program.vars[var].shape or ())):
                for region in regions_from(graph, var, axis):
                    # What is computed twice is made whole for others, who may lie between.
                    assert region.duplicated or not between(graph, region.splits), var
                    count += 1
    assert count


@pytest.mark.parametrize(
    "ops",
    [
        """t0 = Neg(x) t1 = Exp(t0) t2 = Add(t1, t0) t3 = CumSum(t1, along)
        t4 = Add(t3, t2) y = Add(t4, t3)""",
        """s = Abs(x) t0 = Neg(s) t1 = Neg(t0) t2 = Add(s, t1) t3 = Sigmoid(t2)
        t4 = Add(t1, t2) y = Add(t4, t3)""",
        """t0 = Add(u, x) t1 = Neg(t0) t2 = Sub(u, t1) t3 = Mul(t1, t2) t4 = Neg(t1)
        t5 = Abs(t4) t6 = Add(t2, t4) t7 = Sigmoid(t4) t8 = Add(t3, t5) t9 = Add(t8, t6)
        y = Add(t9, t7)""",
    ],
)
def test_every_region_with_ops_that_also_run_whole_can_be_written(ops: str) -> None:
    header = "agraph (float[8,16] x, float[8,16] u) => (float[8,16] y) <int64 along = {0}>"
    model = parse(f"{header} {{ {ops} }}")
    graph, whole = graph_of(model), [x.tobytes() for x in run(model)]
    has_duplicates = False
    for var in intermediates(graph.program):
        for stages in growth_series(graph, var, axis=0):
            for region, _ in stages:
                chunked = rewrite_in_chunks(graph, [(region, 2)])
                assert chunked is not None, region
                written, _ = chunked_model(model, chunked.program, chunked.constants)
                assert [x.tobytes() for x in run(written)] == whole
                has_duplicates |= bool(region.duplicated)
    assert has_duplicates


def test_a_region_stops_growing_where_further_ops_save_nothing() -> None:
    """The image has many channels until the fifth of 300 convolutions leaves one."""
    make, x = Maker(), "x"
    widths = (8, 8, 8, 8, 1, *(1,) * 295)
    for before, width in zip((1, *widths), widths, strict=False):
        x = make.node("Conv", x, make.weight(width, before, 3, 3), pads=(1, 1, 1, 1))
    graph = graph_of(make.model({"x": (1, 1, 16, 16)}, x))
    (stages,) = growth_series(graph, next(iter(graph.ops[2].outputs)), axis=2)
    fewest = min(stages, key=lambda stage: stage.whole_bytes)
    assert fewest.region.splits.keys() == set(range(5))
    assert len(stages) < 200
