"""Constants of one value are made by the run where that makes no step of it wider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from builders import parse
from memplan_cli import Check, Settings, api
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.writing.fills import LEAST, make_fills
from memplan_cli.runtime.workers.session import session_options

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

ROWS, WIDE = 64, 512
FIELD = 4 * ROWS * WIDE
"""Bytes of a field: twice the least that is worth a node."""

SCATTER = f"""
    s (float[{ROWS}, {WIDE}] x, int64[{ROWS}, 4] at, float[{ROWS}, 4] new)
    => (float[{ROWS}, {WIDE}] y) {{
        a = Neg(x)
        b = Add(a, x)
        c = ScatterElements<axis = 1>(field, at, new)
        y = Mul(b, c)
    }}
"""
SIZES = dict.fromkeys(("x", "a", "b", "c", "y"), FIELD)


def scattered(field: NDArray[Any] | None = None, text: str = SCATTER) -> onnx.ModelProto:
    """Return a model that writes a few numbers into a field, zeros by default."""
    model: onnx.ModelProto = parse(text)
    field = np.zeros((ROWS, WIDE), np.float32) if field is None else field
    model.graph.initializer.append(numpy_helper.from_array(field, "field"))
    return model


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def constants(model: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer}


def run(model: onnx.ModelProto) -> Any:  # noqa: ANN401 - an array
    import onnxruntime as ort

    from memplan_cli.core.results.observations import RuntimeSettings

    generator = np.random.default_rng(0)
    options = session_options(
        RuntimeSettings(session={"graph_optimization_level": "ORT_DISABLE_ALL"})
    )
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {
        "x": generator.standard_normal((ROWS, WIDE)).astype(np.float32),
        "at": generator.permuted(np.tile(np.arange(WIDE), (ROWS, 1)), axis=1)[:, :4],
        "new": generator.standard_normal((ROWS, 4)).astype(np.float32),
    }
    return session.run(None, feed)[0]


def test_a_field_that_is_written_over_is_made_by_the_run(tmp_path: Path) -> None:
    model = scattered()
    before = run(model)
    made = make_fills(model, tmp_path, SIZES)
    assert list(made) == ["field/filled"]
    assert list(made["field/filled"].dims) == [ROWS, WIDE]
    assert kinds(model) == ["Neg", "Add", "ConstantOfShape", "ScatterElements", "Mul"]
    assert constants(model) == {"field/shape"}
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_array_equal(run(model), before)


@given(
    value=st.floats(width=32),
    differs=st.booleans(),
    place=st.integers(0, ROWS * WIDE - 1),
)
@settings(
    max_examples=16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_bits_of_all_elements_are_one_element_s(
    tmp_path: Path, *, value: float, differs: bool, place: int
) -> None:
    field = np.full(ROWS * WIDE, value, np.float32)
    if differs:
        field.view(np.uint32)[place] ^= np.uint32(1 << 31)  # 0.0 and -0.0 are not the same
    model = scattered(field.reshape(ROWS, WIDE))
    made = make_fills(model, tmp_path, SIZES)
    assert bool(made) is not differs
    if made:
        (node,) = (n for n in model.graph.node if n.op_type == "ConstantOfShape")
        one = numpy_helper.to_array(node.attribute[0].t)
        assert one.tobytes() == field[:1].tobytes()


def test_weights_in_a_file_beside_the_model_are_read_there(tmp_path: Path) -> None:
    onnx.save(
        scattered(),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    model = load_model(tmp_path / "m.onnx")
    assert make_fills(model, tmp_path, SIZES)


def test_each_reader_gets_a_field_of_its_own(tmp_path: Path) -> None:
    text = SCATTER.replace("y = Mul(b, c)", "d = Sub(b, field)\n y = Mul(d, c)")
    model = scattered(text=text)
    before = run(model)
    assert len(make_fills(model, tmp_path, SIZES | {"d": FIELD})) == 2
    assert kinds(model).count("ConstantOfShape") == 2
    np.testing.assert_array_equal(run(model), before)


def test_where_it_would_make_the_widest_step_wider_it_stays(tmp_path: Path) -> None:
    sizes = SIZES | dict.fromkeys(("a", "x"), 4)
    model = scattered()
    assert not make_fills(model, tmp_path, sizes | {"b": 4, "y": 4})
    assert make_fills(model, tmp_path, sizes)


@pytest.mark.parametrize(
    ("operands", "room", "made"),
    [
        ("field, other", 0, 0),
        ("field, other", 1, 1),
        ("field, other", 2, 2),
        ("field, field", 1, 0),
        ("field, field", 2, 2),
    ],
)
def test_a_step_gets_as_many_fields_as_there_is_room_for(
    tmp_path: Path, operands: str, room: int, made: int
) -> None:
    text = f"""s (float[{ROWS}, {WIDE}] x) => (float[{ROWS}, {WIDE}] y) {{
        a = Neg(x)
        wide = Neg(a)
        b = Max({operands}, a)
        y = Add(b, wide)
    }}"""
    model = scattered(text=text)
    other = numpy_helper.from_array(np.ones((ROWS, WIDE), np.float32), "other")
    model.graph.initializer.append(other)
    found = make_fills(model, tmp_path, {"a": FIELD, "b": FIELD, "wide": FIELD * (room + 1)})
    assert len(found) == made


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SCATTER.replace("Mul(b, c)", "MatMul(b, field)"), id="a product"),
        pytest.param(SCATTER.replace("(field, at, new)", "(x, at, field)"), id="updates"),
        pytest.param(
            SCATTER.replace("=> (", f"=> (float[{ROWS}, {WIDE}] field, "), id="a result"
        ),
        pytest.param(
            SCATTER.replace(
                "b = Add(a, x)",
                "t = Constant<value = bool {1}>()\n b = If (t) <then_branch = g () => "
                f"(float[{ROWS}, {WIDE}] z) {{ z = Add(a, field) }}, else_branch = h () => "
                f"(float[{ROWS}, {WIDE}] u) {{ u = Neg(a) }}>",
            ),
            id="a subgraph",
        ),
    ],
)
def test_a_constant_with_another_kind_of_reader_is_kept(tmp_path: Path, text: str) -> None:
    model = scattered(text=text)
    before = model.SerializeToString()
    assert not make_fills(model, tmp_path, SIZES)
    assert model.SerializeToString() == before


def test_small_ones_foreign_types_and_old_models_stay(tmp_path: Path) -> None:
    small = scattered(np.zeros((ROWS, LEAST // 4 // ROWS - 1), np.float32))
    assert not make_fills(small, tmp_path, SIZES)
    old = scattered()
    old.opset_import[0].version = 8
    assert not make_fills(old, tmp_path, SIZES)
    foreign = scattered()
    foreign.graph.initializer[0].data_type = onnx.TensorProto.BFLOAT16
    foreign.graph.initializer[0].raw_data = bytes(FIELD // 2)
    assert not make_fills(foreign, tmp_path, SIZES)


def test_names_that_are_taken_are_left_to_whom_they_belong(tmp_path: Path) -> None:
    model = scattered()
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "field/filled"
    assert list(make_fills(model, tmp_path, SIZES | {"field/filled": FIELD})) == [
        "field/filled_1"
    ]


def test_a_target_has_no_field_of_zeros_in_its_file(tmp_path: Path) -> None:
    text = SCATTER.replace(
        "c = ScatterElements",
        f"shape = Constant<value_ints = [{ROWS}, {WIDE}]>()\n"
        "field = ConstantOfShape(shape)\n c = ScatterElements",
    )
    source, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(parse(text), source)
    done = api.optimize(source, Settings(target="cpu"), out=out, check=Check("cpu"))
    report = done.plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    written = load_model(out)
    assert "ConstantOfShape" in kinds(written)
    sizes = [int(np.prod(tensor.dims)) for tensor in written.graph.initializer]
    assert max(sizes) < ROWS * WIDE
