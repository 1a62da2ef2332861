"""What a rewritten model violates is said before it is written or run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import pytest
from onnx import helper

from builders import parse
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.writing.structure import checked, structure_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    Edit = Callable[[onnx.ModelProto], object]

TEXT = """g (float[4] x, bool c) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
    [first] a = Exp(x)
    [branch] b = If (c) <then_branch = t () => (float[4] p) { q = Neg(a)  p = Exp(q) },
                         else_branch = e () => (float[4] s) { s = Neg(x) }>
    [last] y = Add(b, w) }"""


def branch(model: onnx.ModelProto) -> onnx.GraphProto:
    return next(a.g for a in model.graph.node[1].attribute if a.name == "then_branch")


def set_name(model: onnx.ModelProto, index: int, name: str) -> None:
    model.graph.node[index].name = name


def rename_nodes(graph: onnx.GraphProto, name: str) -> None:
    for node in graph.node:
        node.name = name


def hide(model: onnx.ModelProto) -> None:
    body = branch(model)
    body.node[0].output[0] = body.node[1].input[0] = "a"
    body.node[0].input[0] = "x"


BROKEN: dict[str, tuple[Edit, str]] = {
    "two nodes of one name": (lambda m: set_name(m, 2, "first"), "two nodes have the name 'first'"),
    "two nodes of one name in a subgraph": (
        lambda m: rename_nodes(branch(m), "n"),
        "two nodes have the name 'n'",
    ),
    "a value made twice": (lambda m: m.graph.node[2].output.append("a"), "'a' is made twice"),
    "a result made twice by one node": (
        lambda m: m.graph.node[0].output.append("a"),
        "'a' is made twice",
    ),
    "a weight given twice": (
        lambda m: m.graph.initializer.append(m.graph.initializer[0]),
        "'w' is made twice",
    ),
    "an input given twice": (lambda m: m.graph.input.append(m.graph.input[0]), "'x' is made twice"),
    "a result of a subgraph that hides an outer one": (
        hide,
        "'a' of a subgraph hides a value of an outer graph",
    ),
    "a value read too early": (
        lambda m: m.graph.node[0].input.append("b"),
        "'first' reads 'b' before it is made",
    ),
    "a value that is not there": (
        lambda m: m.graph.node[2].input.append("z"),
        "'last' reads 'z' before it is made",
    ),
    "an output that is not made": (
        lambda m: m.graph.output.append(helper.make_tensor_value_info("z", 1, [4])),
        "the output 'z' is not made",
    ),
    "an operator of an unknown domain": (
        lambda m: setattr(branch(m).node[0], "domain", "org.x"),
        "the opset of domain 'org.x' is not imported",
    ),
    "two opsets of one domain": (
        lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 20)),
        "the opset of domain '' is imported 2 times",
    ),
}  # fmt: skip


def broken(edit: Edit) -> onnx.ModelProto:
    model = parse(TEXT)
    edit(model)
    return model


def test_a_valid_model_has_no_errors() -> None:
    assert tuple(structure_errors(parse(TEXT))) == ()


@pytest.mark.parametrize("name", BROKEN)
def test_a_violation_is_named(name: str) -> None:
    edit, message = BROKEN[name]
    assert message in tuple(structure_errors(broken(edit)))
    with pytest.raises(InvalidLayoutError, match="memplan made an invalid model"):
        checked(broken(edit), lambda: parse(TEXT))


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_in_the_source_too_is_no_fault_of_the_rewrite(name: str) -> None:
    edit, _ = BROKEN[name]
    assert checked(broken(edit), lambda: broken(edit))


def test_names_of_branches_and_of_inputs_and_weights_of_a_subgraph_may_occur_again() -> None:
    model = parse(TEXT)
    for attribute in model.graph.node[1].attribute:
        for node in attribute.g.node:
            node.name = ""
        attribute.g.initializer.append(helper.make_tensor("w", 1, [1], [1.0]))
    assert tuple(structure_errors(model)) == ()


def test_an_added_node_must_make_what_the_program_says() -> None:
    text = "g (float[4] x) => (float[4] y) { @ y = Neg(a) }"
    source, rewritten = (
        parse(text.replace("@", "a = Exp(x)")),
        parse(text.replace("@", "a = Abs(x)")),
    )
    wrong = parse("g (float[4] x) => (float[4] y) <float[5] a> { a = Abs(x) y = Neg(a) }")
    assert checked(rewritten, lambda: source, read_program(rewritten).program)
    with pytest.raises(InvalidLayoutError, match="'a' is declared float32"):
        checked(wrong, lambda: source, read_program(wrong).program)
    # The source declares this wrong type itself.
    assert checked(wrong, lambda: wrong, read_program(wrong).program)


def test_a_weight_of_the_source_is_no_input_that_must_be_fed() -> None:
    source = parse(TEXT.replace("bool c)", "bool c, float[4] w)"))
    rewritten = onnx.ModelProto()
    rewritten.CopyFrom(source)
    assert checked(rewritten, lambda: source, fed_like=source)
    del rewritten.graph.initializer[:]
    assert checked(rewritten, lambda: source)  # a rewriting that changes inputs
    with pytest.raises(InvalidLayoutError, match="only the written model takes 'w'"):
        checked(rewritten, lambda: source, fed_like=source)
