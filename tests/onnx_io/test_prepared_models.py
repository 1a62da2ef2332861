"""Models that are changed for a run: all results as outputs, equal random numbers, one node each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser

from builders import parse
from memplan_cli.onnx_io.runs.node_models import NodeModels
from memplan_cli.onnx_io.runs.prepared_models import (
    give_every_output,
    seeded_twins,
    unread_outputs,
)

if TYPE_CHECKING:
    from pathlib import Path

DROPPED = """g (float[2] x) => (float[2] y) {
    a, mask = Dropout(x)  b, unread = Dropout(a)  y = Neg(b) }"""


def dropped() -> onnx.ModelProto:
    """Return a model in which a node omits an output, and nothing reads another output."""
    model = parse(DROPPED)
    model.graph.node[0].output[1] = ""
    return model


def test_each_named_result_becomes_an_output_once() -> None:
    graph = dropped().graph
    give_every_output(graph)
    assert [value.name for value in graph.output] == ["y", "a", "b", "unread"]


def test_an_omitted_output_is_no_result_that_nothing_reads() -> None:
    assert unread_outputs(dropped()) == ("unread",)


def test_models_with_the_same_random_nodes_get_the_same_seeds(tmp_path: Path) -> None:
    text = "g (float[9] x) => (y) { a = RandomNormalLike(x)  y = @(a) }"
    paths = [tmp_path / f"{op}.onnx" for op in ("Neg", "Abs")]
    for path in paths:
        onnx.save(parse(text.replace("@", path.stem)), path)
    twins = seeded_twins(paths[0], paths[1], tmp_path)
    assert twins is not None
    one, other = (onnx.load(path).graph.node[0] for path in twins)
    assert one == other
    assert [attribute.name for attribute in one.attribute] == ["seed"]


def test_models_with_different_random_nodes_have_no_twins(tmp_path: Path) -> None:
    onnx.save(parse("g (float[9] x) => (y) { y = RandomNormalLike(x) }"), tmp_path / "a.onnx")
    onnx.save(parse("g (float[9] x) => (y) { y = Neg(x) }"), tmp_path / "b.onnx")
    assert seeded_twins(tmp_path / "a.onnx", tmp_path / "b.onnx", tmp_path) is None


def test_the_value_of_a_constant_is_a_weight_under_the_name_of_the_result(
    tmp_path: Path,
) -> None:
    text = "g (float[2] x) => (float[2] y) { c = Constant<value = float[2] {1.0, 2.0}>() y = Add(x, c) }"
    onnx.save(parse(text), tmp_path / "a.onnx")
    models = NodeModels.of(tmp_path / "a.onnx")
    one = onnx.load_from_string(models.one_op(models.nodes()[1], {"x": "tensor(float)"}))
    assert [tensor.name for tensor in one.graph.initializer] == ["c"]
