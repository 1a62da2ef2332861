"""Choices of pieces, each where another one would show: copies, borders, counts, old opsets."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from builders import parse
from features.chunk_cases import Case, differences
from features.chunk_models import Maker, convolutions, transformer, two_readers
from features.test_chunk_regions import around_a_sum
from features.test_chunk_rewrite import graph_of, largest, last_region, run, sizes_of
from memplan_cli.analysis.aliasing import SHARE_SAFELY
from memplan_cli.core.program import VarId, intermediates
from memplan_cli.features.chunking.anytime import search
from memplan_cli.features.chunking.axes.split import Role
from memplan_cli.features.chunking.axes.table import splits_of
from memplan_cli.features.chunking.bound import lower_bound
from memplan_cli.features.chunking.kernels import keeps_bits
from memplan_cli.features.chunking.region import boundary_bytes, growth_series, regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.ordering.records import PlannedVars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx

    from memplan_cli.features.chunking.axes.split import Node, Split
    from memplan_cli.features.chunking.graph import Graph
    from memplan_cli.features.chunking.region import Region

MODELS = (around_a_sum, transformer, convolutions, two_readers)


def seeds(graph: Graph) -> Iterator[tuple[Any, int]]:
    for var in sorted(intermediates(graph.program)):
        yield from ((var, axis) for axis in range(len(graph.program.vars[var].shape or ())))


def whole_beside(graph: Graph, region: Region) -> int:
    """Count what is whole while a region runs: what is made before it and read behind it."""
    own = [at for at in region.splits if at not in region.duplicated]
    counted = {*region.inputs, *region.outputs}
    passing = (
        var
        for var, at in graph.dataflow.producer.items()
        if at < min(own)
        and var not in counted
        and (var in graph.outputs or any(reader > max(own) for reader in graph.consumers(var)))
    )
    return sum(map(graph.bytes, passing))


@pytest.mark.parametrize("make", MODELS)
def test_a_region_computes_only_light_ops_twice(make: Callable[[], onnx.ModelProto]) -> None:
    graph = graph_of(make())
    for var, axis in seeds(graph):
        for region in regions_from(graph, var, axis):
            for at in region.duplicated:
                read = [each for each in graph.dataflow.reads[at] if each not in graph.weights]
                assert region.splits[at].role is Role.FREE
                assert len(read) == 1


@pytest.mark.parametrize("make", MODELS)
def test_what_a_region_leaves_whole_is_its_border_and_what_passes_it_by(
    make: Callable[[], onnx.ModelProto],
) -> None:
    graph = graph_of(make())
    for var, axis in seeds(graph):
        for region, whole in chain.from_iterable(growth_series(graph, var, axis)):
            least = boundary_bytes(graph, region.splits, region.duplicated)
            assert whole == least + whole_beside(graph, region)


def test_what_is_computed_twice_bars_no_other_op_from_joining() -> None:
    text = """agraph (uint8[64,256] x) => (float[64,256] y)
        <int64 along = {1}, int64[1] columns = {1}> {
        a = Cast <to = 1> (x) r = CumSum(a, along) q = ReduceMax(r, columns)
        s = Neg(a) d = Mul(s, q) e = Exp(d) f = Sigmoid(e) y = CumSum(f, along) }"""
    graph = graph_of(parse(text))
    (*_, (region, _)) = list(growth_series(graph, VarId("d"), 1))[-1]
    assert [graph.ops[at].type for at in sorted(region.splits)] == [
        *("Cast", "Neg", "Mul", "Exp", "Sigmoid")
    ]
    assert region.duplicated == {0}


def test_chunks_that_only_a_removed_op_has_read_are_not_computed() -> None:
    # The region of d, a and g, which is larger than d and e, ends without g. Only g reads a there.
    text = """agraph (float[64,1] x, float[64,1] u) => (float[64,4] y)
        <int64 along = {0}, int64[1] columns = {1}, float[1,4] wide = {1, 1, 1, 1}> {
        a = Add(x, wide) r = CumSum(a, along) q = ReduceMax(r, columns)
        c = Mul(u, q) d = Neg(c) e = Abs(c) g = Sum(d, a, e) y = CumSum(g, along) }"""
    graph = graph_of(parse(text))
    regions = list(regions_from(graph, VarId("g"), 0))
    assert any(region.outputs == ("d",) for region in regions)
    for region in regions:
        for at in region.duplicated:
            assert region.splits.keys() & set(graph.readers(at))


@pytest.mark.parametrize(("opset", "inputs"), [(9, 1), (10, 4)])
def test_a_slice_says_where_as_its_opset_does(opset: int, inputs: int) -> None:
    make = Maker()
    shifted = make.node("Add", make.node("Sigmoid", "x"), make.weight(1))
    result = make.node("ReduceMax", make.node("Exp", shifted), axes=[2], keepdims=0)
    model = make.model({"x": (2, 6, 32)}, result, opset=opset)
    graph = graph_of(model)
    chunked = rewrite_in_chunks(graph, [(last_region(graph, largest(graph), 1), 3)])
    assert chunked is not None
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    assert {len(n.input) for n in written.graph.node if n.op_type == "Slice"} == {inputs}
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_an_op_before_with_subgraphs_changes_no_choice() -> None:
    text = """agraph (float[512,16] x, bool c) => (float[512,16] y) {
        h = HEAD t = Transpose(h) s = MatMul(h, t) m = Softmax(s) y = MatMul(m, h) }"""
    pick = """If (c) <then_branch = t () => (float[512,16] one) {a = Exp(x) one = Neg(a)},
        else_branch = e () => (float[512,16] two) {b = Neg(x) two = Exp(b)}>"""
    graphs = [graph_of(parse(text.replace("HEAD", head))) for head in ("Exp(x)", pick)]
    plain, nested = (
        search(each, PlannedVars(sizes_of(each.program)), 0.25) for each in graphs
    )
    assert [each.count for each in plain.best.choices] == [
        each.count for each in nested.best.choices
    ]
    assert plain.best.peak == nested.best.peak <= 0.25 * plain.before


def test_a_number_of_pieces_that_cannot_be_is_passed_by() -> None:
    text = """agraph (float[256,32] x) => (float[256,1] y) {
        s = Sin(x) c = Cos(s) y = ReduceMax <axes = [1]> (c) }"""
    graph = graph_of(
        parse(
            text.replace("<axes = [1]> (c)", "(c, last)").replace(
                "{", "<int64[1] last = {1}> {", 1
            )
        )
    )
    result = search(graph, PlannedVars(sizes_of(graph.program)), 0.4)
    assert result.best.peak <= 0.4 * result.before


def test_what_lowers_other_steps_than_the_fullest_is_left_whole() -> None:
    make = Maker()
    beside = make.node("Neg", make.node("Exp", "x"))
    mixed = make.node(
        "LayerNormalization", make.node("Sigmoid", "x"), make.weight(8, 16, 16), axis=1
    )
    result = make.node("Add", beside, mixed)
    graph = graph_of(make.model({"x": (1, 8, 16, 16)}, result))
    found = search(graph, PlannedVars(sizes_of(graph.program)), 0.5)
    assert found.best.peak == found.before == 3 * 8 * 16 * 16 * 4
    assert not found.best.choices


def test_what_is_made_along_another_axis_only_is_whole_for_an_op_in_pieces() -> None:
    text = """agraph (float[16,32] x, float[32] s) => (float[16,32] y) {
        a = Softmax <axis = 0> (x) n = Neg(s) y = LayerNormalization <axis = 1> (a, n) }"""
    graph = graph_of(parse(text))
    bound = lower_bound(graph, sizes_of(graph.program), SHARE_SAFELY)
    assert (*bound.tensors,) == ("a", "n")
    assert bound.bytes == (16 + 1) * 32 * 4


def of_role(node: Node, role: Role) -> Split:
    return next(split for split in splits_of(node) if split.role is role)


def filled(*dims: int) -> Any:  # noqa: ANN401 - an array
    return np.random.default_rng(0).standard_normal(dims).astype(np.float32)


@pytest.mark.parametrize(
    ("case", "role", "narrowest"),
    [
        (Case("MatMul", (filled(16, 8), filled(8, 16))), Role.ROWS, 4),
        (Case("MatMul", (filled(16, 8), filled(8, 16))), Role.COLUMNS, 8),
        (Case("Attention", (filled(1, 2, 16, 8),) * 3, opset=23), Role.QUERIES, 4),
        (Case("Conv", (filled(1, 2, 16, 16), filled(3, 2, 1, 1))), Role.TILES, 4),
    ],
)
def test_pieces_are_as_narrow_as_was_measured(case: Case, role: Role, narrowest: int) -> None:
    split = of_role(case.node(case.run()), role)
    node = case.node(case.run())
    assert keeps_bits(node, split, [(0, narrowest), (narrowest, 16)])
    assert not keeps_bits(node, split, [(0, narrowest - 1), (narrowest - 1, 16)])


@pytest.mark.parametrize(
    ("dims", "axis", "keeps", "allowed"),
    [
        ((8, 8, 6), 0, 1, True),
        ((8, 8, 6), 0, 0, True),
        ((8, 6, 6), 2, 0, False),
        ((8, 8, 1), 0, 1, False),
    ],
)
def test_sums_are_cut_beside_rows_that_stay_whole(
    dims: tuple[int, ...], axis: int, keeps: int, *, allowed: bool
) -> None:
    told = np.array([axis], np.int64)
    case = Case("ReduceSum", (filled(*dims), told), {"keepdims": keeps}, constants=(1,))
    node = case.node(case.run())
    (split,) = (
        each for each in splits_of(node) if each.inputs[0] and each.inputs[0].axis == 1
    )
    half = dims[1] // 2
    assert keeps_bits(node, split, [(0, half), (half, dims[1])]) is allowed


def test_attention_with_scores_is_cut_along_batches_heads_and_rows() -> None:
    q, k = filled(2, 4, 8, 16), filled(2, 2, 8, 16)
    case = Case("Attention", (q, k, k), outputs=4)
    node = case.node(case.run())
    splits = splits_of(node)
    assert {part.axis for split in splits for part in split.outputs if part} == {0, 1, 2}
    for split in splits:
        # Whole keys and values are beside each piece of query rows, and nobody's.
        assert None not in split.outputs or split.role is Role.QUERIES
        assert split.outputs[-1] is not None
        cut = split.extent // 2
        if keeps_bits(node, split, [(0, cut), (cut, split.extent)]):
            assert not differences(case, node, split, [cut], Case.run)


def test_the_matrix_of_a_product_is_not_sliced() -> None:
    make = Maker()
    made = make.node("MatMul", "x", make.weight(16, 64))
    kept = make.node("ReduceMax", made, make.constant(np.array([0], np.int64)), keepdims=0)
    graph = graph_of(make.model({"x": (4, 16)}, kept))
    assert not list(regions_from(graph, VarId(made), 1))
