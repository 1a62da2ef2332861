"""Shapes that only the runtime knows: its inference, and one observed run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx.parser
import pytest

from memplan_cli.api.models.reading import missing_sizes, read_completely
from memplan_cli.api.models.resolve_sizes import resolve_sizes
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.shapes import interpret
from memplan_cli.onnx_io.shapes.bindings import Bindings
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Program
    from memplan_cli.onnx_io.shapes.reading import Loaded

CONTRIB = """<ir_version: 9, opset_import: ["": 20, "com.microsoft": 1]>
    g (float[batch,4] x, float[4,8] w) => (float[batch,8] y) {
        a = com.microsoft.FusedMatMul (x, w)
        b = com.microsoft.FastGelu (a)
        y = Neg (b)
    }"""

BY_DATA = """<ir_version: 9, opset_import: ["": 20]>
    g (float[4,8] x) => (float[?,2] y) {
        z = NonZero (x)
        t = Transpose <perm = [1, 0]> (z)
        f = Cast <to = 1> (t)
        y = Neg (f)
    }"""

UNKNOWN_RANK = """<ir_version: 9, opset_import: ["": 20]>
    g (float[2,3,4] x, int64[n] at) => (float[?,?] y) {
        t = Reshape (x, at)
        u = Neg (t)
        y = Exp (u)
    }"""

GROWING = """<ir_version: 9, opset_import: ["": 20]>
    g (float[2,1] x, int64 n) => (float[2,m] y) {
        go = Constant <value = bool {1}> ()
        last = Loop (n, go, x) <body = b (int64 i, bool c, h) => (d, r) {
            d = Identity (c)
            s = Neg (h)
            r = Concat <axis = 1> (s, x)
        }>
        y = Neg (last)
    }"""


def model(text: str) -> ModelProto:
    import onnx

    parsed: ModelProto = onnx.parser.parse_model(text)
    return parsed


def saved(text: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model(text).SerializeToString())
    return path


def shape(program: Program, name: str) -> object:
    (found,) = [var for var in program.vars.values() if var.name == name]
    return found.shape


def settled(made: ModelProto, path: Path, settings: Settings | None = None) -> Loaded:
    return resolve_sizes(lazy(made), path, settings or Settings()).loaded


@pytest.fixture
def without_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take our own rules for ONNX Runtime's operators away: its inference has to answer."""
    monkeypatch.setattr(interpret, "rule_of", lambda _: None)


@pytest.mark.usefixtures("without_rules")
def test_ops_of_the_runtime_get_their_shapes_from_it_and_a_warning_says_so(
    tmp_path: Path,
) -> None:
    path = saved(CONTRIB, tmp_path)
    assert len(missing_sizes(read_program(model(CONTRIB)).program)) == 2
    loaded = read_completely(model(CONTRIB), path, Bindings())
    assert shape(loaded.program, "a") == ("batch", 8)
    assert shape(loaded.program, "b") == ("batch", 8)
    assert any("ONNX Runtime's inference: a, b" in warning for warning in loaded.warnings)


def test_bound_dims_come_back_as_numbers(tmp_path: Path) -> None:
    path = saved(CONTRIB, tmp_path)
    loaded = read_completely(model(CONTRIB), path, Bindings(dims={"batch": 3}))
    assert shape(loaded.program, "b") == (3, 8)


@pytest.mark.usefixtures("without_rules")
def test_a_model_the_runtime_cannot_load_keeps_its_holes_and_says_why(tmp_path: Path) -> None:
    text = CONTRIB.replace("com.microsoft.FastGelu", "com.microsoft.NoSuchOp")
    loaded = read_completely(model(text), saved(text, tmp_path), Bindings())
    assert len(missing_sizes(loaded.program)) == 2
    assert any("cannot load" in warning for warning in loaded.warnings)


def test_a_rank_nobody_knows_is_not_taken_for_a_scalar(tmp_path: Path) -> None:
    loaded = read_completely(model(UNKNOWN_RANK), saved(UNKNOWN_RANK, tmp_path), Bindings())
    assert shape(loaded.program, "t") is None, "the runtime says [] of both"
    assert shape(loaded.program, "u") is None


def test_what_depends_on_data_stays_unknown_without_a_run(tmp_path: Path) -> None:
    loaded = read_completely(model(BY_DATA), saved(BY_DATA, tmp_path), Bindings())
    assert shape(loaded.program, "z") == (2, None)


def test_one_run_shows_what_depends_on_data(tmp_path: Path) -> None:
    loaded = settled(model(BY_DATA), saved(BY_DATA, tmp_path))
    assert shape(loaded.program, "z") == (2, 32), "drawn inputs are nowhere zero"
    assert missing_sizes(loaded.program) == ()
    assert any("learned from one run" in warning for warning in loaded.warnings)


def test_one_run_gives_numbers_to_the_symbols_of_data(tmp_path: Path) -> None:
    text = BY_DATA.replace("float[?,2] y", "float[n,2] y")
    assert shape(read_program(model(text)).program, "z") == (2, "n")
    loaded = settled(model(text), saved(text, tmp_path))
    assert shape(loaded.program, "z") == (2, 32)


def test_one_run_shows_the_last_turn_of_a_value_that_grows(tmp_path: Path) -> None:
    loaded = settled(model(GROWING), saved(GROWING, tmp_path))
    grown, before = shape(loaded.program, "r"), shape(loaded.program, "h")
    assert isinstance(grown, tuple)
    assert grown[0] == 2
    assert before == (2, grown[1] - 1)
    assert missing_sizes(loaded.program) == ()


def test_what_nobody_bound_is_assumed_for_the_run(tmp_path: Path) -> None:
    text = BY_DATA.replace("float[4,8] x", "float[batch,8] x")
    found = resolve_sizes(lazy(model(text)), saved(text, tmp_path), Settings())
    assert found.settings.dims == {"batch": 1}
    assert found.settings.inputs.provenance == {"batch": "assumed"}
    assert shape(found.loaded.program, "z") == (2, 8)


def test_without_a_run_sizes_stay_unknown_and_dims_are_assumed(tmp_path: Path) -> None:
    text = BY_DATA.replace("float[4,8] x", "float[batch,8] x")
    found = resolve_sizes(lazy(model(text)), saved(text, tmp_path), Settings(run=False))
    assert found.settings.inputs.assumed == {"batch": 1}
    assert shape(found.loaded.program, "z") == (2, None)


def test_a_model_without_its_weights_is_read_without_a_run(tmp_path: Path) -> None:
    made = model(BY_DATA)
    weight = made.graph.initializer.add(name="w", data_type=1, dims=[4], data_location=1)
    weight.external_data.add(key="location", value="w.bin")
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert shape(settled(made, path).program, "z") == (2, None)


@pytest.mark.usefixtures("without_rules")
def test_the_runtimes_inference_is_not_believed_where_it_misreads(tmp_path: Path) -> None:
    text = """<ir_version: 12, opset_import: ["" : 23]>
        g (float[n,6,s,8] q, float[n,2,t,8] k, float[n,2,t,8] v,
           float[n,2,u,8] pk, float[n,2,u,8] pv) => (float[n,6,s,m] y)
        { r, a, b, w = Attention(q, k, v, , pk, pv)  e = Relu(w)  y = Neg(e) }"""
    model = onnx.parser.parse_model(text)
    onnx.save(model, tmp_path / "m.onnx")
    program = read_completely(model, tmp_path / "m.onnx", Bindings()).program
    assert {"w", "e"} <= set(missing_sizes(program)), "the past's length is not 0"
