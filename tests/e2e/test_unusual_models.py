"""Legal models of kinds that few exporters write: planned, written, proved and replayed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.planning.plan_file import plan_from_json
from memplan_cli.runtime.replay.replay import replay_unchecked
from memplan_cli.runtime.workers.spec import RunConditions
from story import memplan

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import ModelProto, SparseTensorProto


def parsed(text: str, opset: str = '"" : 17', ir: int = 8) -> ModelProto:
    return parser.parse_model(f"<ir_version: {ir}, opset_import: [{opset}]>\n{text}")


def drawn(*shape: int, name: str) -> TensorProto:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


PRODUCT = "g (float[n,8] x) => (float[n,8] y) { a = MatMul(x, w) b = Exp(a) y = Neg(b) }"


def sparse(name: str, places: list[list[int]] | list[int]) -> SparseTensorProto:
    values = helper.make_tensor(name, TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    dims, flat = list(np.shape(places)), np.ravel(places).tolist()
    return helper.make_sparse_tensor(
        values, helper.make_tensor(f"{name}_at", TensorProto.INT64, dims, flat), [8, 8]
    )


def sparse_initializer() -> ModelProto:
    model = parsed(PRODUCT)
    model.graph.sparse_initializer.append(sparse("w", [3, 17, 60]))
    return model


def sparse_constant() -> ModelProto:
    model = parsed(PRODUCT)
    value = sparse("", [[0, 3], [2, 1], [7, 4]])
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=value))
    return model


def weights_that_may_be_fed() -> ModelProto:
    model = parsed(PRODUCT.replace("float[n,8] x)", "float[n,64] x, float[64,8] w)", 1))
    model.graph.initializer.append(drawn(64, 8, name="w"))
    return model


def function_of_another_opset() -> ModelProto:
    return parsed(
        """g (float[n,8] x) => (float[n,8] y) { a = Neg(x) b = l.share(a) y = Abs(b) }
        <domain: "l", opset_import: ["" : 17]>
        share (a) => (b) { s = ReduceSum(a) e = Exp(a) b = Div(e, s) }""",
        '"" : 18, "l" : 1',
    )


def defaults_in_functions() -> ModelProto:
    return parsed(
        """g (float[n,8] x) => (float[n,8] y) { a = Neg(x) b = l.leak(a) y = Abs(b) }
        <domain: "l", opset_import: ["" : 17]>
        leak <slope: float = 0.5> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }""",
        '"" : 17, "l" : 1',
    )


def dims_like_calls() -> ModelProto:
    model = parsed("g (float[n,m] x) => (float[n,m] y) { a = Neg(x) b = Exp(a) y = Abs(b) }")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "max(1, s0)"
    return model


def map_in() -> ModelProto:
    model = parsed(
        """g (float m) => (float[1,3] y) {
            y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["s0", "b", "s1"]> (m) }""",
        '"" : 17, "ai.onnx.ml" : 3',
    )
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_map_type_proto(TensorProto.STRING, number)
    model.graph.input[0].type.CopyFrom(kind)
    return model


def maps_out() -> ModelProto:
    model = parsed(
        """g (float[n,3] x) => (y) { p = Softmax(x)
            y = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1, 2]> (p) }""",
        '"" : 17, "ai.onnx.ml" : 3',
    )
    number = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    kind = helper.make_map_type_proto(TensorProto.INT64, number)
    model.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(kind))
    return model


def optional_in() -> ModelProto:
    return parsed(
        """g (optional(float[n,8]) x) => (float[n,8] y) {
            e = OptionalGetElement(x) a = Neg(e) y = Abs(a) }""",
        '"" : 18',
    )


def sequence_in() -> ModelProto:
    return parsed(
        """g (seq(float[n,8]) x) => (float[n,8] y, seq(float[n,8]) z) {
            at = Constant <value = int64 {0}> () a = SequenceAt(x, at) b = Neg(a) y = Abs(b)
            z = SequenceInsert(x, b) }"""
    )


def by_the_runtimes_inference() -> ModelProto:
    model = parsed(
        """g (float[b,s,32] q, float[b,s,16] k, float[b,s,16] v, float[b,2,p,8] pk,
            float[b,2,p,8] pv, int32[b] lengths, int32 total) => (y, keys, values) {
            y, keys, values = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2>
                (q, k, v, pk, pv, lengths, total) }""",
        '"" : 17, "com.microsoft" : 1',
    )
    for value in model.graph.output:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model


def half_precision() -> ModelProto:
    model = parsed(
        """g (float16[n,64] x) => (float16[n,64] y) {
            a = MatMul(x, w) b = Exp(a) c = MatMul(b, w) d = Tanh(c) y = Add(d, x) }"""
    )
    weight = numpy_helper.to_array(drawn(64, 64, name="w")).astype(np.float16) / 16
    model.graph.initializer.append(numpy_helper.from_array(weight.astype(np.float16), "w"))
    return model


def names_like_indices() -> ModelProto:
    model = parsed(
        """g (float[n,8] x, bool c) => (float[n,8] y) {
            a = Neg(x) b = Exp(a)
            [n1] d = If(c) <then_branch = t () => (u) { [n1] s = Abs(b) u = Neg(s) },
                            else_branch = e () => (v) { v = Identity(b) }>
            [n0] e = Tanh(d) [n7] f = Abs(e) [n5] y = Neg(f) }"""
    )
    for graph in graphs(model.graph):
        for node in graph.node:
            node.name = node.name.replace("n", "#")
    return model


MODELS: dict[str, Callable[[], ModelProto]] = {
    make.__name__: make
    for make in (
        sparse_initializer,
        sparse_constant,
        weights_that_may_be_fed,
        function_of_another_opset,
        defaults_in_functions,
        dims_like_calls,
        map_in,
        maps_out,
        optional_in,
        sequence_in,
        by_the_runtimes_inference,
        half_precision,
        names_like_indices,
    )
}


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize("name", MODELS)
def test_an_unusual_model_is_written_for_every_target_and_replayed(
    name: str, target: str, tmp_path: Path
) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(MODELS[name](), path)
    done = memplan("optimize", path, "-o", out, "--validate", "outputs", "--target", target)
    assert done.exit_code == 0, done.output
    done = memplan("validate", out, "--original", path, "--replay")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", ["maps_out", "sequence_in"])
def test_bounds_of_a_model_with_values_of_no_known_bytes_are_answered(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(MODELS[name](), path)
    done = memplan("optimize", path, "-o", tmp_path / "o.onnx", "--bounds", "n=1..4")
    assert done.exit_code == 0, done.output
    for command in ("settings", "soak"):
        more = ("--measure",) if command == "settings" else ("--requests", "5")
        done = memplan(command, path, "--bounds", "n=1..4", *more)
        assert done.exit_code in (0, 2), done.output
        assert "memplan failed" not in done.output


@pytest.mark.parametrize("command", ["optimize", "report", "gate", "why", "settings"])
def test_a_model_without_nodes_is_answered_by_every_command(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(parsed("g (float[n,8] x) => (float[n,8] x) { }"), path)
    budget = ("--metric", "planned", "--max-memory", "1KiB")
    more = budget if command == "gate" else ()
    done = memplan(command, path, *more)
    assert done.exit_code == (2 if command == "why" else 0), done.output
    if command in ("optimize", "report", "gate"):
        done = memplan(command, path, *more, "--chunk", "auto", "--budget", "50%")
        assert done.exit_code == 2
        assert "the model has no nodes" in done.output


def with_casts(tmp_path: Path, wide: int) -> dict[str, Any]:
    """Optimize a product of 16 bits, which the runtime computes in 32; return the report.

    Without optimization the runtime adds Casts around it, which the file does not have.
    """
    model = parsed(
        f"g (float16[n,{wide}] x) => (float16[n,{wide}] y) {{ a = MatMul(x, w) y = Exp(a) }}"
    )
    weight = numpy_helper.to_array(drawn(wide, wide, name="w")).astype(np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "model.onnx")
    words = ("-o", tmp_path / "o.onnx", "--reference", "unoptimized")
    done = memplan("optimize", tmp_path / "model.onnx", *words)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads((tmp_path / "o.json").read_text())["report"]
    return told


def test_a_peak_far_above_the_predicted_one_is_said(tmp_path: Path) -> None:
    told = with_casts(tmp_path, 160)
    (warning,) = [w for w in told["warnings"] if "were predicted: usually it runs nodes" in w]
    peak = told["runtime"]["observed"]["optimized"]["first_run_peak"]
    assert warning.startswith(f"the runtime used {peak} bytes at its peak")


def test_a_plan_that_overwrites_numbers_of_16_bits_fails_its_replay(tmp_path: Path) -> None:
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(half_precision(), path)
    assert memplan("optimize", path, "-o", out, "--no-validate").exit_code == 0
    told = json.loads(out.with_suffix(".json").read_text())
    for tensor in told["tensors"]:
        tensor["offset"] = 0
    found = replay_unchecked(out, plan_from_json(told), RunConditions())
    assert found.status == "failed"


def linked(folder: Path, weights: Path) -> Path:
    """Write a model whose weights are behind a link to ``weights``."""
    folder.mkdir(parents=True, exist_ok=True)
    weights.parent.mkdir(parents=True, exist_ok=True)
    model = parsed(PRODUCT.replace("float[n,8] x", "float[n,64] x", 1))
    tensor = drawn(64, 8, name="w")
    weights.write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(tensor)
    (folder / "w.bin").symlink_to(weights)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_weights_behind_a_link_in_the_models_folder_are_followed(tmp_path: Path) -> None:
    path = linked(tmp_path / "m", tmp_path / "m" / "real.bin")
    out = path.with_name("out.onnx")
    done = memplan("optimize", path, "-o", out, "--validate", "outputs")
    assert done.exit_code == 0, done.output
    done = memplan("validate", out, "--original", path, "--replay")
    assert done.exit_code == 0, done.output


def test_a_cache_of_links_to_model_and_weights_is_read_and_written_from(
    tmp_path: Path,
) -> None:
    blob = linked(tmp_path / "tmp", tmp_path / "blobs" / "b2").rename(
        tmp_path / "blobs" / "a1"
    )
    path = tmp_path / "snapshot" / "model.onnx"
    path.parent.mkdir()
    path.symlink_to(blob)
    path.with_name("w.bin").symlink_to(tmp_path / "blobs" / "b2")
    for command in ("report", "gate", "settings"):
        more = ("--max-memory", "1GiB") if command == "gate" else ()
        done = memplan(command, path, *more)
        assert done.exit_code == 0, done.output
    done = memplan("optimize", path)
    assert done.exit_code == 2
    assert "w.bin is a link out of its folder" in done.output
    assert "-o FOLDER/NAME.onnx" in done.output
    out = tmp_path / "out" / "out.onnx"
    out.parent.mkdir()
    done = memplan("optimize", path, "-o", out, "--validate", "outputs")
    assert done.exit_code == 0, done.output
    assert not (out.parent / "w.bin").is_symlink()
    done = memplan("validate", out, "--original", path, "--replay")
    assert done.exit_code == 0, done.output


def test_a_link_out_of_the_folder_of_a_model_that_is_none_is_refused(tmp_path: Path) -> None:
    done = memplan("report", linked(tmp_path / "m", tmp_path / "elsewhere" / "w.bin"))
    assert done.exit_code == 2
    assert "w.bin is a link out of the model's folder" in done.output


CONTAINERS = {
    "sequences": "q = SequenceConstruct(a, b) c = ConcatFromSequence<axis=0>(q)",
    "optionals": "q = Optional(a) e = OptionalGetElement(q) c = Add(e, b)",
    "texts": "k = Constant<value_strings=['p', 'q']>() q = Identity(k) t = Shape(q) c = Mul(a, b)",
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_what_has_no_bytes_of_its_own_leaves_the_tensors_their_totals(
    tmp_path: Path, kind: str
) -> None:
    body = CONTAINERS[kind].replace("'", '"')
    outputs = "float[m,256] y, int64[1] t" if kind == "texts" else "float[m,256] y"
    model = parsed(
        f"g (float[8,256] x) => ({outputs}) {{ a = Exp(x) b = Neg(a) {body} y = Sqrt(c) }}"
    )
    source, out = tmp_path / "model.onnx", tmp_path / "o.onnx"
    onnx.save(model, source)
    done = memplan("optimize", source, "-o", out)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "o.json").read_text())["report"]
    # The exponentials and their negatives are there at once; what holds them is not counted.
    assert told["memory"]["planned"] >= 2 * 8 * 256 * 4
    assert told["partial"]
    (warning,) = [w for w in told["warnings"] if w.startswith("not counted in any total")]
    assert "'q'" in warning
    assert memplan("validate", out, "--original", source).exit_code == 0
    planned = ("--metric", "planned", "--max-memory")
    judged = memplan("gate", source, *planned, "1MiB")
    assert judged.exit_code == 0, judged.output
    assert memplan("gate", source, *planned, "1KiB").exit_code == 1


def test_chunks_of_given_sizes_are_validated_at_these(tmp_path: Path) -> None:
    # It runs at no smaller size than 3.
    model = parsed(
        """g (float[1,4,h] x) => (float[1,4,k] y) {
            a = Conv <kernel_shape = [3]> (x, w) b = Tanh(a) y = Conv <kernel_shape = [1]> (b, v) }"""
    )
    model.graph.initializer.extend((drawn(64, 4, 3, name="w"), drawn(4, 64, 1, name="v")))
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    sizes = ("--dim", "h=4098", "--chunk", "auto", "--budget", "70%", "--best-effort")
    done = memplan("optimize", path, "-o", out, "--target", "cpu", *sizes)
    assert done.exit_code == 0, done.output
    (given,) = onnx.load(out, load_external_data=False).graph.input
    assert given.type.tensor_type.shape.dim[2].dim_value == 4098
    done = memplan("validate", out, "--original", path)
    assert done.exit_code == 0, done.output
