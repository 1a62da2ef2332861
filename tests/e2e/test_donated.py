"""Donated pairs bound to one buffer, for two steps, by the runtime itself."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.parser
import pytest

from memplan_cli import Check, Settings, optimize
from memplan_cli.core.bindings import Binding
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.program import Program, VarId
from memplan_cli.core.results.observations import RuntimeSettings, Validation
from memplan_cli.core.serialization import to_json
from memplan_cli.errors import ModelError
from memplan_cli.features.donation import transform as donate
from memplan_cli.features.donation.proof import (
    DonatedSteps,
    donated_steps,
    step_specs,
)
from memplan_cli.features.donation.transform import Donations, Pair
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.metadata import PREFIX, donated_pairs, donation_note
from memplan_cli.runtime.workers.inputs import draw_all
from steps_memory import WAYS, held_by_steps
from story import memplan

if TYPE_CHECKING:
    from pathlib import Path

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'

PAIRS = (("in_w", "new_w"),)

SIGNATURE = "g (float[4,4] x, float[4,4] in_w, float lr) => (float[4,4] y, float[4,4] new_w)"

READ_FIRST = f"{SIGNATURE} {{ y = MatMul(x, in_w) s = Mul(y, lr) new_w = Sub(in_w, s) }}"

WRITTEN_FIRST = f"{SIGNATURE} {{ s = Mul(x, lr) new_w = Sub(in_w, s) y = MatMul(x, in_w) }}"
"""``y`` reads the old weight after the new one was written: no pair may share a buffer."""

ON_CPU = Check("cpu")

DONATING = Settings(donate={"in*": "new*"})


def save(folder: Path, text: str) -> Path:
    path = folder / "step.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), str(path))
    return path


def steps(folder: Path, text: str) -> DonatedSteps:
    path = save(folder, text)
    return donated_steps((path, path), PAIRS, ON_CPU, Binding())


def unsafe(program: Program, patterns: object) -> Donations:
    del patterns
    return Donations(program, (Pair(VarId("in_w"), VarId("new_w")),), ())


def test_a_pair_whose_input_is_read_before_gives_the_same_bits(tmp_path: Path) -> None:
    found = steps(tmp_path, READ_FIRST)
    assert found.passed
    assert (found.differences, found.not_finite, found.failure) == ((), (), "")


def test_an_unsafe_pair_is_caught(tmp_path: Path) -> None:
    found = steps(tmp_path, WRITTEN_FIRST)
    assert not found.passed
    assert [item.output for item in found.differences] == ["y@1", "y@2"]


@pytest.mark.parametrize("order", ["read first", "written first"])
def test_state_of_a_type_that_numpy_does_not_know_takes_steps_too(
    order: str, tmp_path: Path
) -> None:
    write = "s = Mul(x, lr) n = Sub(w, s) new_w = Cast <to = 16> (n)"
    read = "v = Cast <to = 1> (in_w) y = MatMul(x, v)"
    parts = {"read first": (read, write), "written first": (write, read)}[order]
    signature = SIGNATURE.replace("float[4,4] in_w", "bfloat16[4,4] in_w")
    signature = signature.replace("float[4,4] new_w", "bfloat16[4,4] new_w")
    text = f"{signature} {{ w = Cast <to = 1> (in_w) {' '.join(parts)} }}"
    found = steps(tmp_path, text)
    assert not found.failure
    assert found.passed == (order == "read first")


@pytest.mark.parametrize("order", ["read first", "written first"])
def test_steps_that_draw_random_numbers_draw_the_same(order: str, tmp_path: Path) -> None:
    calm = {"read first": READ_FIRST, "written first": WRITTEN_FIRST}[order]
    model = onnx.parser.parse_model(HEAD + calm)
    index = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "s")
    noise = onnx.helper.make_node("RandomUniformLike", ["in_w"], ["r"])
    draw = onnx.helper.make_node("Mul", ["s", "r"], ["drawn"])
    for node in model.graph.node:
        if node.output[0] == "new_w":
            node.input[:] = ["drawn" if name == "s" else name for name in node.input]
    model.graph.node.insert(index + 1, draw)
    model.graph.node.insert(0, noise)
    path = tmp_path / "step.onnx"
    onnx.save(model, path)
    assert donated_steps((path, path), PAIRS, ON_CPU, Binding()).passed == (
        order == "read first"
    )


def test_a_step_that_starts_from_the_old_values_again_is_caught(tmp_path: Path) -> None:
    # The written model forgets to update: its second step is its first.
    lazy = READ_FIRST.replace("Sub(in_w, s)", "Sub(in_w, zero)").replace(
        "{ y", "<float zero = {0.0}> { y"
    )
    other = tmp_path / "other"
    other.mkdir()
    found = donated_steps(
        (save(tmp_path, READ_FIRST), save(other, lazy)), PAIRS, ON_CPU, Binding()
    )
    assert [item.output for item in found.differences] == ["new_w@1", "y@2", "new_w@2"]


def test_a_model_that_cannot_run_two_steps_fails(tmp_path: Path) -> None:
    wide = READ_FIRST.replace("float[4,4] in_w", "float[4,5] in_w").replace(
        "[4,4] y", "[4,5] y"
    )
    other = tmp_path / "other"
    other.mkdir()
    found = donated_steps(
        (save(tmp_path, READ_FIRST), save(other, wide)), PAIRS, ON_CPU, Binding()
    )
    assert not found.passed
    assert found.failure


def test_outputs_that_are_not_finite_are_listed(tmp_path: Path) -> None:
    zero = READ_FIRST.replace("y = MatMul(x, in_w)", "z = Sub(x, x) y = Div(in_w, z)")
    assert set(steps(tmp_path, zero).not_finite) == {"y", "new_w"}


def test_a_donated_pair_takes_less_memory_than_two_buffers(tmp_path: Path) -> None:
    wide = READ_FIRST.replace("4,4", "2048,2048").replace("MatMul", "Add")
    path = save(tmp_path, wide)
    peaks = {}
    for way in WAYS:
        held = held_by_steps(path, PAIRS, way)
        assert held.before is not None
        assert held.peak is not None
        peaks[way] = held.peak
    matrix = 4 * 2048 * 2048
    assert peaks["swapped"] - peaks["donated"] > 0.8 * matrix
    assert peaks["fed"] > peaks["donated"]


def test_optimize_proves_two_donated_steps_and_says_how_to_bind(
    tmp_path: Path, samples: Path
) -> None:
    out = tmp_path / "net.onnx"
    check = Check(provider="cpu", reference="unoptimized")
    done = optimize(samples / "train_mlp.onnx", DONATING, out=out, check=check)
    report = done.plan.report
    assert report.validation is not None
    assert report.validation.donated == "passed"
    assert len(report.donated.pairs) == 4
    assert report.runtime is not None
    assert report.runtime.settings is not None
    assert report.runtime.settings.io_binding["new.fc1.w"] == "in.fc1.w"
    level = report.runtime.settings.session["graph_optimization_level"]
    assert level == "ORT_DISABLE_ALL", "a pair is safe in the order of the file only"
    assert donated_pairs(load_model(out)) == report.donated.pairs


def test_donated_outputs_that_change_bits_are_left_out_of_a_portable_file_and_kept_for_a_target(
    tmp_path: Path, samples: Path
) -> None:
    """ONNX Runtime's fusions decide the bits of this step, and its optimization moves donated pairs."""
    model, check = samples / "train_mlp.onnx", Check(provider="cpu")
    portable = optimize(model, DONATING, out=tmp_path / "a.onnx", check=check).plan.report
    (fallback,) = portable.fallbacks
    assert "donated outputs" in fallback.what
    assert "--target cpu" in fallback.why
    assert portable.validation is not None
    assert portable.validation.bit_identical
    for_cpu = replace(DONATING, target="cpu")
    report = optimize(model, for_cpu, out=tmp_path / "b.onnx", check=check).plan.report
    assert report.validation is not None
    assert report.validation.bit_identical
    assert report.validation.donated == "passed"
    assert len(report.donated.pairs) == 4
    assert not report.fallbacks


def test_the_settings_as_python_bind_what_they_say(tmp_path: Path, samples: Path) -> None:
    model, snippet = samples / "train_mlp.onnx", tmp_path / "session.py"
    words = ["-o", str(tmp_path / "net.onnx"), "--donate", "in.*=new.*", "--quiet"]
    words += ["--settings-out", str(snippet), "--provider", "cpu"]
    words += ["--reference", "unoptimized"]
    assert memplan("optimize", str(model), *words).exit_code == 0
    names: dict[str, Any] = runpy.run_path(str(snippet))
    inputs: Any = draw_all(step_specs(model, Binding(), tuple(names["donated"].items())))
    plain, state = names["session"], {name: array.copy() for name, array in inputs.items()}
    outputs = [output.name for output in plain.get_outputs()]
    binding = names["bind"](inputs)
    for _ in range(2):
        wanted = dict(zip(outputs, plain.run(outputs, state), strict=True))
        plain.run_with_iobinding(binding, names["run_options"])
        got = dict(zip(outputs, binding.copy_outputs_to_cpu(), strict=True))
        assert all(np.array_equal(got[name], wanted[name]) for name in outputs)
        state |= {old: wanted[new] for new, old in names["donated"].items()}
    assert np.array_equal(inputs["in.fc1.w"], got["new.fc1.w"]), "one buffer for both"


def test_optimize_writes_nothing_where_two_donated_steps_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donate, "donations", unsafe)
    model = save(tmp_path, WRITTEN_FIRST)
    # The pair is unsafe in the order of the file, which a tie leaves as it is.
    done = optimize(model, DONATING, out=tmp_path / "out.onnx", check=Check(provider="cpu"))
    assert done.model is None
    assert done.plan.report.validation is not None
    assert done.plan.report.validation.donated == "failed"
    assert not done.plan.report.validation.passed
    assert [path.name for path in tmp_path.iterdir()] == ["step.onnx"]


@pytest.mark.parametrize(("text", "code"), [(READ_FIRST, 0), (WRITTEN_FIRST, 1)])
def test_validate_takes_two_donated_steps(text: str, code: int, tmp_path: Path) -> None:
    source, planned = save(tmp_path, text), tmp_path / "out.onnx"
    optimize(source, Settings(order="keep"), out=planned, check=None)
    model = onnx.load(planned)
    for key, value in donation_note(PAIRS).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, planned)
    planned.with_suffix(".json").unlink()  # it knows nothing of the pairs
    words = ["validate", str(planned), "--original", str(source), "--provider", "cpu"]
    done = memplan(*words, "--format", "json")
    assert done.exit_code == code
    verdict = json.loads(done.stdout)
    assert verdict["donated"] == ("failed" if code else "passed")
    assert [item["output"] for item in verdict["differences"]] == ["y@1", "y@2"] * code
    assert "donated pair in one buffer" in memplan(*words).stdout


@pytest.mark.parametrize("text", ["{", "[1]", '[["in_w", "nothing"]]', '[["x", "y", "z"]]'])
def test_a_note_of_donations_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    model = load_model(save(tmp_path, READ_FIRST))
    model.metadata_props.add(key=f"{PREFIX}donated", value=text)
    with pytest.raises(ModelError, match="donate"):
        donated_pairs(model)


def test_bindings_and_verdicts_survive_json() -> None:
    settings = RuntimeSettings(io_binding={"b": "a"})
    assert from_json(RuntimeSettings, to_json(settings), "it") == settings
    assert "io_binding" not in to_json(RuntimeSettings())
    verdict = Validation("passed", "cpu", donated="failed")
    assert from_json(Validation, to_json(verdict), "it") == verdict
    assert not verdict.passed
