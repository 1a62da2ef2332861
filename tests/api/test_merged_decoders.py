"""Merged decoders, an If between a branch without a past and one with it, put in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import memplan_cli
from cache_models import WORDS, Shape, decoder
from memplan_cli import api
from memplan_cli.errors import ModelError
from memplan_cli.features.kv_cache.merged import open_merged_decoder
from memplan_cli.settings.settings import Settings
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

IN_PLACE = Settings(kv_cache="in-place", capacity=16)
OTHER = {"then_branch": "else_branch", "else_branch": "then_branch"}


def merged(like: Shape, later: str = "then_branch") -> onnx.ModelProto:
    """Return a decoder in two branches, as optimum writes it; both have the same names.

    ``later`` is the branch with a past. The other gives its new entries as its caches.
    """
    whole = decoder(like)
    graph = whole.graph
    pasts = {v.name: v for v in graph.input if v.name.endswith("_past")}
    branches = []
    for name in ("first", "later"):
        branch = onnx.GraphProto()
        branch.CopyFrom(graph)
        branch.name = name
        del branch.input[:]
        del branch.initializer[:]
        branches.append(branch)
    first, second = branches
    for past, value in pasts.items():
        shape = [
            d.dim_value or d.dim_param == "batch" for d in value.type.tensor_type.shape.dim
        ]
        none = np.zeros([int(dim) for dim in shape], np.float32)
        first.initializer.append(numpy_helper.from_array(none, f"{past}_none"))
    for node in first.node:
        if node.op_type == "Concat" and node.input[0] in pasts:
            new, made = [node.input[1]], list(node.output)
            node.CopyFrom(helper.make_node("Identity", new, made, node.name))
        node.input[:] = [f"{each}_none" if each in pasts else each for each in node.input]
    outputs = [value.name for value in graph.output]
    given = {later: second, OTHER[later]: first}
    node = helper.make_node("If", ["use_cache"], outputs, "choice", **given)
    flag = helper.make_tensor_value_info("use_cache", TensorProto.BOOL, [1])
    whole = helper.make_graph(
        [node], "merged", [*graph.input, flag], graph.output, graph.initializer
    )
    opset = helper.make_opsetid("", like.opset)
    return helper.make_model(whole, opset_imports=[opset], ir_version=10)


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    path = folder / "net.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("later", ["then_branch", "else_branch"])
@pytest.mark.parametrize(
    "like",
    [Shape(layers=2), Shape(mask="none", layout="rows", opset=17), Shape(groups=2, opset=24)],
    ids=["past", "rows", "groups"],
)
def test_the_branch_with_a_past_takes_the_first_step_too(
    tmp_path: Path, like: Shape, later: str
) -> None:
    path = saved(tmp_path, merged(like, later))
    found = api.optimize(path, IN_PLACE)
    report = found.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert found.model is not None
    assert len(report.caches.growing) == 2 * like.layers
    assert any("'use_cache' is no input any more" in said for said in report.warnings)
    assert "use_cache" not in [value.name for value in onnx.load(found.model).graph.input]
    session = ort.InferenceSession(str(path))
    decoding = memplan_cli.Decoder(found.model)
    state = {
        v.name: np.zeros(
            [d if isinstance(d, int) else int(d == "batch") for d in v.shape], "f4"
        )
        for v in session.get_inputs()
        if v.name.endswith("_past")
    }
    names = [value.name for value in session.get_outputs()]
    rng = np.random.default_rng(3)
    for number, new in enumerate((3, 1, 1, 2)):
        ids = rng.integers(0, WORDS, (1, new))
        flag = np.array([(number > 0) == (later == "then_branch")])
        feed = {"ids": ids, "use_cache": flag, **state}
        values = dict(zip(names, session.run(None, feed), strict=True))
        state = {name: values[f"{name.removesuffix('_past')}_now"] for name in state}
        np.testing.assert_array_equal(decoding.step({"ids": ids})["logits"], values["logits"])


def test_the_written_file_is_validated_against_the_merged_one(tmp_path: Path) -> None:
    path = saved(tmp_path, merged(Shape()))
    found = api.optimize(path, IN_PLACE)
    assert found.model is not None
    again = memplan("validate", found.model, "--original", path)
    assert again.exit_code == 0, again.output
    assert "decoded" in again.output


def test_what_one_branch_computes_and_the_other_hands_on_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, merged(Shape(crossed=True)))
    with pytest.raises(ModelError, match="a subgraph of If 'choice' extends it"):
        api.optimize(path, IN_PLACE)


CHOOSING = """<ir_version: 10, opset_import: ["": 20]>
g (float[1,p] past, float[1,n] new, bool go) => (float[1,t] now, float[1,m] seen)
<float[1,1] held = {1}> {
  MADE
  now, seen = If(which) <
    then_branch = a () => (float[1,t] x, float[1,m] held) {
      x = Concat<axis=1>(past, new)
    },
    else_branch = b () => (float[1,t] x, float[1,m] y) { x = ELSE  y = Neg(x) }
  >
}"""


def choosing(made: str, other: str = "Identity(new)") -> onnx.ModelProto:
    text = CHOOSING.replace("MADE", made).replace("ELSE", other)
    return onnx.parser.parse_model(text)


def test_a_branch_becomes_the_graph_under_the_names_of_the_outputs() -> None:
    found = open_merged_decoder(choosing("which = Identity(go)"))
    assert found is not None
    assert (found.condition, found.branch, found.value) == ("go", "then_branch", True)
    graph = found.model.graph
    assert [value.name for value in graph.input] == ["past", "new"]
    onnx.checker.check_model(found.model, full_check=True)
    kinds = {node.output[0]: (node.op_type, list(node.input)) for node in graph.node}
    assert kinds == {"now": ("Concat", ["past", "new"]), "seen": ("Identity", ["held"])}


@pytest.mark.parametrize(
    ("made", "other"),
    [
        ("which = Not(go)", "Identity(new)"),
        ("which = Identity(go)", "Concat<axis=1>(past, new)"),
    ],
    ids=["another condition", "both extend it"],
)
def test_what_is_no_merged_decoder_stays(made: str, other: str) -> None:
    assert open_merged_decoder(choosing(made, other)) is None


def test_a_choice_that_something_else_reads_stays() -> None:
    model = choosing("which = Identity(go)")
    model.graph.node.append(helper.make_node("Cast", ["go"], ["number"], to=TensorProto.FLOAT))
    model.graph.output.append(helper.make_tensor_value_info("number", TensorProto.FLOAT, []))
    assert open_merged_decoder(model) is None


def test_a_choice_that_is_given_back_stays() -> None:
    model = choosing("which = Identity(go)")
    model.graph.output.append(helper.make_tensor_value_info("go", TensorProto.BOOL, []))
    assert open_merged_decoder(model) is None


def test_an_if_without_a_branch_is_no_merged_decoder() -> None:
    model = choosing("which = Identity(go)")
    for name in ("else_branch", "then_branch"):
        for node in model.graph.node:
            left = [each for each in node.attribute if each.name != name]
            del node.attribute[:]
            node.attribute.extend(left)
        found = open_merged_decoder(model)
        assert (found is None) == (name == "then_branch")
