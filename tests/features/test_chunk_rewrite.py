"""Regions grown and put in pieces: written as ONNX, they give the same bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import parse
from features.chunk_models import (
    causal,
    convolutions,
    segmentation,
    transformer,
    two_readers,
)
from memplan_cli.analysis.storage import live_peak
from memplan_cli.core.program import Program, VarId, intermediates
from memplan_cli.core.symbolic.sizes import Size, size_of
from memplan_cli.features.chunking.axes.split import ModelContext, Role
from memplan_cli.features.chunking.graph import Graph
from memplan_cli.features.chunking.region import growth_series, regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.constants import small_constants
from memplan_cli.onnx_io.load import standard_opset
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.onnx_io.writing.structure import structure_errors

if TYPE_CHECKING:
    from memplan_cli.features.chunking.region import Region

    Array = np.ndarray[Any, Any]


def graph_of(model: onnx.ModelProto) -> Graph:
    facts = ModelContext(small_constants(model), standard_opset(model))
    return Graph.of(read_program(model).program, facts)


def run(model: onnx.ModelProto) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    rng = np.random.default_rng(1)
    feeds = {value.name: _drawn(rng, value) for value in model.graph.input}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(each) for each in session.run(None, feeds)]


def _drawn(rng: np.random.Generator, value: onnx.ValueInfoProto) -> Array:
    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if kind.kind == "f":
        return rng.standard_normal(dims).astype(kind)
    return rng.integers(-3, 24, dims).astype(kind)


def sizes_of(program: Program) -> dict[VarId, Size]:
    found = {
        var: size_of(program.vars[var].shape, program.vars[var].dtype)
        for var in intermediates(program)
    }
    return {var: size for var, size in found.items() if size is not None}


def peak(program: Program) -> int:
    return live_peak(program, sizes_of(program))


def largest(graph: Graph) -> VarId:
    return max(intermediates(graph.program), key=lambda var: (graph.bytes(var), var))


def last_region(graph: Graph, seed: VarId, axis: int) -> Region:
    return list(regions_from(graph, seed, axis))[-1]


@pytest.mark.parametrize(("axis", "count"), [(1, 2), (2, 2), (2, 5), (2, 64)])
def test_attention_in_pieces_gives_the_same_bits(axis: int, count: int) -> None:
    model = transformer()
    graph = graph_of(model)
    region = last_region(graph, largest(graph), axis)
    chunked = rewrite_in_chunks(graph, [(region, count)])
    assert chunked is not None
    written, program = chunked_model(model, chunked.program, chunked.constants)
    onnx.checker.check_model(written, full_check=True)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
    assert read_program(written).program.body == program.body


def test_a_region_goes_past_the_reader_that_joins_maps() -> None:
    model = segmentation()
    graph = graph_of(model)
    (joined,) = (op.outputs[0] for op in graph.ops if op.type == "Concat")
    region = last_region(graph, joined, 2)
    types = [graph.ops[at].type for at in sorted(region.splits)]
    assert types.count("Resize") == 2
    assert types[-3:] == ["Concat", "Conv", "Relu"]
    chunked = rewrite_in_chunks(graph, [(region, 4)])
    assert chunked is not None
    assert peak(chunked.program) < peak(graph.program) / 2
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_causal_attention_keeps_its_rows_whole() -> None:
    graph = graph_of(causal(heads=4))
    at = next(at for at, op in enumerate(graph.ops) if op.type == "Attention")
    assert graph.splits(at)
    assert Role.QUERIES not in {split.role for split in graph.splits(at)}


def test_single_rows_are_never_made() -> None:
    graph = graph_of(transformer())
    region = last_region(graph, largest(graph), 2)
    assert rewrite_in_chunks(graph, [(region, 256)]) is None


def test_the_scores_of_attention_are_never_whole() -> None:
    graph = graph_of(transformer(layers=1))
    scores = largest(graph)
    chunked = rewrite_in_chunks(graph, [(last_region(graph, scores, 2), 8)])
    assert chunked is not None
    assert scores not in chunked.program.vars
    assert peak(chunked.program) < peak(graph.program) / 2


@pytest.mark.parametrize(("axis", "count"), [(2, 4), (3, 3), (2, 16)])
def test_tiles_of_convolutions_give_the_same_bits(axis: int, count: int) -> None:
    model = convolutions()
    graph = graph_of(model)
    region = last_region(graph, largest(graph), axis)
    chunked = rewrite_in_chunks(graph, [(region, count)])
    assert chunked is not None
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    onnx.checker.check_model(written, full_check=True)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
    assert peak(chunked.program) < peak(graph.program)


def test_readers_that_need_more_and_less_of_a_tensor_share_its_pieces() -> None:
    model = two_readers()
    graph = graph_of(model)
    chunked = rewrite_in_chunks(graph, [(last_region(graph, largest(graph), 2), 4)])
    assert chunked is not None
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_names_of_what_remains_stay() -> None:
    model = transformer(layers=1)
    graph = graph_of(model)
    region = last_region(graph, largest(graph), 2)
    chunked = rewrite_in_chunks(graph, [(region, 4)])
    assert chunked is not None
    inside = {var for at in region.splits for var in graph.ops[at].outputs}
    stays = set(graph.program.vars) - inside | set(region.outputs)
    constants = {var for var in stays if var.startswith("w")}
    assert stays - constants <= set(chunked.program.vars)
    assert chunked.program.body.outputs == graph.program.body.outputs


def test_a_copied_op_keeps_the_result_that_nobody_reads() -> None:
    """The op stays for its other result, and so does the name of this one."""
    model = transformer(length=128, layers=2)
    for node in model.graph.node:
        if node.op_type == "LayerNormalization":
            node.output.append(f"{node.name}_mean")
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    graph = graph_of(model)
    mixed = [op.outputs[0] for op in graph.ops if op.type == "Softmax"][-1]
    region = next(each for each in regions_from(graph, mixed, 2) if each.duplicated)
    means = {graph.ops[at].outputs[1] for at in region.duplicated}
    chunked = rewrite_in_chunks(graph, [(region, 4)])
    assert chunked is not None
    assert means <= set(chunked.program.vars)
    written, program = chunked_model(model, chunked.program, chunked.constants)
    assert read_program(written).program.body == program.body
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_two_results_of_one_op_are_joined_by_nodes_of_two_names() -> None:
    model = parse("""g (float[8,16] x) => (float[8,8] y) {
        t = Exp(x)  a, b = Split <axis = 1, num_outputs = 2> (t)  c = CumSum(a, along)  y = Add(c, b) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0), "along"))
    graph, whole = graph_of(model), [x.tobytes() for x in run(model)]
    stages = [stage for series in growth_series(graph, VarId("a"), 0) for stage in series]
    joined = [stage.region for stage in stages if len(stage.region.outputs) == 2]
    assert joined
    for region in joined:
        chunked = rewrite_in_chunks(graph, [(region, 2)])
        assert chunked is not None
        written, _ = chunked_model(model, chunked.program, chunked.constants)
        assert tuple(structure_errors(written)) == ()
        assert [x.tobytes() for x in run(written)] == whole


def test_several_regions_are_written_together() -> None:
    model = transformer(layers=3)
    graph = graph_of(model)
    scores = [op.outputs[0] for op in graph.ops if op.type == "Softmax"]
    chosen = [(last_region(graph, each, 2), 4) for each in scores]
    chunked = rewrite_in_chunks(graph, chosen)
    assert chunked is not None
    written, _ = chunked_model(model, chunked.program, chunked.constants)
    assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
    assert peak(chunked.program) < peak(graph.program) / 2


MODELS = (
    transformer(length=24, layers=1),
    causal(length=24),
    convolutions(size=16, layers=3),
    two_readers(),
)


@settings(max_examples=24)
@given(data=st.data())
def test_any_region_in_any_number_of_pieces_gives_the_same_bits(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    graph = graph_of(model)
    seed = data.draw(st.sampled_from(intermediates(graph.program)))
    axis = data.draw(st.integers(0, len(graph.dims(seed)) - 1))
    found = list(regions_from(graph, seed, axis))
    if not found:
        return
    region, count = data.draw(st.sampled_from(found)), data.draw(st.integers(2, 6))
    chunked = rewrite_in_chunks(graph, [(region, count)])
    if chunked is not None:
        written, _ = chunked_model(model, chunked.program, chunked.constants)
        onnx.checker.check_model(written, full_check=True)
        assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]


def test_the_target_shape_of_an_expand_is_not_sliced() -> None:
    model = parse("""g (float[1,32,1] x) => (float[64,32,3] y) <int64[3] shape = {64, 32, 3}> {
        a = Relu (x)
        b = Expand (a, shape)
        y = Neg (b)
    }""")
    graph = graph_of(model)
    regions = list(regions_from(graph, VarId("b"), axis=2))
    assert regions
    for region in regions:
        # The first input of each op may be sliced, but not the target shape, the second of the Expand.
        splits = region.splits.values()
        assert not any(axis_map for split in splits for axis_map in split.inputs[1:])
        chunked = rewrite_in_chunks(graph, [(region, 3)])
        assert chunked is not None
        slices = [op for op in chunked.program.body.ops if op.type == "Slice"]
        assert not any("shape" in op.inputs for op in slices)
