"""``--kv-cache in-place`` from the file that is read to the decoder that runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper

import memplan_cli
from cache_models import Shape, decoder
from memplan_cli import api
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError, SettingsError
from memplan_cli.features.kv_cache.buffered import BufferedDecoder
from memplan_cli.features.kv_cache.report import kv_cache_section
from memplan_cli.onnx_io.caches_metadata import CACHES, recorded_caches
from memplan_cli.planning.plan_file import checked_plan
from memplan_cli.settings.settings import Settings
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

IN_PLACE = Settings(kv_cache="in-place", capacity=16)


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


def test_a_decoder_is_written_proved_and_validated(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder(Shape(layers=1, groups=2)))
    found = api.optimize(path, IN_PLACE)
    assert found.passed
    assert found.model is not None
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert len(report.caches.growing) == 2
    assert sum(report.caches.steps) > 4
    assert report.caches.tokens == (("ids", 1),)
    assert len(report.donated.pairs) == 2
    assert report.donated.bytes == report.caches.bytes == 2 * 2 * 16 * 4 * 4
    onnx.checker.check_model(str(found.model), full_check=True)
    again = memplan("validate", found.model, "--original", path)
    assert again.exit_code == 0, again.output
    assert "decoded" in again.output
    for words in (("--measure",), ("--input", "ids=1")):
        refused = memplan("validate", found.model, "--original", path, *words)
        assert refused.exit_code == 2
        assert f"{words[0]} is for a model that is run on single inputs" in refused.output


def test_each_attempt_says_how_it_differs_from_the_first() -> None:
    attempts = BufferedDecoder.of(decoder(Shape(groups=2)), 16, ()).attempts()
    notes = [[note.split()[0] for note in attempt.notes] for attempt in attempts]
    assert notes == [[], ["Repeated"]]


def test_no_buffer_is_copied_into_another(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder(Shape(layers=2)))
    found = api.optimize(path, IN_PLACE)
    before, memory = found.plan.report.caches.before, found.plan.report.memory
    assert before is not None
    assert memory.inputs is not None
    assert memory.outputs is not None
    assert memory.planned is not None
    now = memory.inputs + memory.outputs - found.plan.report.donated.bytes + memory.planned
    assert now < sum(before)


def test_the_file_says_how_its_buffers_are_bound(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder(Shape(crossed=True)))
    found = api.optimize(path, IN_PLACE, settings_out=tmp_path / "run.py")
    assert found.model is not None
    entries = {e.key: e.value for e in onnx.load(found.model).metadata_props}
    caches = recorded_caches(entries)
    assert caches is not None
    assert caches.capacity == 16
    forms = {each.input: each.form for each in caches.buffers}
    assert forms == {
        "a0_past": "concat", "b0_past": "concat", "c0_past": "constant", "d0_past": "constant",
    }  # fmt: skip
    code = (tmp_path / "run.py").read_text()
    assert "'a0_now': 'a0_past'" in code
    assert memplan_cli.Decoder(found.model).caches == caches


def test_recommended_settings_keep_the_buffers_of_a_file_bound(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder())
    found = api.optimize(path, IN_PLACE)
    assert found.model is not None
    runtime = found.plan.report.runtime
    assert runtime is not None
    assert runtime.settings is not None
    assert not runtime.settings.is_unoptimized
    chosen = api.settings(found.model).settings
    assert chosen.io_binding == runtime.settings.io_binding != {}


def test_the_decoder_of_a_file_gives_what_a_loop_gives(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder(Shape(crossed=True)))
    found = api.optimize(path, IN_PLACE)
    assert found.model is not None
    decoding = memplan_cli.Decoder(found.model)
    rng = np.random.default_rng(1)
    heard = {
        n: rng.standard_normal((1, 2, 5, 4), dtype=np.float32) for n in ("c0_past", "d0_past")
    }
    ids = np.array([[1, 2, 3]])
    with pytest.raises(SettingsError, match="'c0_past' is missing"):
        decoding.prefill({"ids": ids})
    whole = decoding.prefill({"ids": ids, **heard})["logits"]
    decoding.prefill({"ids": ids[:, :2], **heard})
    last = decoding.step({"ids": ids[:, 2:]})["logits"]
    assert np.allclose(whole[:, 2:], last, atol=1e-6)
    assert decoding.position == 3
    assert decoding.capacity == 16


def test_a_plan_of_caches_is_read_back_and_reported(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder())
    found = api.optimize(path, IN_PLACE)
    assert found.plan_file is not None
    plan = checked_plan(json.loads(found.plan_file.read_text()))
    assert plan.report.caches == found.plan.report.caches
    assert plan.settings["kv_cache"] == "in-place"
    assert plan.settings["capacity"] == 16
    text = memplan("report", found.plan_file, "-v")
    assert "Caches in place" in text.output
    assert "the step that fills them" in text.output
    assert to_json(plan.report) == to_json(found.plan.report)


def test_memory_of_a_step_is_left_out_if_its_outputs_are_unknown(tmp_path: Path) -> None:
    report = api.optimize(saved(tmp_path, decoder()), IN_PLACE).plan.report
    texts = [
        str(list(kv_cache_section(replace(report, memory=memory), 5)))
        for memory in (report.memory, replace(report.memory, outputs=None))
    ]
    assert ["the step that fills them" in text for text in texts] == [True, False]


def test_constants_are_folded_too(tmp_path: Path) -> None:
    model = decoder()
    graph = model.graph
    weight = next(t for t in graph.initializer if t.name == graph.node[-2].input[1])
    swapped = onnx.numpy_helper.to_array(weight).T.copy()
    weight.CopyFrom(onnx.numpy_helper.from_array(swapped, weight.name))
    product = next(n for n in graph.node if weight.name in n.input)
    turned = helper.make_node("Transpose", [weight.name], ["turned"], "turn", perm=[1, 0])
    product.input[1] = "turned"
    graph.node.insert(0, turned)
    path = saved(tmp_path, model)
    found = api.optimize(path, replace(IN_PLACE, fold_constants=True))
    assert found.passed
    assert found.plan.report.folded.tensors


def test_without_a_check_the_file_is_written_too(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder())
    found = api.optimize(path, IN_PLACE, check=None)
    assert found.model is not None
    assert memplan_cli.Decoder(found.model).step({"ids": np.array([[1]])})["logits"].any()
    assert memplan("validate", found.model, "--original", path).exit_code == 0


def test_a_plan_records_that_the_user_allowed_no_run(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder())
    assert "run" not in api.optimize(path, IN_PLACE, check=None).plan.settings
    found = api.optimize(path, replace(IN_PLACE, run=False), out=tmp_path / "without_run.onnx")
    assert found.plan.settings["run"] is False


def test_outputs_that_differ_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memplan_cli.features.kv_cache import buffered, rewrite

    honest = rewrite.with_cache_buffers

    def wrong(*asked: object) -> object:
        model, caches = honest(*asked)  # type: ignore[arg-type]
        softmax = next(n for n in model.graph.node if n.op_type == "Softmax")
        softmax.op_type = "Sigmoid"
        del softmax.attribute[:]
        return model, caches

    monkeypatch.setattr(buffered, "with_cache_buffers", wrong)
    path = saved(tmp_path, decoder())
    found = api.optimize(path, IN_PLACE)
    assert not found.passed
    assert found.model is None
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def refused(folder: Path, model: onnx.ModelProto, *options: str) -> str:
    path = saved(folder, model)
    wanted = ("--kv-cache", "in-place", "--capacity", "16", *options)
    found = memplan("optimize", path, *wanted)
    assert found.exit_code == 2, found.output
    assert "Traceback" not in found.output
    assert [p.name for p in folder.iterdir()] == ["net.onnx"]
    return str(found.output)


def test_beams_reordered_in_the_graph_are_refused(tmp_path: Path) -> None:
    model = decoder()
    graph = model.graph
    graph.input.append(helper.make_tensor_value_info("beams", TensorProto.INT64, ["batch"]))
    for name in ("a0", "b0"):
        node = helper.make_node(
            "Gather", [f"{name}_past", "beams"], [f"{name}_chosen"], axis=0
        )
        concat = next(
            n for n in graph.node if n.op_type == "Concat" and f"{name}_past" in n.input
        )
        concat.input[0] = f"{name}_chosen"
        graph.node.insert(0, node)
    assert "a Gather reorders its rows (beams)" in refused(tmp_path, model)


def test_a_window_is_refused(tmp_path: Path) -> None:
    model = decoder(Shape(identity=True, mask="none"))
    graph = model.graph
    graph.initializer.extend(
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("start", -4), ("end", 2**62), ("axes", 2))
    )
    for node in graph.node:
        if node.output[0] in ("a0_now", "b0_now"):
            node.op_type = "Slice"
            node.input.extend(["start", "end", "axes"])
    assert "a Slice drops its oldest values" in refused(tmp_path, model)


def test_a_cache_that_two_outputs_extend_is_refused(tmp_path: Path) -> None:
    model = decoder(Shape(identity=True))
    for name in ("a0", "b0"):
        value = next(v for v in model.graph.output if v.name == f"{name}_now")
        twin = onnx.ValueInfoProto()
        twin.CopyFrom(value)
        twin.name = f"{name}_copy"
        model.graph.output.append(twin)
        source = next(n for n in model.graph.node if n.output[0] == f"{name}_now").input[0]
        model.graph.node.append(helper.make_node("Identity", [source], [twin.name]))
    assert "several outputs extend or repeat it" in refused(tmp_path, model)


def test_an_excluded_cache_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, decoder(), "--exclude", "*_now")
    assert "it is excluded: its value must outlive the step" in said


def test_a_length_that_the_file_fixes_is_refused(tmp_path: Path) -> None:
    model = decoder()
    for value in model.graph.input[1:]:
        value.type.tensor_type.shape.dim[2].dim_value = 5
    assert "the file fixes its length at 5" in refused(tmp_path, model)


def test_a_merged_decoder_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[1,p] past, float[1,n] new, bool use_cache) => (float[1,t] now) {
          now = If (use_cache) <
            then_branch = a () => (float[1,t] x) { x = Concat <axis=1> (past, new) },
            else_branch = b () => (float[1,t] x) { x = Identity (new) }
          >
        }"""
    )
    assert "a subgraph of If 'now' extends it" in refused(tmp_path, model)


def test_a_cache_that_a_loop_extends_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[1,p] past, float[1,n] new, int64 trips, bool go) => (float[1,t] now) {
          now = Loop (trips, go, new) <
            body = b (int64 i, bool c, float[1,m] x) => (bool d, float[1,q] y) {
              d = Identity (c) y = Concat <axis=1> (past, x) }
          >
        }"""
    )
    assert "a subgraph of Loop 'now' extends it" in refused(tmp_path, model)


def test_a_cache_behind_the_second_result_of_an_if_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]>
        g (float[1,p] past, float[1,n] new, bool flag) => (float[1,n] y, float[1,t] now) {
          y, grown = If (flag) <
            then_branch = a () => (float[1,n] u, float[1,t] v) {
              u = Identity (new) v = Concat <axis=1> (past, new) },
            else_branch = b () => (float[1,n] r, float[1,t] s) {
              r = Neg (new) s = Identity (new) }
          >
          now = Identity (grown)
        }"""
    )
    assert "a subgraph of If 'now' extends it" in refused(tmp_path, model)


def test_the_error_of_a_step_with_a_long_past_is_reported(tmp_path: Path) -> None:
    model = decoder()
    graph = model.graph  # the table has a row for up to 5 entries, and the second trial has 6
    graph.initializer.append(
        helper.make_tensor("table", TensorProto.FLOAT, [6], [0.0] * 6),
    )
    graph.node.extend(
        [
            helper.make_node("Shape", ["a0_now"], ["entries"], start=2, end=3),
            helper.make_node("Gather", ["table", "entries"], ["row"], "lookup"),
        ]
    )
    graph.output.append(helper.make_tensor_value_info("row", TensorProto.FLOAT, [1]))
    said = refused(tmp_path, model)
    assert "lookup" in said
    assert "grow by the same number" not in said


def test_a_model_without_a_cache_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
    )
    assert "the model has no cache" in refused(tmp_path, model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kv-cache", "in-place"), "add --capacity N"),
        (("--capacity", "8"), "add --kv-cache in-place"),
        (("--kv-cache", "in-place", "--capacity", "0"), "above zero|from 1"),
        (
            ("--kv-cache", "in-place", "--capacity", "8", "--chunk", "auto"),
            "cannot be combined",
        ),
        (("--kv-cache", "in-place", "--capacity", "8", "--dim", "batch=1,2"), "one number"),
    ],
)
def test_wrong_options_are_one_message(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    import re

    path = saved(tmp_path, decoder())
    found = memplan("optimize", path, *options)
    assert found.exit_code == 2, found.output
    assert re.search(said, found.output), found.output
    assert "Traceback" not in found.output


@pytest.mark.parametrize("command", ["report", "gate", "why"])
def test_commands_that_plan_a_model_as_it_is_refuse(tmp_path: Path, command: str) -> None:
    path = saved(tmp_path, decoder())
    more = ("--max-memory", "1GiB") if command == "gate" else ()
    found = memplan(command, path, "--kv-cache", "in-place", "--capacity", "8", *more)
    assert found.exit_code == 2, found.output
    assert "only `memplan optimize` does" in found.output


def test_a_capacity_smaller_than_a_prefill_is_used_up_to_its_end(tmp_path: Path) -> None:
    path = saved(tmp_path, decoder())
    found = api.optimize(path, replace(IN_PLACE, capacity=2))
    assert found.passed
    assert sum(found.plan.report.caches.steps) == 2


@pytest.mark.parametrize("text", ["{", '{"capacity": 1}', '{"capacity": -1, "buffers": []}'])
def test_metadata_that_is_none_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ModelError, match="caches"):
        recorded_caches({CACHES: text})


def test_plan_and_report_are_as_their_schemas_say(tmp_path: Path) -> None:
    from memplan_cli.api.schema import schema_text

    path = saved(tmp_path, decoder(Shape(crossed=True)))
    found = api.optimize(path, IN_PLACE)
    assert found.plan_file is not None
    plan = json.loads(found.plan_file.read_text())
    Draft202012Validator(json.loads(schema_text("plan"))).validate(plan)
    Draft202012Validator(json.loads(schema_text("report"))).validate(plan["report"])


def test_caches_with_brackets_in_their_names_are_updated_in_place(tmp_path: Path) -> None:
    model = decoder()
    names = {
        value.name: f"{value.name}[0]" for value in model.graph.input if "past" in value.name
    }
    assert names
    for value in model.graph.input:
        value.name = names.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    found = api.optimize(saved(tmp_path, model), IN_PLACE)
    assert found.passed
    assert len(found.plan.report.donated.pairs) == len(names)
