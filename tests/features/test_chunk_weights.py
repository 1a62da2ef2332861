"""Columns of constants: cut once in the file, as views of its bytes where they lie together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from features.chunk_models import Maker
from features.test_chunk_rewrite import graph_of, run
from memplan_cli import api
from memplan_cli.core.program import VarId
from memplan_cli.core.results.rewrites import WeightSlice
from memplan_cli.features.chunking.region import regions_from
from memplan_cli.features.chunking.rewrite import rewrite_in_chunks
from memplan_cli.onnx_io.weights.tensor_data import cut_weight
from memplan_cli.onnx_io.writing.chunked import chunked_model
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def logits(rows: int, summed: int, columns: int, kind: str = "Gemm") -> onnx.ModelProto:
    """Return the largest of a few rows of logits, made with a constant weight."""
    make = Maker()
    if kind == "Gemm":
        made = make.node(
            kind, "x", make.weight(columns, summed), make.weight(columns), transB=1
        )
    else:
        made = make.node(kind, "x", make.weight(summed, columns))
    made = make.node("Sigmoid", make.node("Mul", made, made))
    kept = make.node("ReduceMax", made, make.constant(np.array([0], np.int64)), keepdims=0)
    return make.model({"x": (rows, summed)}, kept)


@settings(max_examples=25)
@given(
    rows=st.integers(1, 7),
    summed=st.integers(1, 300),
    columns=st.integers(16, 400),
    count=st.integers(2, 6),
    kind=st.sampled_from(["Gemm", "MatMul"]),
)
def test_columns_of_constants_keep_the_bits(
    rows: int, summed: int, columns: int, count: int, kind: str
) -> None:
    model = logits(rows, summed, columns, kind)
    graph = graph_of(model)
    made = graph.ops[0].outputs[0]
    for region in regions_from(graph, made, 1):
        chunked = rewrite_in_chunks(graph, [(region, count)])
        if chunked is None:
            continue
        cuts = [each for each in chunked.constants.values() if isinstance(each, WeightSlice)]
        assert sum(cut.weight == "w0" for cut in cuts) == count
        written, _ = chunked_model(model, chunked.program, chunked.constants)
        onnx.checker.check_model(written, full_check=True)
        assert [x.tobytes() for x in run(written)] == [x.tobytes() for x in run(model)]
        names = {tensor.name for tensor in written.graph.initializer}
        assert "w0" not in names, "a weight is stored once"
        assert not any(
            node.op_type == "Slice" and node.input[0] == "w0" for node in written.graph.node
        )


@pytest.mark.parametrize("rows", [8, 64])
def test_columns_are_not_cut_where_rows_can_be(rows: int) -> None:
    graph = graph_of(logits(rows, 16, 64, "MatMul"))
    assert not list(regions_from(graph, graph.ops[0].outputs[0], 1))


def test_a_weight_that_others_read_is_not_cut() -> None:
    model = logits(4, 16, 64, "MatMul")
    model.graph.node.add(op_type="Neg", input=["w0"], output=["other"])
    model.graph.output.add(name="other")
    model = onnx.shape_inference.infer_shapes(model)
    graph = graph_of(model)
    assert not list(regions_from(graph, VarId("matmul0"), 1))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_part_is_a_view_of_the_file_where_its_bytes_lie_together(
    tmp_path: Path, axis: int
) -> None:
    values = np.arange(48, dtype=np.float32).reshape(6, 8)
    make = Maker()
    kept = make.node("Add", "x", make.constant(values))
    path = tmp_path / "net.onnx"
    onnx.save_model(
        make.model({"x": (6, 8)}, kept),
        path,
        save_as_external_data=True,
        location="data",
        size_threshold=0,
    )
    (weight,) = onnx.load(path, load_external_data=False).graph.initializer
    part = cut_weight(
        weight, WeightSlice("w0", axis, 2, 5), [tmp_path / "elsewhere", tmp_path]
    )
    found = numpy_helper.to_array(part, str(tmp_path))
    assert np.array_equal(found, values[2:5] if axis == 0 else values[:, 2:5])
    assert (part.data_location == part.EXTERNAL) == (axis == 0)
    if axis == 0:
        told = {
            entry.key: int(entry.value)
            for entry in part.external_data
            if entry.key != "location"
        }
        assert told["length"] == 3 * 8 * 4


@pytest.mark.parametrize(("start", "stop", "is_view"), [(2, 5, True), (1, 4, False)])
def test_a_part_of_four_bit_elements_is_a_view_where_it_starts_at_a_byte(
    tmp_path: Path, start: int, stop: int, *, is_view: bool
) -> None:
    values = [1, -2, 3, -4, 5, -6, 7, -8, 1, 2, 3, 4, 5, 6, 7, 0, -1, -2]
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [6, 3], values)
    (tmp_path / "data").write_bytes(weight.raw_data or bytes(weight.int32_data))
    stored = numpy_helper.to_array(weight)
    external = onnx.TensorProto()
    external.CopyFrom(weight)
    external.ClearField("int32_data")
    external.ClearField("raw_data")
    external.data_location = onnx.TensorProto.EXTERNAL
    entry = external.external_data.add()
    entry.key, entry.value = "location", "data"
    part = cut_weight(external, WeightSlice("w", 0, start, stop), [tmp_path])
    assert np.array_equal(numpy_helper.to_array(part, str(tmp_path)), stored[start:stop])
    assert (part.data_location == part.EXTERNAL) == is_view


def test_logits_of_a_few_rows_are_written_with_views_and_proved(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = logits(4, 64, 8192)
    onnx.save_model(
        model, path, save_as_external_data=True, location="net.data", size_threshold=1024
    )
    result = api.optimize(path, Settings(chunk="auto", budget=0.6))
    assert result.passed
    assert result.model is not None
    assert result.plan.report.validation is not None
    assert result.plan.report.validation.bit_identical
    written = onnx.load(result.model, load_external_data=False)
    views = [t for t in written.graph.initializer if t.dims[1:] == [64]]
    assert len(views) > 1
    assert all(tensor.data_location == tensor.EXTERNAL for tensor in views)
    assert sum(tensor.dims[0] for tensor in views) == 8192
    assert result.model.stat().st_size < 64 * 8192
    session = onnxruntime.InferenceSession(
        str(result.model), providers=["CPUExecutionProvider"]
    )
    assert session.get_inputs()[0].shape == [4, 64]
