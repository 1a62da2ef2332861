"""Shapes that only a run shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx.parser

from memplan_cli.api.models.reading import missing_sizes
from memplan_cli.api.models.resolve_sizes import resolve_sizes
from memplan_cli.onnx_io.load import lazy
from memplan_cli.onnx_io.shapes.reading import read_program
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

    from memplan_cli.core.program import Program
    from memplan_cli.onnx_io.shapes.reading import Loaded

BY_DATA = """<ir_version: 9, opset_import: ["": 20]>
    g (float[4,8] x) => (float[?,2] y) {
        z = NonZero (x)
        t = Transpose <perm = [1, 0]> (z)
        f = Cast <to = 1> (t)
        y = Neg (f)
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


def test_what_depends_on_data_stays_unknown_without_a_run(tmp_path: Path) -> None:
    loaded = settled(model(BY_DATA), saved(BY_DATA, tmp_path), Settings(run=False))
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


def test_sizes_of_a_run_that_declarations_contradict_are_named_too(tmp_path: Path) -> None:
    text = GROWING.replace("h) => (d, r)", "float[2,1] h) => (d, float[2,1] r)")
    loaded = settled(model(text), saved(text, tmp_path))
    assert any("shapes of 5 tensors were learned" in warning for warning in loaded.warnings)


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
