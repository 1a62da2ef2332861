"""Shapes of operators of other domains: what ONNX Runtime really makes, or what it declares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.domains.table import DOMAINS, output_types, rule_of
from memplan_cli.onnx_io.shapes.lattice import shape_in
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.onnx_io.shapes.symbolic.values import Values
from memplan_cli.onnx_io.types import dtype_name
from onnx_io.shapes.domain_cases import (
    DECLARED_CASES,
    LEARNING_CASES,
    RUNTIME_CASES,
    Case,
)


def model_of(case: Case) -> onnx.ModelProto:
    """Return a model of one node; dims of its inputs are names, alike where the sizes are."""
    names = case.inputs.split(" ") if case.inputs else [*case.fed, *case.constants]
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(value.dtype),
            [dim if dim < 2 or dim in case.numbers else f"d{dim}" for dim in value.shape],
        )
        for name, value in case.fed.items()
    ]
    outputs = [f"o{at}" for at in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    graph = helper.make_graph(
        [node],
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in case.constants.items()],
    )
    versions = [helper.make_opsetid("", 18 if case.domain else max(18, case.opset))]
    if case.domain:
        versions.append(helper.make_opsetid(case.domain, case.opset))
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


def made(case: Case) -> list[Any]:
    """Return what ONNX Runtime computes."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model_of(case).SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, case.fed))


def said(case: Case, **dims: int) -> list[tuple[str, Any]]:
    program = read_program(model_of(case), Bindings(dims)).program
    found = {var.name: var for var in program.vars.values()}
    return [(found[f"o{at}"].dtype, found[f"o{at}"].shape) for at in range(case.outputs)]


@pytest.mark.parametrize("case", [*LEARNING_CASES, *RUNTIME_CASES], ids=str)
def test_a_rule_says_the_dims_that_the_runtime_makes(case: Case) -> None:
    results = made(case)
    dims = {f"d{dim}": dim for value in case.fed.values() for dim in value.shape if dim > 1}
    for known in (said(case), said(case, **dims)):
        for at, ((dtype, shape), result) in enumerate(zip(known, results, strict=True)):
            if result is None:
                continue
            kind = helper.np_dtype_to_tensor_dtype(result.dtype)
            assert dtype == dtype_name(kind), at
            assert shape is not None, at
            bound = tuple(bind_dim(dim, dims) for dim in shape)
            assert bound == result.shape, (at, shape)


@pytest.mark.parametrize(("case", "expected"), DECLARED_CASES, ids=str)
def test_a_rule_says_what_a_schema_declares(
    case: Case, expected: list[tuple[str, Any]]
) -> None:
    assert said(case) == expected


def test_every_rule_has_a_case() -> None:
    cases = [*LEARNING_CASES, *RUNTIME_CASES, *(case for case, _ in DECLARED_CASES)]
    ruled = {(domain, op) for domain, rules in DOMAINS.items() for op in rules}
    assert ruled <= {(case.domain, case.op) for case in cases}


def test_onnx_infers_what_follows_an_operator_that_it_does_not_know() -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "ai.onnx.ml": 3]>
        g (float[n,3] x) => (labels, scores) {
            scaled = ai.onnx.ml.Scaler <offset = [0.5], scale = [2.0]> (x)
            labels, scores = ai.onnx.ml.LinearClassifier <
                coefficients = [0.1, 0.1, 0.1], intercepts = [0.1], classlabels_strings = ["a", "b"]
            > (scaled)
        }"""
    program = read_program(onnx.parser.parse_model(text), Bindings()).program
    labels, scores = (program.vars[var] for var in program.body.outputs)
    assert (labels.dtype, labels.shape) == ("string", ("n",))
    assert (scores.dtype, scores.shape) == ("float32", ("n", 2))


@pytest.mark.parametrize("case", RUNTIME_CASES[:1], ids=str)
def test_a_node_without_inputs_that_are_known_says_nothing(case: Case) -> None:
    bare = Case(case.op, {}, {}, case.attributes, "", case.outputs)
    assert said(bare) == [("unknown", None)]


@pytest.mark.parametrize("case", LEARNING_CASES, ids=str)
def test_a_rule_agrees_where_the_inference_of_onnx_is_not_asked(case: Case) -> None:
    graph = model_of(case).graph
    types = {value.name: value.type for value in graph.input}
    rule = rule_of(graph.node[0])
    assert rule is not None
    found = output_types(Values.of_graph(graph, types, {"": 18}), graph.node[0], rule)
    dims = {f"d{dim}": dim for value in case.fed.values() for dim in value.shape if dim > 1}
    for at, result in enumerate(made(case)):
        kind = found[f"o{at}"]
        assert kind.tensor_type.elem_type == helper.np_dtype_to_tensor_dtype(result.dtype), at
        bound = tuple(bind_dim(dim, dims) for dim in shape_in(kind) or ())
        assert bound == result.shape, at


@pytest.mark.parametrize("attribute", ["sliding_window_cache", "kv_cache_bit_width"])
def test_the_cache_of_grouped_attention_is_unknown_if_it_slides_or_is_quantized(
    attribute: str,
) -> None:
    case = next(case for case in RUNTIME_CASES if case.op == "GroupQueryAttention")
    attributes = {**case.attributes, attribute: 1}
    _, keys, values = said(replace(case, attributes=attributes))
    assert keys == values == ("float32", ("d2", 2, None, None))
