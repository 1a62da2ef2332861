"""What is a model file, and what is refused in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest

from builders import parse
from memplan_cli.errors import ModelError
from memplan_cli.loading.metadata import scanned_metadata
from memplan_cli.onnx_io.load import file_digest, graph_digest, load_model
from memplan_cli.onnx_io.traversal import graphs

if TYPE_CHECKING:
    from pathlib import Path

TEXT = """g (bool c, float[4] x) => (float[4] z) <float[4] w = {1,2,3,4}> {
    [first] a = Add(x, w)
    [pick] y = If (c) <then_branch = t () => (float[4] one) { [inner] one = Exp(a) },
                       else_branch = e () => (float[4] two) { two = Neg(a) }>
    z = Neg(y) }"""


def saved(folder: Path, data: bytes, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(path)
    text = caught.value.message
    assert path.name in text
    assert "\n" not in text
    return text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.onnx")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    assert "is empty" in refusal(saved(tmp_path, b""))


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    "data", [b"garbage that is no protobuf", b"\xff" * 100, b"\x08\x0a", b'{"json": true}'],
    ids=["words", "ones", "version only", "json"],
)  # fmt: skip
def test_garbage_is_refused(data: bytes, tmp_path: Path) -> None:
    assert "is not an ONNX model" in refusal(saved(tmp_path, data))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\n<!DOCTYPE html>", "an HTML or XML page"),
        (b'{"schema": "memplan.plan/1"}', "a JSON file"),
        (b"PK\x03\x04\x00", "a zip archive"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_kind(
    data: bytes, kind: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, data)
    said = f"model.onnx is not an ONNX model but {kind}"
    assert said in refusal(path)
    with pytest.raises(ModelError, match=said):
        scanned_metadata(path)


def test_a_file_that_ends_within_a_model_is_said_to_be_cut_off(tmp_path: Path) -> None:
    model = parse("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    path = saved(tmp_path, model.SerializeToString()[:-10])
    assert "begins like an ONNX model, but is cut off or damaged" in refusal(path)


def test_every_truncation_of_a_model_is_refused(tmp_path: Path) -> None:
    """A cut that leaves a whole protobuf leaves no graph or no opset."""
    data = parse(TEXT).SerializeToString()
    for length in range(1, len(data), 7):
        try:
            model = load_model(saved(tmp_path, data[:length]))
        except ModelError:
            continue
        assert len(model.graph.node) == 3, "only what follows the graph may be missing"


def test_a_model_without_a_graph_or_opset_is_refused(tmp_path: Path) -> None:
    model = onnx.ModelProto(ir_version=8, producer_name="x")
    model.opset_import.add().version = 21
    assert "no graph" in refusal(saved(tmp_path, model.SerializeToString()))
    model = parse(TEXT)
    del model.opset_import[:]
    assert "no opset" in refusal(saved(tmp_path, model.SerializeToString()))


def test_functions_are_inlined(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[4] x) => (float[4] z) { y = local.twice(x) z = local.twice(y) }
        <domain: "local", opset_import: ["" : 21]>
        twice (a) => (b) { h = Add(a, a) b = Neg(h) }"""
    path = saved(tmp_path, parse(text, head="").SerializeToString())
    model = load_model(path)
    assert [node.op_type for node in model.graph.node] == ["Add", "Neg", "Add", "Neg"]
    assert not model.functions


def test_an_attribute_that_no_call_gives_has_its_default_in_what_is_inlined(
    tmp_path: Path,
) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[4] x, bool c) => (float[4] z) {
            w = local.outer <slope = 0.75> (x) y = local.outer (w)
            z = If(c) <then_branch = t () => (u) { u = local.inner(y) },
                       else_branch = e () => (v) { v = Identity(y) }> }
        <domain: "local", opset_import: ["" : 21, "local" : 1]>
        outer <slope: float = 0.5> (a) => (b) {
            h = local.inner <slope: float = @slope> (a) b = local.inner(h) }
        <domain: "local", opset_import: ["" : 21]>
        inner <slope: float = 0.25> (a) => (b) { b = LeakyRelu <alpha: float = @slope> (a) }"""
    model = load_model(saved(tmp_path, parse(text, head="").SerializeToString()))
    leaky = [n for g in graphs(model.graph) for n in g.node if n.op_type == "LeakyRelu"]
    assert [node.attribute[0].f for node in leaky] == [0.75, 0.25, 0.5, 0.25, 0.25]


def test_functions_that_call_one_another_in_a_circle_are_refused(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[4] x) => (float[4] z) { z = local.f(x) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]> f (a) => (b) { b = local.h(a) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]> h (a) => (b) { b = local.f(a) }"""
    assert "calls itself" in refusal(saved(tmp_path, parse(text, head="").SerializeToString()))


def test_functions_that_double_thirty_times_are_refused_before_they_are_written_out(
    tmp_path: Path,
) -> None:
    head = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'
    doubling = "".join(
        f"{head} f{at} (a) => (c) {{ b = local.f{at - 1}(a) c = local.f{at - 1}(b) }}"
        for at in range(1, 31)
    )
    text = f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[4] x) => (float[4] z) {{ z = local.f30(x) }}
        {head} f0 (a) => (b) {{ b = Neg(a) }} {doubling}"""
    said = refusal(saved(tmp_path, parse(text, head="").SerializeToString()))
    assert f"total {2**30} nodes" in said


def test_function_called_from_a_body_counts_too(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[4] x, bool c) => (float[4] z) { z = local.f(x, c) }
        <domain: "local", opset_import: ["" : 21, "local" : 1]>
        f (a, c) => (b) { b = If(c) <
            then_branch = t () => (u) { u = local.f(a, c) },
            else_branch = e () => (v) { v = Neg(a) }> }"""
    assert "calls itself" in refusal(saved(tmp_path, parse(text, head="").SerializeToString()))


def test_loading_reads_no_external_data(tmp_path: Path) -> None:
    model = parse(TEXT)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = tensor.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    path = saved(tmp_path, model.SerializeToString())
    assert load_model(path).graph.initializer[0].data_location == tensor.EXTERNAL


def test_the_files_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    one, other = saved(tmp_path, b"a", "a"), saved(tmp_path, b"b", "b")
    assert file_digest(one) != file_digest(other)
    assert len(file_digest(one)) == 64


def test_the_graphs_digest_leaves_notes_aside_in_every_block() -> None:
    plain, noted = parse(TEXT), parse(TEXT)
    nested = noted.graph.node[1].attribute[0].g
    for node in (noted.graph.node[0], nested.node[0]):
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.memplan.step", "1"
        node.doc_string = "words"
    nested.value_info.add().name = "one"
    assert graph_digest(noted) == graph_digest(plain)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("z = Neg(y)", "z = Exp(y)"),
        ("one = Exp(a)", "one = Abs(a)"),
        ("one = Exp(a)", "one = Exp(x)"),
        ("(float[4] z) <", "(float[n] z) <"),
        ("float[4] w = {1,2,3,4}", "float[2] w = {1,2}"),
    ],
)
def test_the_graphs_digest_tells_graphs_apart(old: str, new: str) -> None:
    assert graph_digest(parse(TEXT.replace(old, new))) != graph_digest(parse(TEXT))


def test_the_order_of_the_nodes_counts_in_the_digest() -> None:
    text = "g (float[4] x) => (float[4] a, float[4] b) { a = Exp(x) b = Neg(x) }"
    other = "g (float[4] x) => (float[4] a, float[4] b) { b = Neg(x) a = Exp(x) }"
    assert graph_digest(parse(text)) != graph_digest(parse(other))
