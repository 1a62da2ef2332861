"""The planner's decisions on graphs small enough to follow by hand."""

from __future__ import annotations

import onnx
import onnx.parser

from memplan_cli.core.results.observations import CPU
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.runtime.profile.in_place import InPlaceTable, load_table
from memplan_cli.runtime.simulate.planner import (
    BlockPlan,
    BufferKind,
    PlannerSettings,
    file_order,
    plan_block,
)

TABLE = InPlaceTable(
    ("test",),
    {"Reshape": (0,)},
    {"Relu": (0,), "Cast": (0,)},
    {"Relu": ("float64",)},
    {"BatchNormalization": ((3, 1), (4, 2))},
)


def plan(nodes: str, *, reuse: bool = True, outputs: str = "float[4] y") -> BlockPlan:
    text = f'<ir_version: 10, opset_import: ["" : 21]> g (float[4] x) => ({outputs})'
    text += f" <int64[2] two = {{2, 2}}, int64[2] row = {{1, 4}}> {{ {nodes} }}"
    program = read_program(onnx.parser.parse_model(text)).program
    return plan_block(program, program.body, None, PlannerSettings(TABLE, file_order, reuse))


def shared(got: BlockPlan) -> dict[str, str]:
    return {
        var: buffer for var, buffer in got.buffer.items() if got.kind[var] is BufferKind.SHARED
    }


def test_a_dead_twin_is_taken_over() -> None:
    assert shared(plan("a = Exp(x) b = Exp(a) c = Exp(b) y = Exp(c)")) == {"c": "a"}


def test_without_reuse_nothing_dead_is_taken_over() -> None:
    assert shared(plan("a = Exp(x) b = Exp(a) c = Exp(b) y = Exp(c)", reuse=False)) == {}


def test_the_twin_that_died_last_is_taken_first() -> None:
    # Add frees a and b in the order of its inputs: d comes upon b first.
    got = plan("a = Exp(x) b = Exp(x) c = Add(a, b) d = Exp(c) y = Exp(d)")
    assert shared(got) == {"d": "b"}


def test_another_shape_of_the_same_bytes_is_no_twin() -> None:
    got = plan("a = Exp(x) b = Exp(a) c = Reshape(b, two) d = Exp(c) y = Flatten(d)",
               outputs="float[2,2] y")  # fmt: skip
    assert "d" not in shared(got)


def test_the_last_reader_writes_over_its_input() -> None:
    assert shared(plan("a = Exp(x) b = Relu(a) y = Exp(b)"))["b"] == "a"


def test_a_kernel_for_another_type_may_allocate() -> None:
    got = plan("a = Cast<to = 11>(x) b = Relu(a) y = Cast<to = 1>(b)", reuse=False)
    assert shared(got) == {}


def test_a_later_output_may_share_an_input_of_its_own() -> None:
    got = plan(
        """m = Exp(x) v = Abs(x) i = Reshape(x, row)
           n, o, p = BatchNormalization<training_mode = 1>(i, x, x, m, v)
           q = Add(o, p) y = Add(q, m)""",
        reuse=False,
    )
    assert {var: buffer for var, buffer in shared(got).items() if var in "nop"} == {
        "o": "m",
        "p": "v",
    }


def test_an_earlier_reader_does_not() -> None:
    assert shared(plan("a = Exp(x) b = Relu(a) y = Add(a, b)")) == {}


def test_a_graph_input_is_never_written_over() -> None:
    assert shared(plan("b = Relu(x) y = Exp(b)")) == {}


def test_an_alias_shares_whoever_else_reads() -> None:
    got = plan("a = Exp(x) b = Reshape(a, two) c = Flatten(b) y = Add(a, a)")
    assert shared(got)["b"] == "a"


def test_a_graph_output_always_has_memory_of_its_own() -> None:
    got = plan("a = Exp(x) y = Relu(a)")
    assert got.kind["y"] is BufferKind.OUTPUT  # type: ignore[index]


def test_another_element_size_is_not_written_over() -> None:
    got = plan("a = Exp(x) b = Cast<to = 7>(a) y = Cast<to = 1>(b)")
    assert shared(got) == {}


def test_what_nobody_reads_takes_no_dead_twin_and_is_freed_by_nobody() -> None:
    got = plan("a = Exp(x) b = Exp(a) u = Exp(x) y = Exp(b)")
    assert shared(got) == {}
    assert all("u" not in freed for freed in got.freed)


def test_what_nobody_reads_leaves_its_buffer_to_the_next_one() -> None:
    got = plan("u = Exp(x) a = Exp(x) y = Exp(a)")
    assert shared(got) == {"a": "u"}


def test_a_shared_buffer_is_freed_by_the_last_reader_of_any_member() -> None:
    got = plan("a = Exp(x) b = Reshape(a, two) c = Exp(a) d = Flatten(b) e = Exp(c) y = Exp(d)",
               reuse=False, outputs="float[2,2] y")  # fmt: skip
    assert got.freed[3] == ("a",)


def test_the_stored_table_is_the_one_that_was_measured() -> None:
    # Facts, section 2: probed op by op on 1.31.1.
    table = load_table(CPU)
    assert table.versions
    assert {"Relu", "Sigmoid", "Softmax", "Cast", "ScatterElements"} <= set(table.in_place)
    assert {"Scatter", "TensorScatter", "BitCast"} <= set(table.in_place)
    assert table.later_aliases == {"BatchNormalization": ((3, 1), (4, 2))}
    assert {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"} == set(table.alias)
    assert not {"Add", "Mul", "Exp", "Transpose", "Concat"} & set(table.in_place)
    assert table.allocates == {"LogSoftmax": ("float64",), "Softmax": ("float64",)}
