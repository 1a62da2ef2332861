"""Real inputs of types that numpy does not know, and sequences, fed to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from builders import parse
from memplan_cli import Settings, plan
from memplan_cli.cli import main

if TYPE_CHECKING:
    from pathlib import Path

FOREIGN = {
    "bfloat16": TensorProto.BFLOAT16,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN,
    "float8e5m2": TensorProto.FLOAT8E5M2,
}

PICKED = """g ({dtype}[n] x) => (y)
    {{ f = Cast<to = 1>(x) found = NonZero(f) moved = Abs(found) y = Neg(moved) }}"""

SEQUENCE = """g (seq(float[n]) x) => (y) {
    f = ConcatFromSequence<axis = 0>(x) found = NonZero(f) moved = Abs(found) y = Neg(moved) }"""


def written(path: Path, text: str) -> Path:
    model = parse(text)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 19))
    model.ir_version = 9
    onnx.save(model, path)
    return path


def values(count: int, zeros: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    found = np.ones(count, np.float32)
    found[:zeros] = 0
    return found


def pb(folder: Path, dtype: str) -> Path:
    folder.mkdir()
    tensor = helper.make_tensor("x", FOREIGN[dtype], [16], values(16, 4))
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    return folder


def npz(folder: Path, dtype: str) -> Path:
    folder.mkdir()
    kind = helper.tensor_dtype_to_np_dtype(FOREIGN[dtype])
    np.savez(folder / "x.npz", x=values(16, 4).astype(kind))
    return folder / "x.npz"


@pytest.mark.parametrize(
    ("dtype", "made"),
    [*((dtype, pb) for dtype in FOREIGN), ("bfloat16", npz), ("float8e4m3fn", npz)],
)
def test_values_that_numpy_has_no_type_for_reach_the_run(
    tmp_path: Path, dtype: str, made: object
) -> None:
    path = written(tmp_path / "m.onnx", PICKED.format(dtype=dtype))
    file = made(tmp_path / "given", dtype)  # type: ignore[operator]
    found = plan(path, Settings(inputs=(str(file),))).report  # type: ignore[arg-type]
    assert found.certainty["planned"] == "observed"
    assert found.memory.outputs == 12 * 8
    assert found.bindings["n"].value == 16


def test_an_array_of_another_width_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", PICKED.format(dtype="bfloat16"))
    kind = helper.tensor_dtype_to_np_dtype(FOREIGN["float8e4m3fn"])
    np.savez(tmp_path / "x.npz", x=values(16, 4).astype(kind))
    done = CliRunner().invoke(main, ["report", str(path), "--inputs", str(tmp_path / "x.npz")])
    assert done.exit_code == 2
    assert "the input is bfloat16" in done.stderr


def test_a_type_whose_name_numpy_cannot_read_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", PICKED.format(dtype="float8e5m2"))
    file = npz(tmp_path / "given", "float8e5m2")
    done = CliRunner().invoke(main, ["report", str(path), "--inputs", str(file)])
    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_a_sequence_reaches_the_run_with_as_many_tensors_as_it_has(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", SEQUENCE)
    arrays = [values(6, 1), values(9, 3), values(2, 0)]
    given = numpy_helper.from_list(arrays, "x")
    (tmp_path / "input_0.pb").write_bytes(given.SerializeToString())
    found = plan(path, Settings(inputs=(str(tmp_path),))).report  # type: ignore[arg-type]
    assert found.memory.outputs == (5 + 6 + 2) * 8
    assert any(
        "not counted in any total" in warning and "'x'" in warning
        for warning in found.warnings
    )


def test_a_tensor_for_a_sequence_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", SEQUENCE)
    np.savez(tmp_path / "x.npz", x=values(6, 1))
    done = CliRunner().invoke(main, ["report", str(path), "--inputs", str(tmp_path / "x.npz")])
    assert done.exit_code == 2
    assert "the input is a sequence" in done.stderr
    drawn = plan(path).report
    assert drawn.memory.total is not None
