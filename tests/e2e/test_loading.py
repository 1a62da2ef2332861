"""Weights in the model file are moved into a file beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from memplan_cli import Check, Settings, api
from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.weights.external_data import external_tensors
from memplan_cli.onnx_io.weights.inline import inline_bytes, moved_outside
from runs import compared

if TYPE_CHECKING:
    from pathlib import Path

SIDE = 2048
WEIGHTS = 4 * SIDE * SIDE


def heavy(path: Path) -> Path:
    """Write a model of one large weight, which no kernel packs, and a small one."""
    drawn = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    typed = helper.make_tensor("s", onnx.TensorProto.FLOAT, [400], [0.5] * 400)
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
        helper.make_node("Add", ["a", "t"], ["y"]),
    ]
    value = [helper.make_tensor_value_info(n, 1, [SIDE, SIDE]) for n in "xy"]
    weights = [numpy_helper.from_array(drawn, "w"), typed]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], weights)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=opset), path)
    return path


def write_split(model: onnx.ModelProto, out: Path) -> None:
    """Write a model with its large weights in a file beside it."""
    data = out.with_name(f"{out.name}.data")
    with data.open("wb") as file:
        onnx.save(moved_outside(model, data.name, file), out)


def test_weights_outside_give_the_same_outputs(tmp_path: Path) -> None:
    inside, outside = heavy(tmp_path / "in.onnx"), tmp_path / "out.onnx"
    model = load_model(inside)
    assert inline_bytes(model) == WEIGHTS + 1600
    write_split(model, outside)
    assert outside.stat().st_size < 2000
    assert inline_bytes(load_model(outside)) == 0
    assert compared(inside, outside).bit_identical


def outside_of(model: onnx.ModelProto) -> set[str]:
    return {
        e.value
        for t in external_tensors(model)
        for e in t.external_data
        if e.key == "location"
    }


def test_weights_leave_a_portable_file(tmp_path: Path) -> None:
    done = api.optimize(heavy(tmp_path / "in.onnx"), check=Check(provider="cpu"))
    assert done.model is not None
    before, after = load_model(tmp_path / "in.onnx"), load_model(done.model)
    data = tmp_path / "in.memplan.weights.onnx.data"
    assert done.data_files == (data,)
    assert outside_of(after) == {data.name}
    assert done.plan.report.external_weights == ExternalWeights(data.name, WEIGHTS + 1600)
    assert [n.name for n in before.graph.node] == [n.name for n in after.graph.node]
    assert [t.name for t in before.graph.initializer] == [
        t.name for t in after.graph.initializer
    ]
    found = compared(tmp_path / "in.onnx", done.model)
    assert found.bit_identical


def test_weights_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    keep = Settings(external_weights="keep")
    done = api.optimize(heavy(tmp_path / "in.onnx"), keep, check=None)
    assert done.model is not None
    assert done.data_files == ()
    assert not outside_of(load_model(done.model))
    assert done.plan.report.external_weights == ExternalWeights()


def test_data_that_is_external_already_stays_in_its_file(tmp_path: Path) -> None:
    model = load_model(heavy(tmp_path / "in.onnx"))
    write_split(model, tmp_path / "split.onnx")
    split = load_model(tmp_path / "split.onnx")
    extra = np.arange(SIDE * SIDE, dtype=np.float32)
    split.graph.initializer.append(numpy_helper.from_array(extra, "extra"))
    split.graph.node.append(helper.make_node("Identity", ["extra"], ["unread"]))
    onnx.save(split, tmp_path / "mixed.onnx")
    done = api.optimize(tmp_path / "mixed.onnx", check=None)
    assert done.model is not None
    assert outside_of(load_model(done.model)) == {
        "split.onnx.data",
        "mixed.memplan.weights.onnx.data",
    }


def test_written_again_with_keep_the_earlier_data_file_goes(tmp_path: Path) -> None:
    model = heavy(tmp_path / "in.onnx")
    data = tmp_path / "in.memplan.weights.onnx.data"
    api.optimize(model, check=None)
    assert data.exists()
    api.optimize(model, check=None)  # its own earlier file is not in the way
    api.optimize(model, Settings(external_weights="keep"), check=None)
    assert not data.exists()


def test_a_file_of_somebody_is_not_written_over(tmp_path: Path) -> None:
    model = heavy(tmp_path / "in.onnx")
    data = tmp_path / "in.memplan.weights.onnx.data"
    data.write_bytes(b"mine")
    with pytest.raises(ModelError, match="in the way"):
        api.optimize(model, check=None)
    assert data.read_bytes() == b"mine"
    assert not (tmp_path / "in.memplan.onnx").exists()


def test_equal_weights_are_stored_once(tmp_path: Path) -> None:
    model = load_model(heavy(tmp_path / "in.onnx"))
    twin = model.graph.initializer.add()
    twin.CopyFrom(model.graph.initializer[0])
    twin.name = "twin"
    with (tmp_path / "w.data").open("wb") as file:
        moved = moved_outside(model, "w.data", file)
    assert (tmp_path / "w.data").stat().st_size < WEIGHTS + 8192
    places = [{e.key: e.value for e in t.external_data} for t in moved.graph.initializer]
    assert places[0] == places[-1]


def test_large_weights_start_on_multiples_of_64_kib_before_small_ones(tmp_path: Path) -> None:
    model = load_model(heavy(tmp_path / "in.onnx"))
    large, small = model.graph.initializer
    odd = numpy_helper.from_array(np.ones((1 << 18) + 1, np.float32), "odd")
    del model.graph.initializer[:]
    model.graph.initializer.extend([small, odd, large])
    with (tmp_path / "w.data").open("wb") as file:
        moved = moved_outside(model, "w.data", file)
    offsets = {t.name: int(t.external_data[1].value) for t in moved.graph.initializer}
    assert offsets == {
        "odd": 0,
        "w": (1 << 20) + (1 << 16),
        "s": (1 << 20) + (1 << 16) + WEIGHTS,
    }
    assert (tmp_path / "w.data").stat().st_size < 1.01 * inline_bytes(model)


def test_numbers_of_four_bits_stay_where_they_are_not_raw(tmp_path: Path) -> None:
    model = load_model(heavy(tmp_path / "in.onnx"))
    kind = onnx.TensorProto.INT4
    half = model.graph.initializer.add(name="half", data_type=kind, dims=[4096])
    half.int32_data.extend([0x21] * 2048)
    with (tmp_path / "w.data").open("wb") as file:
        moved = moved_outside(model, "w.data", file)
    (there,) = [t for t in moved.graph.initializer if t.name == "half"]
    assert there == half
