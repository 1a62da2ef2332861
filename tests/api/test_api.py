"""The Python API: one function for each command, with a model as a path, bytes or protobuf."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

import memplan
import memplan_cli
from memplan_cli.api.models.sources import IN_MEMORY
from memplan_cli.cli import COMMANDS
from memplan_cli.core.check import Check
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import MemplanError, ModelError, PlanError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SAMPLES = Path(__file__).parents[2] / "sample_models"
MODEL = SAMPLES / "branchy_cnn.onnx"
SYMBOLIC = SAMPLES / "dynamic_batch.onnx"

FORMS: dict[str, Callable[[Path], Any]] = {
    "path": lambda path: path,
    "text": str,
    "bytes": Path.read_bytes,
    "proto": onnx.load,
}


def html_of(found: Any) -> str:  # noqa: ANN401 - any result
    text: str = found._repr_html_()
    assert text.startswith('<div class="memplan">')
    assert text.endswith("</div>\n")
    return text


def test_every_command_is_a_function_of_its_name() -> None:
    missing = [name for name in COMMANDS if not hasattr(memplan, name.replace("-", "_"))]
    assert missing == []
    assert memplan.settings is memplan_cli.runtime_settings


@pytest.mark.parametrize(
    "arguments", [{"dims": {"batch": 8}}, {"config": "memplan.yaml"}, {"extras": ["dry-run"]}]
)
def test_a_finished_plan_takes_no_settings_and_no_extras(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    plan_file = tmp_path / "net.memplan.json"
    plan_file.write_text(memplan.plan(SYMBOLIC).dumps())
    assert memplan.report(plan_file, level=None, dims={}).report.model.nodes
    assert not memplan.diff(plan_file, plan_file, level=None, exclude=[]).changes
    with pytest.raises(SettingsError, match="has no effect"):
        memplan.report(plan_file, **arguments)


@pytest.mark.parametrize("module", ["memplan", "memplan_cli"])
def test_importing_it_imports_no_workflow(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "print([m for m in sys.modules if m.startswith('memplan_cli.') or m == 'numpy'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_a_path_bytes_or_a_protobuf(form: str) -> None:
    model = FORMS[form](MODEL)
    found = memplan.plan(model)
    assert found.report.memory == memplan.plan(MODEL).report.memory
    expected = str(MODEL) if form in ("path", "text") else IN_MEMORY
    assert found.report.model.path == expected
    assert expected in html_of(found)
    assert memplan.gate(model, {"max_memory": "1GiB"}).passed
    assert not memplan.gate(model, {"max_memory": 1}).passed
    assert memplan.settings(model).predicted.first_run_peak
    assert not memplan.diff(model, MODEL).changes


def test_a_model_in_memory_is_fitted_simulated_optimized_and_proved(tmp_path: Path) -> None:
    fitted = memplan.fit(SYMBOLIC.read_bytes(), "1GiB", "batch", of="tensors")
    assert fitted.points
    assert fitted.model == IN_MEMORY
    assert memplan.simulate(onnx.load(MODEL)).simulations
    out = tmp_path / "out.onnx"
    done = memplan.optimize(onnx.load(MODEL), out=out)
    assert done.passed
    assert done.model == out
    proof = memplan.validate(out, original=MODEL.read_bytes(), extras=["replay"])
    assert proof.passed
    for found in (fitted, done, proof):
        assert b"memplan-model-" not in pickle.dumps(found)
    assert "memplan-model-" not in html_of(done)
    assert "memplan-model-" not in out.with_suffix(".json").read_text()


def test_train_step_pack_certificate_and_sweep_work_from_python(tmp_path: Path) -> None:
    step = memplan.train_step(
        MODEL,
        tmp_path / "step.onnx",
        loss_fn="mse",
        optimizer="adam",
    )
    assert Path(step.path) == tmp_path / "step.onnx"
    problem = tmp_path / "p.csv"
    problem.write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\nc,2,4,8\n")
    packed = memplan.pack(problem)
    assert packed.layout.height == 16
    certificate = tmp_path / "c.json"
    done = memplan.optimize(
        MODEL, out=tmp_path / "m.onnx", check=None, certificate=certificate
    )
    checked = memplan.verify_certificate(MODEL.read_bytes(), done.plan_file, certificate)  # type: ignore[arg-type] # it was written
    assert checked.passed
    rows = memplan.sweep(SYMBOLIC, {"batch": (1, 2)})
    assert rows.passed
    assert len(rows) == 3  # each, and one plan for both
    assert {row.model for row in rows} == {str(SYMBOLIC)}
    assert memplan.schema("plan")["$id"] == "memplan.plan/1"


def test_a_plan_is_data_that_cannot_be_changed_and_can_be_pickled() -> None:
    plan = memplan.plan(MODEL)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        plan.report = plan.report  # type: ignore[misc] # the point
    assert isinstance(plan, Plan)
    assert plan == memplan.plan(MODEL)
    assert plan != plan.with_report(memplan.plan(MODEL, level=1).report)
    assert pickle.loads(pickle.dumps(plan)) == plan  # noqa: S301 - our own


def test_names_in_a_result_are_text_to_a_notebook() -> None:
    model = onnx.load(MODEL)
    model.graph.node[0].output[0] = evil = "<script>alert(1)</script>"
    for node in model.graph.node[1:]:
        names = [
            evil if name == onnx.load(MODEL).graph.node[0].output[0] else name
            for name in node.input
        ]
        del node.input[:]
        node.input.extend(names)
    del model.graph.value_info[:]
    assert "<script>" not in html_of(memplan.plan(model))


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (lambda: memplan.plan(3), ModelError, "an object of type int is not a model"),
        (lambda: memplan.plan(b"no model"), ModelError, "in-memory.onnx is not an ONNX model"),
        (lambda: memplan.plan(MODEL, levl=1), SettingsError, "levl"),
        (lambda: memplan.plan(MODEL, memplan.Settings(), level=1), SettingsError, "level="),
        (lambda: memplan.optimize(MODEL.read_bytes()), SettingsError, "no folder"),
        (lambda: memplan.simulate(MODEL, allocators=["bfd"]), SettingsError, "'bfd'"),
        (lambda: memplan.gate(MODEL, {"max_memori": 1}), SettingsError, "max_memori"),
        (lambda: memplan.gate(MODEL, {"baseline": "b", "max_memory": 1}), SettingsError, "baseline"),
        (lambda: memplan.gate(MODEL, {"models": {}, "max_memory": 1}), SettingsError, "models"),
        (lambda: memplan.gate(MODEL, {"max_memory": 1}, files={"x": "pdf"}), SettingsError, "pdf"),
        (lambda: memplan.gate(MODEL.read_bytes(), baseline="b"), ModelError, "in memory"),
        (lambda: memplan.why(memplan.plan(MODEL), of="process"), PlanError, "for a model"),
        (lambda: memplan.why(memplan.plan(MODEL), level=1), SettingsError, "level"),
        (lambda: memplan.train_step(MODEL, "x.onnx"), SettingsError, "one loss"),
        (lambda: memplan.schema("plans"), SettingsError, "'plans'"),
        (lambda: memplan.fit(MODEL, "much", "n"), MemplanError, "much"),
    ],
)  # fmt: skip
def test_an_error_is_one_message_without_temporary_paths(
    call: Callable[[], object], kind: type[MemplanError], says: str
) -> None:
    with pytest.raises(kind) as wrong:
        call()
    assert says in str(wrong.value)
    assert "memplan-model-" not in str(wrong.value)


def test_weights_that_lie_elsewhere_are_missed_by_name(tmp_path: Path) -> None:
    """A model in memory has no folder in which they could be looked for."""
    model = onnx.load(MODEL)
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    found = memplan.plan((tmp_path / "m.onnx").read_bytes())
    assert found.report.memory.planned == memplan.plan(MODEL).report.memory.planned
    with pytest.raises(MemplanError, match=r"w\.bin") as wrong:
        memplan.settings((tmp_path / "m.onnx").read_bytes())
    assert "memplan-model-" not in str(wrong.value) + wrong.value.hint


def test_optimize_takes_the_target_as_a_keyword_and_others_refuse_it(tmp_path: Path) -> None:
    (tmp_path / "memplan.yaml").write_text("level: 1")
    model = tmp_path / "m.onnx"
    model.write_bytes(MODEL.read_bytes())
    report = memplan.optimize(model, target="cpu").plan.report
    assert (report.target, report.level) == ("cpu", 1)
    for refusing in (
        lambda: memplan.plan(model, target="cpu"),
        lambda: memplan.plan(model, memplan.Settings(target="cpu")),
        lambda: memplan.gate(model, {"max_memory": "1GiB"}, target="cpu"),
        lambda: memplan.fit(SYMBOLIC, "1GiB", "batch", target="cpu"),
    ):
        with pytest.raises(SettingsError, match="which only `memplan optimize` does"):
            refusing()


@pytest.mark.parametrize(
    "given",
    [
        {"bounds": {"batch": (1, 8)}},
        {"budget": 1 / 3, "recompute": "auto", "dims": {"batch": 2}},
        {"mem_param": memplan.MemParam(optimize_test=False)},
        {"exclude": "*"},
        {"time_limit": 1000.5, "shapes": {"image": ("batch", 3, 16, 16)}},
    ],
)
def test_keywords_have_the_forms_that_settings_have(given: dict[str, Any]) -> None:
    assert memplan.plan(SYMBOLIC, **given) == memplan.plan(SYMBOLIC, memplan.Settings(**given))


def test_inputs_of_validate_are_a_file_or_tensors_by_name(tmp_path: Path) -> None:
    done = memplan.optimize(MODEL, out=tmp_path / "m.onnx", check=None)
    image = np.zeros((1, 3, 32, 32), np.float32)
    np.savez(tmp_path / "inputs.npz", image=image)
    for inputs in ({"image": image}, tmp_path / "inputs.npz"):
        assert memplan.validate(tmp_path / "m.onnx", MODEL, inputs=inputs).passed
    assert memplan.plan(MODEL, inputs=tmp_path / "inputs.npz").report.memory.total
    assert done.passed


def test_an_unknown_keyword_is_refused_before_there_is_anything_to_check() -> None:
    with pytest.raises(SettingsError, match="no option 'max_mem'\nHint: did you mean max_mem"):
        memplan.gate(MODEL, max_mem="1MiB")
    with pytest.raises(SettingsError, match=r"is set by dim=\{'batch': 512\}"):
        memplan.plan(MODEL, batch=512)
    with pytest.raises(SettingsError, match=r"no option 'quick'\nHint: .*level"):
        memplan.plan(MODEL, quick=True)


def test_functions_take_the_options_of_their_commands_by_name(tmp_path: Path) -> None:
    """One rule for all commands: ``--max-memory 1KiB`` is ``max_memory="1KiB"``."""
    text = str(memplan.gate(MODEL, max_memory="1KiB", metric="planned"))
    assert "[failed] as planned: 216.00 KiB; the limit is 1.00 KiB" in text
    assert memplan.gate(MODEL, {"metric": "planned"}, max_memory="1GiB").passed
    assert memplan.plan(SYMBOLIC, dim={"batch": 8}) == memplan.plan(
        SYMBOLIC, dims={"batch": 8}
    )
    assert memplan.why(MODEL, process=True) == memplan.why(MODEL, of="process")
    assert memplan.why(MODEL, process=False) == memplan.why(MODEL)
    out = tmp_path / "m.onnx"
    done = memplan.optimize(MODEL, output=out, provider="cpu", validate="outputs")
    assert done.plan.report.validation
    assert done.plan.report.runtime is None or not done.plan.report.runtime.observed
    validate: Any = memplan.validate  # its own parameters are `check` and `extras`
    assert validate(out, MODEL, replay=True, runs=3).passed
    unmeasured = memplan.optimize(MODEL, output=out, no_validate=True)
    assert unmeasured.plan.report.validation is None
    assert memplan.settings(MODEL, measure=True, timeout=60).observed is not None
    assert memplan.settings(MODEL, measure=False).observed is None
    with pytest.raises(SettingsError, match="check is given twice"):
        memplan.optimize(MODEL, output=out, check=Check(), runs=3)


def test_each_option_of_a_function_has_an_effect_or_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    optimize: Any = memplan.optimize
    for options, message in (
        ({"validate": "none", "idle": "keep"}, "validate='none'"),
        ({"validate": "none", "tune": True}, "validate='none'"),
        ({"no_validate": True, "timeout": 5}, "validate='none'"),
        ({"validate": "outputs", "idle": "keep"}, "need validate='full'"),
        ({"validate": "outputs", "tune": True}, "need validate='full'"),
        ({"validate": "wrong"}, "there is no choice 'wrong'"),
        ({"idle": "wrong"}, "choose one of release, keep"),
    ):
        with pytest.raises(SettingsError, match=message):
            optimize(MODEL, out=out, **options)
    assert not out.exists()
    assert memplan.optimize(MODEL, out=out, no_validate=True, validate="none").passed
    validate: Any = memplan.validate
    for name in ("validate", "depth", "search", "reference", "idle"):
        with pytest.raises(TypeError, match=name):
            validate(out, MODEL, **{name: "none"})
    files = {"notes": "plan", "external_weights": "keep"}
    plans = {"level": 1, "bounds": {"batch": (1, 4)}}
    calls: tuple[tuple[Callable[..., object], Mapping[str, object]], ...] = (
        (memplan.plan, files),
        (memplan.report, files),
        (memplan.why, files | {"expose": True}),
        (memplan.gate, files | {"expose": True}),
        (memplan.sweep, files | {"expose": True}),
        (partial(memplan.diff, SYMBOLIC), files | {"expose": True}),
        (partial(memplan.fit, memory="1GiB", unknown="batch"), files | {"expose": True}),
        (partial(memplan.why, process=True), plans),
        (memplan.settings, plans),
        (memplan.simulate, plans),
        (memplan.soak, {"level": 1}),
    )
    for call, ineffective in calls:
        for name, value in ineffective.items():
            with pytest.raises(SettingsError, match=f"{name} has no effect"):
                call(SYMBOLIC, **{name: value})
    with pytest.raises(SettingsError, match="no option 'output'"):
        memplan.plan(MODEL, output=out)
    with pytest.raises(TypeError, match="output"):  # `train-step --output` names a tensor
        memplan.train_step(MODEL, output=out)  # type: ignore[call-arg]


def test_options_with_other_names_or_defaults_than_parameters_have_an_effect() -> None:
    fitted = memplan.fit(
        SYMBOLIC, "96MiB", "batch", of="tensors", confirm=True, provider="cpu"
    )
    assert fitted.confirmed is not None
    soaked = memplan.soak(SYMBOLIC, bounds={"batch": (1, 4)}, requests=50, time_limit=0)
    assert soaked.runs[0].requests < 50
    choice = memplan.settings(SYMBOLIC, provider="auto")
    assert choice.provider == "CPUExecutionProvider"
    (simulated,) = memplan.simulate(SYMBOLIC, allocator="bfc").simulations
    assert simulated.allocator == "bfc"


def test_the_text_of_an_error_has_the_hint_and_speaks_of_keywords() -> None:
    with pytest.raises(SettingsError) as wrong:
        memplan.plan(MODEL, levle=1)
    assert str(wrong.value) == "there is no option 'levle'\nHint: did you mean level?"
    assert wrong.value.message == "there is no option 'levle'"


def test_results_show_themselves_in_one_line(tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    done = memplan.optimize(MODEL, out=out, check=None)
    plan = f"<Plan of '{MODEL}': level 2, 216.00 KiB for the intermediates, 1.19 MiB without reuse>"
    assert repr(memplan.plan(MODEL)) == plan
    assert repr(done) == f"<Optimized: wrote '{out}', not validated, {done.plan!r}>"
    assert "at assumed sizes" in repr(memplan.plan(SYMBOLIC))
    assert repr(memplan.gate(MODEL, {"max_memory": "1GiB"})) == "<Verdicts: 1 model, passed>"
    failed = memplan.gate([MODEL, SYMBOLIC], {"max_memory": 1})
    names = ", ".join(repr(verdict.snapshot.model) for verdict in failed)
    assert repr(failed) == f"<Verdicts: 2 models, 2 failed: {names}>"
    fitted = memplan.fit(SYMBOLIC, "1GiB", "batch", of="tensors")
    batch = fitted.points[0].dims["batch"]
    assert repr(fitted) == f"<Fit of '{SYMBOLIC}' in 1.00 GiB (tensors): batch={batch}>"
    nothing = memplan.fit(SYMBOLIC, "1KiB", "batch", of="tensors")
    assert repr(nothing).endswith(": not even batch=1 fits>")
