"""Rules of other domains alone: types as the runtime's schemas say, and nothing false on less."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from onnx import TensorProto, helper

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.onnx_io.shapes.domains.table import DOMAINS, output_types, rule_of
from memplan_cli.onnx_io.shapes.lattice import shape_in, tensor_type
from memplan_cli.onnx_io.shapes.symbolic.values import Values
from onnx_io.shapes.domain_cases import DECLARED_CASES, LEARNING_CASES, RUNTIME_CASES, Case
from onnx_io.shapes.test_domains import made, model_of
from onnx_io.shapes.test_rules_that_know_less import weaker

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto, TypeProto

    from memplan_cli.core.program import Shape

CASES = (*LEARNING_CASES, *RUNTIME_CASES, *(case for case, _ in DECLARED_CASES))
ELEMENTS = {
    f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items()
} | {"tensor(float)": TensorProto.FLOAT}


def dims_of(case: Case) -> dict[str, int]:
    return {f"d{dim}": dim for value in case.fed.values() for dim in value.shape if dim > 1}


def types_of(model: ModelProto) -> dict[str, TypeProto]:
    """Return the types of all that a node may read, weights included."""
    weights = {
        tensor.name: tensor_type(tensor.data_type, tuple(tensor.dims))
        for tensor in model.graph.initializer
    }
    return {value.name: value.type for value in model.graph.input} | weights


def said_of(
    case: Case, model: ModelProto, types: Mapping[str, TypeProto]
) -> list[tuple[int, Shape | None]]:
    """Return what the rule of a model's one node says of each result."""
    (node,) = model.graph.node
    rule = rule_of(node)
    assert rule is not None
    found = output_types(Values.of_graph(model.graph, dict(types), {"": 18}), node, rule)
    kinds = [found.get(f"o{at}") for at in range(case.outputs)]
    return [
        (0, None) if kind is None else (kind.tensor_type.elem_type, shape_in(kind))
        for kind in kinds
    ]


@cache
def true_dims(case_at: int) -> list[tuple[Any, ...] | None]:
    """Return the dims that results have: what the runtime makes, else what is declared."""
    case = CASES[case_at]
    if case_at < len(LEARNING_CASES) + len(RUNTIME_CASES):
        return [None if result is None else result.shape for result in made(case)]
    declared = dict(DECLARED_CASES_AT)[case_at]
    return [tuple(bind_dim(dim, dims_of(case)) for dim in shape) for _, shape in declared]


DECLARED_CASES_AT = [
    (at, said)
    for at, (_, said) in enumerate(DECLARED_CASES, len(LEARNING_CASES) + len(RUNTIME_CASES))
]
EACH_CASE = pytest.mark.parametrize(
    "at", range(len(CASES)), ids=[f"{case}-{at}" for at, case in enumerate(CASES)]
)


def contradictions(at: int, said: list[tuple[int, Shape | None]]) -> list[str]:
    """Return the dims that a rule says and that the results do not have."""
    dims, found = dims_of(CASES[at]), []
    for place, ((_, shape), truth) in enumerate(zip(said, true_dims(at), strict=True)):
        if shape is None or truth is None:
            continue
        bound = [None if dim is None else bind_dim(dim, dims) for dim in shape]
        same = len(bound) == len(truth) and all(
            one is None or one == other for one, other in zip(bound, truth, strict=True)
        )
        found += [] if same else [f"result {place}: {bound}, not {truth}"]
    return found


@EACH_CASE
def test_a_rule_alone_says_all_dims(at: int) -> None:
    case = CASES[at]
    model = model_of(case)
    said = said_of(case, model, types_of(model))
    assert contradictions(at, said) == []
    assert [shape is None or None in shape for _, shape in said] == [
        False for _ in range(case.outputs)
    ]


@EACH_CASE
def test_a_rule_that_knows_less_says_nothing_false(at: int) -> None:
    case = CASES[at]
    whole = model_of(case)
    for model, types in weaker(whole, types_of(whole)):
        assert contradictions(at, said_of(case, model, types)) == []


ONLY_WITH_DIMS = {
    "ArrayFeatureExtractor", "Attention", "DynamicQuantizeLSTM", "EmbedLayerNormalization",
    "GroupQueryAttention", "QEmbedLayerNormalization",
    "QLinearGlobalAveragePool", "RestorePadding",
}  # fmt: skip
"""Operators of which nothing is said where no dims are known."""


@EACH_CASE
def test_a_rule_says_types_where_no_dims_are_known(at: int) -> None:
    case = CASES[at]
    model = model_of(case)
    types = types_of(model)
    bare = {
        name: tensor_type(kind.tensor_type.elem_type, None) for name, kind in types.items()
    }
    whole, less = ([e for e, _ in said_of(case, model, each)] for each in (types, bare))
    assert less == whole or case.op in ONLY_WITH_DIMS


ALL_AXES = ("QLinearReduceMean", "ReduceSumInteger")
"""Without axes they reduce all, as the operators that they are made after."""


@EACH_CASE
def test_a_rule_takes_no_attribute_for_granted_that_a_node_must_have(at: int) -> None:
    case = CASES[at]
    required = [name for name, each in schema_of(case).attributes.items() if each.required]
    required = [] if case.op in ALL_AXES else required
    for name in set(required) & set(case.attributes):
        model = model_of(case)
        (node,) = model.graph.node
        left = [each for each in node.attribute if each.name != name]
        del node.attribute[:]
        node.attribute.extend(left)
        assert contradictions(at, said_of(case, model, types_of(model))) == []


@EACH_CASE
def test_a_rule_raises_nothing_on_a_node_that_leaves_out_an_input(at: int) -> None:
    model = model_of(CASES[at])
    (node,) = model.graph.node
    inputs = list(node.input)
    for place in range(len(inputs)):
        node.input[:] = [*inputs[:place], "", *inputs[place + 1 :]]
        said_of(CASES[at], model, types_of(model))
        node.input[:] = inputs[:place]
        said_of(CASES[at], model, types_of(model))


@cache
def schemas() -> dict[tuple[str, str], Any]:
    """Return the newest schema of each operator that ONNX Runtime has."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    each = sorted(state.get_all_operator_schema(), key=lambda schema: schema.since_version)
    return {(schema.domain, schema.name): schema for schema in each}


def schema_of(case: Case) -> Any:  # noqa: ANN401 - of the runtime's binding
    known = schemas()
    return known.get((case.domain, case.op)) or known["com.microsoft", case.op]


def allowed(schema: Any) -> dict[str, list[int]]:  # noqa: ANN401 - of the runtime's binding
    """Return the types of tensors that each parameter of a schema may stand for."""
    return {
        each.type_param_str: [ELEMENTS[t] for t in each.allowed_type_strs if t in ELEMENTS]
        for each in schema.type_constraints
    }


@EACH_CASE
def test_results_have_the_types_that_the_schema_of_the_runtime_says(at: int) -> None:
    case = CASES[at]
    model, schema = model_of(case), schema_of(case)
    (node,) = model.graph.node
    whole, choices = types_of(model), allowed(schema)
    formal = [
        schema.inputs[min(i, len(schema.inputs) - 1)].typeStr for i in range(len(node.input))
    ]
    read = {name: word for name, word in zip(node.input, formal, strict=True) if name}
    most = max(map(len, choices.values()), default=1)
    for turn in range(most):
        chosen = {
            word: each[(turn + shift) % len(each)]
            for shift, (word, each) in enumerate(choices.items())
            if each
        }
        types = {
            name: tensor_type(
                chosen.get(read[name], ELEMENTS.get(read[name], 0)), shape_in(kind)
            )
            for name, kind in whole.items()
        }
        told = said_of(case, model, types)
        for (element, _), result in zip(told, schema.outputs, strict=False):
            word = result.typeStr
            if word in read.values() or word in ELEMENTS:
                assert element == chosen.get(word, ELEMENTS.get(word)), (word, chosen)


def test_each_case_is_of_a_rule() -> None:
    ruled = {(domain, op) for domain, rules in DOMAINS.items() for op in rules}
    assert {(case.domain, case.op) for case in chain(CASES)} <= ruled


def test_a_rule_of_the_first_domain_is_found_by_its_other_name() -> None:
    node = helper.make_node("Attention", ["q"], ["y"], domain="ai.onnx")
    assert rule_of(node) is DOMAINS[""]["Attention"]
