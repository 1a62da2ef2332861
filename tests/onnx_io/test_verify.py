"""Every way in which a rewritten graph could compute something else is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from builders import parse
from memplan_cli.onnx_io.writing.verify import graph_differences

TEXT = """g (bool c, float[4] x, float[4] q) => (float[4] z, float[4] b)
    <float[4] w = {1,2,3,4}> {
    [first] a = Add(x, w)
    [second] b = Clip(a)
    [pick] y = If (c) <then_branch = t () => (float[4] one) { u = Exp(a) one = Neg(u) },
                       else_branch = e () => (float[4] two) { two = Sub(a, b) }>
    [last] z = Sub(y, b) }"""

Model = Any
Change = Callable[[Model], None]


def changed(change: Change) -> tuple[str, ...]:
    written = parse(TEXT)
    change(written)
    return graph_differences(parse(TEXT), written)


def node(model: Model, name: str) -> Any:  # noqa: ANN401 - onnx has no types
    return next(n for n in model.graph.node if n.name == name)


def body(model: Model, branch: str) -> Any:  # noqa: ANN401 - onnx has no types
    return next(a.g for a in node(model, "pick").attribute if a.name == branch)


def put(model: Model, *order: int) -> None:
    nodes = [model.graph.node[i] for i in order]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def test_a_graph_is_the_same_as_itself() -> None:
    assert changed(lambda _: None) == ()


def test_an_output_of_another_type_is_a_difference() -> None:
    def narrow(model: Model) -> None:
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16

    assert changed(narrow) == ("the outputs differ",)


def test_a_function_in_an_operators_place_is_a_difference() -> None:
    def call(model: Model) -> None:
        model.functions.add(name="Add", domain="", output=["a"])

    assert changed(call) == ("the functions differ",)


def test_another_order_is_no_difference() -> None:
    text = "g (float[4] x) => (float[4] z) { a = Exp(x) b = Neg(x) z = Add(a, b) }"
    other = "g (float[4] x) => (float[4] z) { b = Neg(x) a = Exp(x) z = Add(a, b) }"
    assert graph_differences(parse(text), parse(other)) == ()


def test_another_order_in_a_body_is_no_difference() -> None:
    text = """g (bool c, float[4] x) => (float[4] z) {
        z = If (c) <then_branch = t () => (float[4] r) { @ r = Add(a, b) },
                    else_branch = e () => (float[4] s) { s = Exp(x) }> }"""
    one, other = "a = Exp(x) b = Neg(x)", "b = Neg(x) a = Exp(x)"
    found = graph_differences(parse(text.replace("@", one)), parse(text.replace("@", other)))
    assert found == ()


def test_notes_and_doc_strings_are_no_difference() -> None:
    def annotate(model: Model) -> None:
        for item in (node(model, "first"), body(model, "then_branch").node[0], model):
            entry = item.metadata_props.add()
            entry.key, entry.value = "pkg.memplan.step", "3"
        node(model, "first").doc_string = "words"
        model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [4]))

    assert changed(annotate) == ()


def test_exposing_what_is_made_is_no_difference() -> None:
    def expose(model: Model) -> None:
        model.graph.output.append(helper.make_tensor_value_info("a", 1, [4]))

    assert changed(expose) == ()


def read(model: Model, op: str = "Shape", name: str = "b__memplan_read") -> Any:  # noqa: ANN401 - onnx has no types
    reader = helper.make_node(op, ["b"], [name], name=name)
    model.graph.node.append(reader)
    return model.graph.node[-1]


def test_a_declared_reader_of_a_value_is_no_difference() -> None:
    assert changed(read) == ()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: read(model, op="Exp"),
        lambda model: read(model, name="b__read"),
        lambda model: read(model, name="a__memplan_read"),
        lambda model: read(model).attribute.append(helper.make_attribute("start", 1)),
        lambda model: (read(model), node(model, "last").input.append("b__memplan_read")),
        lambda model: (
            read(model),
            model.graph.output[1].CopyFrom(
                helper.make_tensor_value_info("b__memplan_read", 7, [1])
            ),
        ),
        lambda model: (
            read(model),
            model.graph.output.append(
                helper.make_tensor_value_info("b__memplan_read", 7, [1])
            ),
        ),
    ],
)
def test_what_only_looks_like_a_reader_is_a_difference(change: Change) -> None:
    assert changed(change)


def swap_inputs(model: Model) -> None:
    last = node(model, "last")
    last.input[:] = list(reversed(last.input))


def repeat(model: Model) -> None:
    model.graph.node.append(model.graph.node[0])


def weight_of(model: Model) -> Any:  # noqa: ANN401 - onnx has no types
    return model.graph.initializer[0]


def change_data(model: Model) -> None:
    tensor = weight_of(model)
    if tensor.raw_data:
        tensor.raw_data = tensor.raw_data[:-4] + b"\0\0\0\0"
    else:
        tensor.float_data[0] = 9.0


def add_attribute(model: Model) -> None:
    node(model, "second").attribute.append(helper.make_attribute("min", 1.0))


def shadow(model: Model) -> None:
    body(model, "then_branch").node[0].input[0] = "x"


def new_constant(model: Model) -> None:
    tensor = numpy_helper.from_array(np.ones(4, np.float32), "more")
    body(model, "then_branch").initializer.append(tensor)


CHANGES: dict[str, tuple[Change, str]] = {
    "a node is lost": (lambda m: put(m, 0, 1, 2), "the Sub that makes 'z' was lost"),
    "a node is added": (
        lambda m: m.graph.node.append(helper.make_node("Exp", ["x"], ["new"])),
        "the Exp that makes 'new' was not there",
    ),
    "a type is changed": (lambda m: setattr(node(m, "first"), "op_type", "Sub"), "was lost"),
    "a domain is changed": (
        lambda m: setattr(node(m, "first"), "domain", "local"),
        "was lost",
    ),
    "inputs are swapped": (swap_inputs, "'z' was lost"),
    "an input is rewired": (
        lambda m: node(m, "first").input.__setitem__(0, "q"),
        "'a' was lost",
    ),
    "an output is renamed": (
        lambda m: node(m, "first").output.__setitem__(0, "k"),
        "was lost",
    ),
    "an attribute is added": (add_attribute, "'b' was lost"),
    "an attribute is lost": (
        lambda m: node(m, "pick").attribute.pop(),
        "the If that makes 'y' was lost",
    ),
    "a node is repeated": (repeat, "made twice"),
    "a result has the name of a weight": (
        lambda m: m.graph.node.add(op_type="Exp", input=["x"], output=["w"]),
        "'w' is made twice",
    ),
    "a value is read too early": (lambda m: put(m, 1, 0, 2, 3), "before it is made"),
    "a body is rewired": (shadow, "the If that makes 'y' was lost"),
    "a body loses a node": (lambda m: body(m, "then_branch").node.pop(), "was lost"),
    "a body is out of order": (
        lambda m: body(m, "then_branch").node.reverse(),
        "before it is made",
    ),
    "a body gets a weight": (new_constant, "was lost"),
    "an input is lost": (lambda m: m.graph.input.pop(), "the inputs differ"),
    "an input has another shape": (
        lambda m: setattr(m.graph.input[1].type.tensor_type.shape.dim[0], "dim_value", 5),
        "the inputs differ",
    ),
    "an output is lost": (lambda m: m.graph.output.pop(), "the outputs differ"),
    "outputs are swapped": (lambda m: m.graph.output.reverse(), "the outputs differ"),
    "a weight is lost": (lambda m: m.graph.initializer.pop(), "the initializers differ"),
    "a weight has other data": (change_data, "the initializers differ"),
    "a weight has another name": (
        lambda m: setattr(weight_of(m), "name", "v"),
        "the initializers differ",
    ),
    "a weight has another type": (
        lambda m: setattr(weight_of(m), "data_type", 6),
        "the initializers differ",
    ),
    "the opset is another": (
        lambda m: setattr(m.opset_import[0], "version", 20),
        "the opsets differ",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_graph_is_reported(what: str) -> None:
    change, words = CHANGES[what]
    assert any(words in found for found in changed(change)), changed(change)


@pytest.mark.parametrize("raw", [True, False])
def test_other_data_of_a_weight_is_told_however_it_is_kept(*, raw: bool) -> None:
    def model(values: list[float]) -> Model:
        made = parse("g (float[2] x) => (float[2] z) { z = Add(x, w) }")
        data = np.array(values, np.float32)
        tensor = helper.make_tensor("w", 1, [2], data.tobytes() if raw else values, raw=raw)
        made.graph.initializer.append(tensor)
        return made

    assert graph_differences(model([1, 2]), model([1, 2])) == ()
    assert graph_differences(model([1, 2]), model([1, 3])) == ("the initializers differ",)


def test_changed_weights_of_a_subgraph_are_reported() -> None:
    def model(value: float) -> Model:
        made = parse(TEXT)
        tensor = numpy_helper.from_array(np.full(4, value, np.float32), "inner")
        inner = body(made, "then_branch")
        inner.initializer.append(tensor)
        inner.node[0].input[0] = "inner"
        return made

    assert graph_differences(model(1.0), model(1.0)) == ()
    assert graph_differences(model(1.0), model(2.0)) != ()


def test_the_place_of_external_data_is_no_difference() -> None:
    def model(location: str) -> Model:
        made = parse("g (float[2] x) => (float[2] z) { z = Add(x, w) }")
        tensor = made.graph.initializer.add(name="w", data_type=1, dims=[2])
        tensor.data_location = tensor.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location
        return made

    assert graph_differences(model("a.bin"), model("sub/a.bin")) == ()


def copied(change: Change = lambda _: None) -> tuple[str, ...]:
    """Recompute ``first`` for the last node, the way the rewriter does."""

    def recompute(model: Model) -> None:
        twin = type(node(model, "first"))()
        twin.CopyFrom(node(model, "first"))
        twin.name, twin.output[0] = "first__recompute", "a__recompute"
        node(model, "second").input[0] = "a__recompute"
        model.graph.node.insert(1, twin)
        change(model)

    return changed(recompute)


def test_a_declared_copy_is_no_difference() -> None:
    assert copied() == ()


def test_a_second_copy_is_no_difference() -> None:
    def again(model: Model) -> None:
        twin = type(node(model, "first"))()
        twin.CopyFrom(node(model, "first"))
        twin.name, twin.output[0] = "first__recompute2", "a__recompute2"
        model.graph.node.insert(0, twin)

    assert copied(again) == ()


def test_a_copy_that_reads_something_else_is_told() -> None:
    def rewire(model: Model) -> None:
        node(model, "first__recompute").input[0] = "q"

    assert any("was not there" in found for found in copied(rewire))


def test_a_copy_of_a_missing_node_is_reported() -> None:
    def invent(model: Model) -> None:
        model.graph.node.append(helper.make_node("Exp", ["x"], ["ghost__recompute"]))

    assert any("was not there" in found for found in copied(invent))


def test_a_copy_without_its_original_is_told_where_the_original_is_read() -> None:
    def lose(model: Model) -> None:
        model.graph.node.remove(node(model, "first"))

    assert any("before it is made" in found for found in copied(lose))


def test_a_name_that_only_looks_like_a_copy_is_a_name() -> None:
    text = "g (float[4] x) => (float[4] z) { a__recompute = Exp(x) a = Neg(x) z = Add(a, a__recompute) }"
    other = text.replace("a__recompute = Exp(x)", "a__recompute = Neg(x)")
    assert graph_differences(parse(text), parse(text)) == ()
    assert graph_differences(parse(text), parse(other)) != ()


NORMALIZED = """g (float[2,4] x, float[4] s) => (float[2,4] z) {
    [norm] y, mean, deviation = LayerNormalization(x, s)
    [cut] left, right = Split<axis = 1, num_outputs = 2>(y)
    [back] z = Add(y, mean) }"""


def with_a_copy_that_makes(kind: str, *outputs: str) -> tuple[str, ...]:
    original, written = parse(NORMALIZED), parse(NORMALIZED)
    copy = written.graph.node.add()
    copy.CopyFrom(next(n for n in written.graph.node if n.op_type == kind))
    copy.name += "__recompute"
    copy.output[:] = outputs
    return graph_differences(original, written)


def test_a_copy_may_leave_out_optional_outputs() -> None:
    made = ("y__recompute", "", "")
    assert with_a_copy_that_makes("LayerNormalization", *made) == ()


def test_a_copy_may_not_leave_out_an_output_that_is_not_optional() -> None:
    (told,) = with_a_copy_that_makes("Split", "left__recompute", "")
    assert told == "the Split that makes 'left', '' was not there"


def test_a_copy_may_not_swap_its_outputs() -> None:
    made = ("y__recompute", "deviation__recompute", "")
    (told,) = with_a_copy_that_makes("LayerNormalization", *made)
    assert "was not there" in told


def test_the_original_itself_may_leave_nothing_out() -> None:
    original, written = parse(NORMALIZED), parse(NORMALIZED)
    written.graph.node[0].output[2] = ""
    assert "was lost" in graph_differences(original, written)[0]
