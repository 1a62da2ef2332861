"""One binding for planning, running and reporting, wherever it was said."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import pytest
from click.testing import CliRunner

from memplan_cli import Settings, plan
from memplan_cli.api.models.binding import bind, binding_of
from memplan_cli.cli import main
from memplan_cli.core.bindings import Feed
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.load import load_model

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.settings.settings import Settings as AnySettings

NET = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[batch, seq, 8] x, int64[batch] ids, float[?, 4] free) => (y, z, kept)
    {
        a = Relu(x)
        b = Exp(a)
        y = Neg(b)
        i = Abs(ids)
        z = Neg(i)
        f = Relu(free)
        kept = Exp(f)
    }
"""

PICKED = """
    <ir_version: 8, opset_import: ["" : 17]>
    net (float[n] x) => (y)
    {
        found = NonZero(x)
        moved = Abs(found)
        y = Neg(moved)
    }
"""


def written(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def net(tmp_path: Path) -> Path:
    model = onnx.parser.parse_model(NET.replace("float[?, 4]", "float[f, 4]"))
    model.graph.input[2].type.tensor_type.shape.dim[0].ClearField("dim_param")
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    return path


def arrays(batch: int, seq: int, free: int) -> dict[str, Any]:
    return {
        "x": np.ones((batch, seq, 8), np.float32),
        "ids": np.arange(batch),
        "free": np.ones((free, 4), np.float32),
    }


def bound(path: Path, given: AnySettings) -> AnySettings:
    return bind(load_model(path), given)


def said(*arguments: object, code: int = 0) -> Any:  # noqa: ANN401 - JSON, or words
    done = CliRunner().invoke(main, [str(word) for word in arguments])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if code == 0 else done.stderr


def test_a_shape_and_an_array_of_it_bind_the_same(net: Path) -> None:
    shapes = {name: array.shape for name, array in arrays(3, 5, 7).items()}
    by_data = bound(net, Settings(inputs=arrays(3, 5, 7)))  # type: ignore[arg-type]
    by_shape = bound(net, Settings(shapes=shapes))
    assert by_data.dims == by_shape.dims == {"batch": 3, "seq": 5, "free_dim0": 7}
    assert by_shape.inputs.feeds == {name: Feed(shape) for name, shape in shapes.items()}


def test_inputs_and_shapes_have_the_same_total(net: Path, tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, **arrays(3, 5, 7))
    shapes = [
        w
        for n, a in arrays(3, 5, 7).items()
        for w in ("--shape", f"{n}={','.join(map(str, a.shape))}")
    ]
    by_inputs = said("report", net, "--inputs", file, "--format", "json")
    by_shapes = said("report", net, *shapes, "--format", "json")
    assert by_inputs["memory"] == by_shapes["memory"]
    assert by_inputs["memory"]["total"] is not None
    assert by_inputs["bindings"]["batch"] == {"value": 3, "source": "inputs"}
    assert by_shapes["bindings"]["batch"] == {"value": 3, "source": "given"}


def test_two_that_say_different_sizes_are_refused(net: Path) -> None:
    for other in (
        {"dims": {"batch": 4}},
        {"shapes": {"ids": (4,)}},
        {"bounds": {"batch": (1, 8)}},
    ):
        with pytest.raises(SettingsError, match=r"batch|ids"):
            bound(net, Settings(inputs=arrays(3, 5, 7), **other))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"is 3 in input .* and 4 in input"):
        bound(net, Settings(inputs={**arrays(3, 5, 7), "ids": np.arange(4)}))  # type: ignore[arg-type]


def test_a_binding_is_made_once(net: Path) -> None:
    once = bound(net, Settings(inputs=arrays(3, 5, 7)))  # type: ignore[arg-type]
    assert bound(net, once) is once


def test_what_data_decides_is_seen_in_a_run_on_the_data(tmp_path: Path) -> None:
    picked = written(tmp_path / "picked.onnx", PICKED)
    free = plan(picked, Settings(dims={"n": 64}, run=False))
    assert free.report.memory.total is None
    x = np.zeros(64, np.float32)
    x[:9] = 1
    seen = plan(picked, Settings(inputs={"x": x})).report  # type: ignore[arg-type]
    assert seen.memory.planned is not None
    assert seen.memory.planned >= 9 * 8
    assert seen.memory.planned < 64 * 8
    assert seen.certainty["planned"] == "observed"
    assert seen.bindings == {"n": BoundDim(64, "inputs")}


@pytest.mark.parametrize("way", ["--inputs", "--shape"])
def test_what_is_observed_is_of_the_sizes_planned(net: Path, tmp_path: Path, way: str) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, **arrays(30, 50, 70))
    shapes = [
        w
        for n, a in arrays(30, 50, 70).items()
        for w in ("--shape", f"{n}={','.join(map(str, a.shape))}")
    ]
    given = ["--inputs", file] if way == "--inputs" else shapes
    found = said("optimize", net, *given, "--provider", "cpu", "--format", "json")
    observed = found["runtime"]["observed"]["original"]["first_run_peak"]
    assert observed == found["runtime"]["predicted"]["original"]["first_run_peak"]
    assert observed >= 30 * 50 * 8 * 4
    assert {dim["source"] for dim in found["bindings"].values()} == (
        {"inputs"} if way == "--inputs" else {"given"}
    )


def test_what_nobody_said_is_assumed_where_a_run_needs_it(net: Path) -> None:
    found = said("optimize", net, "--dim", "batch=3", "--provider", "cpu", "--format", "json")
    assert found["bindings"]["batch"] == {"value": 3, "source": "given"}
    assert found["bindings"]["seq"]["source"] == "assumed"
    text = CliRunner().invoke(main, ["report", str(net.with_suffix(".memplan.json"))]).output
    assert f"Sizes are guessed: free_dim0=1, seq={found['bindings']['seq']['value']};" in text
    assert "set them with --" in " ".join(text.split())


def test_a_plan_is_validated_at_its_own_sizes_only(net: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "inputs.npz", tmp_path / "other.npz"
    np.savez(file, **arrays(3, 5, 7))
    np.savez(other, **arrays(4, 5, 7))
    out = tmp_path / "out.onnx"
    said("optimize", net, "--inputs", file, "-o", out, "--no-validate", "--format", "json")
    words = ("validate", out, "--original", net, "--provider", "cpu", "--format", "json")
    assert said(*words, "--inputs", file)["status"] == "passed"
    assert "not those of the plan" in said(*words, "--inputs", other, code=2)


def test_a_value_that_the_model_fails_on_leaves_nothing_behind(tmp_path: Path) -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        net (int64[1] at, float[4] x) => (y)
        { p = Gather(x, at) y = Neg(p) }
    """
    picked = written(tmp_path / "picked.onnx", text)
    words = ("optimize", picked, "--input", "at=9", "--provider", "cpu")
    message = said(*words, code=2)
    assert "with the values given of 'at'" in message
    assert "out of" in message
    assert [path.name for path in tmp_path.iterdir()] == ["picked.onnx"]


@pytest.mark.parametrize(
    "command",
    [
        ("report",),
        ("gate", "--max-memory", "1GiB"),
        ("why",),
        ("settings",),
        ("simulate",),
        ("sweep",),
        ("fit", "--memory", "1GiB", "--dim", "seq=?"),
        ("optimize", "--no-validate"),
    ],
)
def test_every_command_takes_inputs_and_refuses_what_fits_none(
    net: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    given = ["--input", "ids=1,2,3", "--shape", "free=7,4"]
    if name in {"simulate", "gate"}:
        given += ["--dim", "seq=5"]
    done = CliRunner().invoke(main, [name, str(net), *options, *given])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(main, [name, str(net), *options, "--input", "idz=1,2,3"])
    assert done.exit_code == 2
    assert "idz" in done.output


def test_both_sides_of_a_diff_take_the_inputs(net: Path) -> None:
    found = said("diff", net, net, "--input", "ids=1,2,3", "--format", "json")
    assert found


def test_python_takes_arrays_and_paths(net: Path, tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    np.savez(file, **arrays(3, 5, 7))
    by_path = plan(net, Settings(inputs=file))  # type: ignore[arg-type]
    by_array = plan(net, Settings(inputs=arrays(3, 5, 7)))  # type: ignore[arg-type]
    assert replace(by_path, settings={}) == replace(by_array, settings={})


@pytest.mark.parametrize(
    ("bounds", "number", "second"),
    [((1, 8), 8, 1), ((1, 8), 1, 2), ((0, 8), 8, 1), ((0, 8), 1, 2), ((3, 3), 3, 3)],
)
def test_the_second_number_of_a_dim_with_bounds_differs_and_leaves_no_tensor_empty(
    bounds: tuple[int, int], number: int, second: int
) -> None:
    settings = Settings(bounds={"n": DimRange(*bounds)}, dims={"n": number})
    assert binding_of(settings).second_numbers == {"n": second}
