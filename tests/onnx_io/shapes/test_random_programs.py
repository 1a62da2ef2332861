"""Random programs of shape arithmetic: what is known is what the reference evaluator computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from memplan_cli.core.symbolic.dims import bind_dim
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.infer import infer
from memplan_cli.onnx_io.shapes.interpret import interpret
from memplan_cli.onnx_io.shapes.lattice import shape_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from memplan_cli.onnx_io.shapes.symbolic.elements import Element

OPSET = 21
LARGEST = 20_000
DIMS = ("n", "m")
INTS = (-3, -1, 0, 1, 2, 3, 5, 7, 100)
FLOATS = (-1.5, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 0.1)


def model_of(
    nodes: list[Any], constants: dict[str, Any], shape: tuple[int | str, ...]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10
    )


@dataclass
class Machine:
    """A program as it grows, and what its values are at one binding."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    dims: dict[str, int]
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)

    def constant(self, value: object, dtype: str = "int64") -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = self.seen[name] = np.array(value, dtype)
        return name

    def pick(self, dtype: str, rank: int | None = None) -> str:
        fits = [
            name
            for name, value in self.seen.items()
            if value.dtype == dtype and rank in (None, value.ndim) and value.ndim < 3
        ]
        if fits and self.draw(st.integers(0, 3)):
            return str(self.draw(st.sampled_from(fits)))
        pool = {"int64": INTS, "float32": FLOATS, "bool": (True, False)}[dtype]
        if rank == 0 or (rank is None and self.draw(st.booleans())):
            return self.constant(self.draw(st.sampled_from(pool)), dtype)
        most = self.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
        return self.constant(most, dtype)

    def add(self, kind: str, *inputs: str, **attributes: object) -> None:
        """Add a node, unless it fails at the binding or gives too much."""
        name = f"v{len(self.nodes)}"
        node = helper.make_node(kind, inputs, [name], **attributes)
        free = {i: self.seen[i] for i in inputs if i}
        for body in attributes.values():
            if isinstance(body, onnx.GraphProto):
                made = {o for inner in body.node for o in inner.output}
                made |= {value.name for value in body.input}
                free |= {
                    i: self.seen[i]
                    for inner in body.node
                    for i in inner.input
                    if i not in made
                }
        single = model_of([node], free, ("n",))
        single.graph.output.add().name = name
        try:
            with np.errstate(all="ignore"):
                (result,) = ReferenceEvaluator(single).run(None, {"x": self.seen["x"]})
        except Exception:  # noqa: BLE001 - a node that is wrong at this binding is left out
            return
        result = np.asarray(result)
        if result.size <= LARGEST and result.dtype != object:
            if result.dtype.kind == "i" and result.size and np.abs(result).max() > LARGEST:
                return
            self.nodes.append(node)
            self.seen[name] = result

    def slice(self, name: str, *axes: str) -> None:
        """Add a Slice of one axis; the evaluator takes what is no such thing, too."""
        ends = [self.pick("int64", 1) for _ in range(2)]
        if all(self.seen[end].size == 1 for end in ends):
            self.add("Slice", name, *ends, *axes)


def arithmetic(m: Machine) -> None:
    dtype = m.draw(st.sampled_from(["int64", "float32"]))
    kinds = ["Add", "Sub", "Mul", "Div", "Min", "Max", *(["Mod"] if dtype == "int64" else [])]
    m.add(m.draw(st.sampled_from(kinds)), m.pick(dtype), m.pick(dtype))


def single(m: Machine) -> None:
    kind, dtype = m.draw(
        st.sampled_from(
            [("Neg", "int64"), ("Abs", "int64"), ("Floor", "float32"), ("Ceil", "float32"),
             ("Sqrt", "float32"), ("Not", "bool"), ("Identity", "int64")]
        )
    )  # fmt: skip
    m.add(kind, m.pick(dtype))


def cast(m: Machine) -> None:
    dtypes = ["int64", "float32", "bool"]
    to = {"int64": 7, "float32": 1, "bool": 9}[m.draw(st.sampled_from(dtypes))]
    m.add("Cast", m.pick(m.draw(st.sampled_from(dtypes))), to=to)


def compare(m: Machine) -> None:
    dtype = m.draw(st.sampled_from(["int64", "float32"]))
    kinds = ["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"]
    m.add(m.draw(st.sampled_from(kinds)), m.pick(dtype), m.pick(dtype))


def logic(m: Machine) -> None:
    m.add(m.draw(st.sampled_from(["And", "Or", "Xor"])), m.pick("bool"), m.pick("bool"))


def where(m: Machine) -> None:
    dtype = m.draw(st.sampled_from(["int64", "float32"]))
    m.add("Where", m.pick("bool"), m.pick(dtype), m.pick(dtype))


def pieces(m: Machine) -> None:
    match m.draw(st.integers(0, 7)):
        case 0:
            m.add("Gather", m.pick("int64", 1), m.pick("int64"))
        case 1:
            m.add("Concat", m.pick("int64", 1), m.pick("int64", 1), axis=0)
        case 2:
            m.slice(m.pick("int64", 1))
        case 3:
            m.add("Unsqueeze", m.pick("int64", 0), m.constant([0]))
        case 4:
            m.add("Squeeze", m.pick("int64", 1))
        case 5:
            m.add("Reshape", m.pick("int64"), m.constant(m.draw(st.sampled_from([[-1], []]))))
        case 6:
            kind = m.draw(st.sampled_from(["ReduceProd", "ReduceSum", "ReduceMax"]))
            m.add(kind, m.pick("int64"), keepdims=m.draw(st.integers(0, 1)))
        case 7:
            m.add("ScatterND", m.pick("int64", 1), m.constant([[0]]), m.pick("int64", 1))


def lengths(m: Machine) -> None:
    dtype = m.draw(st.sampled_from(["int64", "int64", "float32"]))
    start, limit, step = (m.pick(dtype, 0) for _ in range(3))
    # The evaluator makes one element with an infinite step, ONNX Runtime none. With the least int64, the result
    # of ReduceMax over no element, ONNX's inference overflows.
    is_extreme = dtype == "int64" and any(
        (m.seen[name] < -(2**62)).any() for name in (start, limit)
    )
    if not is_extreme and not np.isinf(m.seen[step]).any():
        m.add("Range", start, limit, step)


def tensors(m: Machine) -> str:
    return str(m.draw(st.sampled_from([n for n, v in m.seen.items() if v.ndim])))


def by_values(m: Machine) -> None:
    big, target = tensors(m), m.pick("int64", 1)
    if m.seen[target].min(initial=0) < 0:  # the evaluator takes sizes below zero
        target = m.constant(m.draw(st.sampled_from([[-1], [3, -1], [0, -1]])))
        m.add("Reshape", big, target)
        return
    match m.draw(st.sampled_from(["Reshape", "Expand", "ConstantOfShape", "Tile"])):
        case "ConstantOfShape":
            m.add("ConstantOfShape", target)
        case "Tile" if m.seen[target].size != m.seen[big].ndim:
            pass  # the evaluator takes any number of repeats
        case kind:
            m.add(kind, big, target)


def by_shapes(m: Machine) -> None:
    big, other = tensors(m), tensors(m)
    match m.draw(st.sampled_from(["Shape", "Slice", "Flatten", "NonZero", "Concat"])):
        case "Slice":
            m.slice(big, m.constant([m.draw(st.integers(-1, 1))]))
        case "Flatten":
            m.add("Flatten", big, axis=m.draw(st.integers(0, 2)))
        case "Concat" if m.seen[other].dtype == m.seen[big].dtype:
            m.add("Concat", big, other, axis=m.draw(st.integers(0, 1)))
        case "Concat":
            pass
        case kind:
            m.add(kind, big)


def branch(m: Machine) -> None:
    """Add an If whose branches compute, on floats or on integers."""
    dtype = m.draw(st.sampled_from(["int64", "int64", "float32"]))
    kind = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}[dtype]
    bodies = {}
    for name in ("then_branch", "else_branch"):
        result = f"{name}{len(m.nodes)}"
        op = m.draw(st.sampled_from(["Identity", "Add", "Mul", "Sub", "Max"]))
        count = 1 if op == "Identity" else 2
        node = helper.make_node(op, [m.pick(dtype) for _ in range(count)], [result])
        out = helper.make_tensor_value_info(result, kind, None)
        bodies[name] = helper.make_graph([node], name, [], [out])
    m.add("If", m.pick("bool", 0), **bodies)


def loop(m: Machine) -> None:
    count, first = m.pick("int64", 0), m.pick("int64", 1)
    if not 0 <= m.seen[count] <= 5:
        return
    mark = len(m.nodes)
    go, on, a, b, i = (f"{word}{mark}" for word in ("go", "on", "a", "b", "i"))
    more = m.pick("int64", 1)
    body = helper.make_graph(
        [
            helper.make_node("Identity", [go], [on]),
            helper.make_node("Concat", [a, more], [b], axis=0),
        ],
        "body",
        [
            helper.make_tensor_value_info(i, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            helper.make_tensor_value_info(a, TensorProto.INT64, None),
        ],
        [
            helper.make_tensor_value_info(on, TensorProto.BOOL, []),
            helper.make_tensor_value_info(b, TensorProto.INT64, None),
        ],
    )
    m.add("Loop", count, m.constant(1, "bool"), first, body=body)


STEPS = (
    arithmetic, arithmetic, single, cast, compare, logic, where, pieces, pieces, pieces,
    lengths, by_values, by_values, by_shapes, by_shapes, branch, loop,
)  # fmt: skip


@st.composite
def programs(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Machine:
    dims = {name: draw(st.integers(1, 9)) for name in DIMS}
    machine = Machine(draw, dims)
    machine.seen["x"] = np.ones((dims["n"], dims["m"], 3), np.float32)
    machine.add("Shape", "x")
    for _ in range(draw(st.integers(3, 30))):
        draw(st.sampled_from(STEPS))(machine)
    return machine


def number(element: Element, dims: dict[str, int]) -> float | None:
    """Return an element at a binding."""
    if isinstance(element, str):
        found = bind_dim(element, dims)
        assert isinstance(found, int), element
        return found
    return element


def same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=1e-6, atol=0, equal_nan=True))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_no_size_and_no_element_is_another_than_the_reference_evaluators(
    machine: Machine,
) -> None:
    check(machine)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_none_of_three_thousand_programs_is_read_wrongly(machine: Machine) -> None:
    check(machine)


def check(machine: Machine) -> None:
    """Hold every size and every element against what the evaluator made at the binding."""
    free = model_of(machine.nodes, machine.constants, (*DIMS, 3))
    fixed = model_of(machine.nodes, machine.constants, machine.seen["x"].shape)
    for model in (free, fixed):
        inferred, _ = infer(model, Bindings())
        for value in inferred.graph.value_info:
            real, shape = machine.seen[value.name].shape, shape_in(value.type)
            if shape is None:
                continue
            assert len(shape) == len(real), (value.name, shape, real)
            for dim, length in zip(shape, real, strict=True):
                known = bind_dim(dim, machine.dims)
                assert known is None or known == length, (value.name, shape, real)
        for name, value in interpret(inferred, list(machine.seen)).values.items():
            real = machine.seen[name]
            assert value.array.shape == real.shape, name
            for element, truth in zip(value.elements, real.reshape(-1), strict=True):
                told = number(element, machine.dims)
                assert told is None or same(told, truth), (name, element, truth)
