"""Models with caches in place: the nodes that are written, and both loops in this process."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import helper

from cache_models import Means, Shape, decoder
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.core.results.rewrites import KeptCache
from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.features.kv_cache import decode_job, decode_loop
from memplan_cli.features.kv_cache.decode_loop import (
    DecodeComparison,
    DecodeLoop,
    decode_original,
    decode_written,
    decoding_verdict,
)
from memplan_cli.features.kv_cache.find import find_caches
from memplan_cli.features.kv_cache.grouped import without_repeated_heads
from memplan_cli.features.kv_cache.rewrite import with_cache_buffers, with_tensor_scatter
from memplan_cli.runtime.run.run_model import require_weights
from memplan_cli.runtime.workers.worker import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.core.results.rewrites import CacheSummary


def in_place(model: onnx.ModelProto) -> tuple[onnx.ModelProto, CacheSummary]:
    model = with_tensor_scatter(model)
    return with_cache_buffers(model, find_caches(model), 6)


def also_read(model: onnx.ModelProto, cache: str) -> None:
    """Let a further node read a past or a present."""
    model.graph.node.append(helper.make_node("Abs", [cache], ["seen"], "see"))
    values = (*model.graph.input, *model.graph.output)
    (value,) = (value for value in values if value.name == cache)
    model.graph.output.append(value)
    model.graph.output[-1].name = "seen"


def run_here(_function: str, job: Any, *, timeout: float) -> Outcome:  # noqa: ANN401
    assert timeout
    return Outcome("ok", decode_job.run(job))


def test_a_written_model_decodes_as_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_loop, "run_job", run_here)
    model = decoder()
    written, caches = in_place(model)
    paths = tmp_path / "original.onnx", tmp_path / "written.onnx"
    for each, path in zip((model, written), paths, strict=True):
        onnx.save(each, path)
    loop = DecodeLoop("CPUExecutionProvider", tmp_path, lengths=(2, 1))
    original = decode_original(paths[0], caches, loop)
    assert original.steps == (2, 1)
    assert original.tokens == (("ids", 1),)
    comparison = decode_written(paths[1], caches, original, loop)
    assert comparison.passed
    assert not comparison.differences


def test_a_length_of_the_past_is_asked_for_without_a_slice_of_it() -> None:
    model = decoder(Shape(means="grouped", mask="none", opset=23))
    written, caches = in_place(model)
    (query,) = (node for node in written.graph.node if node.op_type == "GroupQueryAttention")
    assert query.input[3] == "a0_past"
    assert not any(
        node.op_type == "Slice" and node.input[0] == "a0_past" for node in written.graph.node
    )
    assert written.graph.output[-1].name == caches.length


def test_other_dims_of_a_past_are_asked_for_without_a_slice_of_it() -> None:
    model = decoder(Shape(means="grouped", mask="none", opset=23))
    batch = helper.make_node("Shape", ["a0_past"], ["batch"], start=0, end=1)
    model.graph.node.append(batch)
    model.graph.output.append(
        helper.make_tensor_value_info("batch", onnx.TensorProto.INT64, [1])
    )
    written, _ = in_place(model)
    assert not any(
        node.op_type == "Slice" and node.input[0] == "a0_past" for node in written.graph.node
    )


def test_only_the_operator_that_writes_a_cache_reads_all_of_it() -> None:
    model = decoder(Shape(means="grouped", mask="none", opset=23))
    also_read(model, "a0_past")
    written, _ = in_place(model)
    readers = {node.op_type for node in written.graph.node if "a0_past" in node.input}
    assert "GroupQueryAttention" in readers
    assert "Abs" not in readers


@pytest.mark.parametrize("means", ["concat", "cast", "attention", "grouped"])
def test_nodes_that_are_added_have_names_of_their_own(means: Means) -> None:
    model = decoder(Shape(2, means=means, mask="none", opset=23))
    also_read(model, "a0_now")
    written, _ = in_place(model)
    names = [node.name for node in written.graph.node]
    assert len(set(names)) == len(names)


def test_a_weight_of_the_model_is_not_taken_for_an_axis() -> None:
    model = decoder()
    own = helper.make_tensor("cache_axis_2", onnx.TensorProto.INT64, [1], [0])
    model.graph.initializer.append(own)
    model.graph.node.append(helper.make_node("Neg", ["cache_axis_2"], ["negative"]))
    model.graph.output.append(
        helper.make_tensor_value_info("negative", onnx.TensorProto.INT64, [1])
    )
    written, _ = in_place(model)
    cuts = [
        node
        for node in written.graph.node
        if node.op_type == "Slice" and node.input[0] in ("a0_past", "a0_now")
    ]
    assert cuts
    assert all(node.input[3] != "cache_axis_2" for node in cuts)


def test_both_ends_of_a_cache_are_declared_with_the_capacity() -> None:
    written, _ = in_place(decoder())
    declared = {
        value.name: value.type for value in (*written.graph.input, *written.graph.output)
    }
    assert declared["a0_past"].tensor_type.shape.dim[2].dim_value == 6
    assert declared["a0_now"] == declared["a0_past"]


def test_caches_that_stay_as_they_are_are_told_with_the_reason() -> None:
    model = with_tensor_scatter(decoder())
    kept = (KeptCache("b_past", "b_now", "another shape"),)
    search = dataclasses.replace(find_caches(model), kept=kept)
    assert with_cache_buffers(model, search, 6)[1].kept == kept


def test_a_model_without_its_weights_file_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = decoder()
    _, caches = in_place(model)
    path = tmp_path / "original.onnx"
    onnx.save(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(
        RuntimeUnavailableError, match=r"its weights file weights\.bin is not in"
    ):
        decode_original(path, caches, DecodeLoop("CPUExecutionProvider", tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        RuntimeUnavailableError, match=r"bin is not in the current folder\nHint: "
    ):
        require_weights(path.relative_to(tmp_path))


def test_the_original_decodes_as_many_entries_as_the_capacity_has_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure_of = decode_job._OriginalLoop._trial_failure

    def fails_without_entries(loop: Any, rules: Any, past: int, new: int) -> str:  # noqa: ANN401
        return failure_of(loop, rules, past, new) if past else "no entries"

    monkeypatch.setattr(decode_job._OriginalLoop, "_trial_failure", fails_without_entries)
    monkeypatch.setattr(decode_loop, "run_job", run_here)
    model = decoder()
    _, caches = in_place(model)
    path = tmp_path / "original.onnx"
    onnx.save(model, path)
    loop = DecodeLoop("CPUExecutionProvider", tmp_path, lengths=(6, 3, 3, 1))
    original = decode_original(path, caches, loop)
    assert original.start == 1
    assert original.lengths == (3, 1), "the capacity is 6"


def test_a_passed_loop_that_ran_unoptimized_is_compared_with_the_defaults_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_loop, "run_job", run_here)
    model = decoder()
    written, caches = in_place(model)
    paths = tmp_path / "original.onnx", tmp_path / "written.onnx"
    for each, path in zip((model, written), paths, strict=True):
        onnx.save(each, path)
    loop = DecodeLoop("CPUExecutionProvider", tmp_path, lengths=(1,))
    original = decode_original(paths[0], caches, loop)
    verdict = partial(
        decoding_verdict, paths[1], caches, original, loop, RuntimeSettings(), "unoptimized"
    )
    passed = verdict()
    assert (passed.status, passed.reference) == ("passed", "unoptimized")
    assert passed.diff_from_defaults is not None
    comparisons = iter([DecodeComparison(), DecodeComparison(failure="it did not run")])
    with monkeypatch.context() as patch:
        patch.setattr(decode_loop, "decode_written", lambda *_: next(comparisons))
        assert verdict().diff_from_defaults is None, "the comparison with the defaults failed"
    monkeypatch.setattr(
        decode_loop, "decode_written", lambda *_: DecodeComparison(failure="it did not run")
    )
    failed = verdict()
    assert (failed.status, failed.reference) == ("failed", "unoptimized")
    assert failed.diff_from_defaults is None


def test_heads_that_are_repeated_for_a_group_of_queries_are_broadcast() -> None:
    written, _ = in_place(decoder(Shape(groups=2)))
    graph = without_repeated_heads(written).graph
    five_axes = [
        node
        for node in graph.node
        if node.op_type == "MatMul" and ".grouped" in node.output[0]
    ]
    assert len(five_axes) == 2


def test_heads_are_broadcast_if_the_shape_of_their_repetition_is_compared_as_pytorch_does() -> (
    None
):
    written, _ = in_place(decoder(Shape(groups=2)))
    graph = written.graph
    for name, value in (("ones", 1), ("minus_ones", -1)):
        graph.initializer.append(
            helper.make_tensor(name, onnx.TensorProto.INT64, [5], [value] * 5)
        )
    for node in list(graph.node):
        if node.op_type == "Expand" and node.input[0].startswith("unsqueeze"):
            shape = node.input[1]
            equal, chosen = f"{shape}.equal", f"{shape}.chosen"
            graph.node.append(helper.make_node("Equal", [shape, "minus_ones"], [equal]))
            graph.node.append(helper.make_node("Where", [equal, "ones", shape], [chosen]))
            node.input[1] = chosen
    assert without_repeated_heads(written) is not written
