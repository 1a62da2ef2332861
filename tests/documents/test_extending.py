"""The guide's examples: the guide quotes them, they run, and each addition has its effect."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser
from onnx.reference import ReferenceEvaluator

import memplan_cli
from documents.pages import DOCS, ROOT, CodeBlock, blocks_of
from features.training.gradient_checks import Case, check
from memplan_cli import Settings
from memplan_cli.core.problem import Layout, lower_bound, violations
from memplan_cli.errors import InvalidLayoutError
from memplan_cli.onnx_io.shapes import interpret
from memplan_cli.onnx_io.writing.write import written_model
from memplan_cli.ordering import list_orders
from memplan_cli.packing import ALLOCATORS
from order_graphs import random_graph
from packing_problems import problems
from story import COMMANDS

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from memplan_cli.core.problem import Problem
    from memplan_cli.features.training.tape import Call

EXAMPLES = DOCS / "examples" / "extending"
NAMES = tuple(path.stem for path in sorted(EXAMPLES.glob("*.py")))
BLOCKS = tuple(
    block for block in blocks_of(DOCS / "guide.md") if block.language in ("python", "text")
)


def example(name: str) -> ModuleType:
    """Return an example as an imported module; its name is that in the example's `COMMANDS`."""
    full = f"extending_{name}"
    if full not in sys.modules:
        spec = spec_from_file_location(full, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run an example as a script and return what it prints."""
    try:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, None)  # noqa: PT017 - the end of a command, no failure
    return capsys.readouterr().out


def remarks(kind: str) -> dict[str, list[CodeBlock]]:
    """Return the guide's blocks by the example that they are ``from`` or that ``prints`` them."""
    blocks: dict[str, list[CodeBlock]] = {}
    for block in BLOCKS:
        remark, _, file = block.remark.partition(" ")
        if remark == kind:
            blocks.setdefault(file.removesuffix(".py"), []).append(block)
    return blocks


def extended_copy(folder: Path, *files: str) -> Path:
    """Return a copy of the package in which the guide's changes of some files are made.

    A block with the remark ``adds to FILE after TEXT`` goes below the first line of the file that
    begins with the text; one with ``replaces in FILE TEXT`` replaces that line.
    """
    for name in ("memplan_cli", "configs"):
        shutil.copytree(
            ROOT / name, folder / name
        )  # with byte code, which spares a process 0.5 s
    for block in BLOCKS:
        remark = re.fullmatch(r"(adds to|replaces in) (\S+) (?:after )?(.+)", block.remark)
        if remark is None or remark[2] not in files:
            continue
        path, anchor = folder / remark[2], remark[3]
        lines = path.read_text().splitlines(keepends=True)
        index = next(i for i, line in enumerate(lines) if line.strip().startswith(anchor))
        start = index if remark[1] == "replaces in" else index + 1
        lines[start : index + 1] = [block.text]
        path.write_text("".join(lines))
    return folder


def run_in(copy: Path, *arguments: str) -> str:
    """Run Python with a copy of the package, and return its stdout."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy, env=environment, check=True, text=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    return process.stdout


def run_commands(copy: Path, *lines: str) -> list[str]:
    """Run commands in one process with a copy of the package, and return what each prints."""
    endings = json.loads(run_in(copy, "-c", COMMANDS, *lines))
    assert [code for code, _, _ in endings] == [0] * len(lines), endings
    return [stdout for _, stdout, _ in endings]


def test_the_guide_quotes_every_example_and_nothing_else() -> None:
    assert sorted(remarks("from")) == sorted(remarks("prints")) == list(NAMES)
    assert [str(block) for block in BLOCKS if not block.remark] == []
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_what_the_guide_quotes_stands_in_the_example(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert [str(block) for block in remarks("from")[name] if block.text not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_the_guide_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(name, capsys)
    assert [str(block) for block in remarks("prints")[name] if block.text not in shown] == []


@given(problems())
def test_the_allocator_is_safe_and_never_below_the_bound(problem: Problem) -> None:
    layout = example("allocator").longest_first(problem)
    assert violations(problem, layout) == ()
    assert layout.height >= lower_bound(problem)


def test_a_plan_lies_where_the_callers_allocator_puts_it(samples: Path) -> None:
    recorded_offsets: list[dict[str, int]] = []

    def recorded(problem: Problem) -> Layout:
        layout: Layout = example("allocator").longest_first(problem)
        recorded_offsets.append(
            {str(buffer): offset for buffer, offset in layout.offsets.items()}
        )
        return layout

    plan = memplan_cli.plan(samples / "branchy_cnn.onnx", allocate=recorded)
    assert {t.name: t.offset for t in plan.tensors if t.alias_of is None} in recorded_offsets


def test_an_allocator_whose_layout_is_not_safe_is_refused(samples: Path) -> None:
    def on_the_floor(problem: Problem) -> Layout:
        height = max(buffer.size for buffer in problem.buffers)
        return Layout({buffer.id: 0 for buffer in problem.buffers}, height, proved=True)

    with pytest.raises(InvalidLayoutError, match="overlap"):
        memplan_cli.plan(samples / "branchy_cnn.onnx", allocate=on_the_floor)


def test_padding_that_an_allocator_leaves_out_at_the_top_is_added(tmp_path: Path) -> None:
    def trimmed(problem: Problem) -> Layout:
        layout = ALLOCATORS["portfolio"](problem)
        top = max(layout.offsets[b.id] + b.size for b in problem.buffers)
        assert top < layout.height
        return Layout(layout.offsets, top)

    path, settings = tmp_path / "odd.onnx", Settings(alignment=64)
    text = """<ir_version: 9, opset_import: ["": 18]>
        odd (float[1003] x) => (float[1003] y) { a = Exp(x) b = Exp(a) c = Exp(b) y = Neg(c) }"""
    onnx.save(parser.parse_model(text), path)
    plan = memplan_cli.plan(path, settings, allocate=trimmed)
    assert plan.report.memory.planned == 4032
    assert plan.report.memory == memplan_cli.plan(path, settings).report.memory


def test_an_allocator_that_wastes_memory_costs_no_more_than_level_1(samples: Path) -> None:
    def apart(problem: Problem) -> Layout:
        offsets, top = {}, 0
        for buffer in problem.buffers:
            offsets[buffer.id] = top
            top += -(-buffer.size // problem.alignment) * problem.alignment
        return Layout(offsets, top, proved=True)

    report = memplan_cli.plan(samples / "branchy_cnn.onnx", allocate=apart).report
    assert report.levels["2"] == report.levels["1"]
    assert report.memory.planned == report.levels["1"]


@given(st.integers(0, 10_000))
def test_the_scheduler_gives_a_permutation_that_keeps_to_the_edges(seed: int) -> None:
    graph = random_graph(seed)
    order = example("scheduler").newest_first(graph)
    place = {op: index for index, op in enumerate(order)}
    assert sorted(order) == list(range(graph.size))
    assert all(place[p] < place[op] for op in order for p in graph.preds[op])


def test_planning_tries_a_scheduler_of_the_table(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = example("scheduler").newest_first
    monkeypatch.setitem(list_orders.SCHEDULERS, "newest_first", scheduler)
    report = memplan_cli.plan(samples / "train_mlp.onnx").report
    live = report.memory.live_peak
    assert live is not None
    assert report.orders["newest_first"] >= live


def test_an_operator_with_the_trait_is_written_over_its_input(tmp_path: Path) -> None:
    copy = extended_copy(
        tmp_path, "memplan_cli/core/operators.py", "memplan_cli/checking/operators.py"
    )
    script = str(EXAMPLES / "operator_trait.py")
    assert (run_in(ROOT, script), run_in(copy, script)) == ("131072 bytes\n", "65536 bytes\n")
    onnx.save(example("operator_trait").MODEL, tmp_path / "model.onnx")
    lines = "optimize model.onnx --no-validate", "validate model.memplan.onnx"
    assert "pass" in run_commands(copy, *lines)[1]


def test_the_rewritten_model_has_the_same_outputs_and_needs_less(tmp_path: Path) -> None:
    module = example("rewrite")
    path = tmp_path / "scaled.onnx"
    onnx.save(module.MODEL, path)
    planned = module.planned(path)
    model = onnx.load_from_string(
        b"".join(written_model(onnx.load(path), planned.program, planned.plan))
    )
    assert [node.op_type for node in model.graph.node].count("Expand") == 2
    random = np.random.default_rng(3)
    feeds = {
        "x": random.normal(size=(64, 256)).astype(np.float32),
        "scale": random.normal(size=256).astype(np.float32),
    }
    before, after = (
        ReferenceEvaluator(each).run(None, feeds)[0] for each in (module.MODEL, model)
    )
    assert np.array_equal(before, after)
    assert planned.plan.report.memory.planned < planned.plan.report.original_planned


def test_the_rewrite_leaves_a_model_without_repeated_reads_alone(samples: Path) -> None:
    planned = example("rewrite").planned(samples / "train_mlp.onnx")
    assert planned.plan.report.recompute.nodes == 0


SETTING_FILES = (
    "memplan_cli/settings/keys.py",
    "memplan_cli/settings/settings.py",
    "memplan_cli/planning/notes.py",
    "memplan_cli/cli/settings_options.py",
    "configs/default.yaml",
)


def test_the_setting_is_read_from_a_file_and_an_option_and_has_its_effect(
    tmp_path: Path, samples: Path
) -> None:
    copy = extended_copy(tmp_path, *SETTING_FILES)
    shutil.copy(samples / "train_mlp.onnx", tmp_path / "model.onnx")
    found = tmp_path / "found"
    found.mkdir()
    shutil.copy(samples / "train_mlp.onnx", found / "model.onnx")
    (found / "memplan.yaml").write_text("warn_nodes: 2\n")
    options = ("", " --warn-nodes 1000", " --warn-nodes 2", " --config found/memplan.yaml")
    lines = (f"report model.onnx{words}" for words in options)
    *reports, schema = run_commands(copy, *lines, "report found/model.onnx", "schema config")
    warning = "the model has more than 2 nodes"
    assert [warning in text for text in reports] == [False, False, True, True, True]
    assert '"warn_nodes"' in schema


def test_the_shape_rule_makes_an_unknown_size_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = example("shape_rule")
    path = tmp_path / "unpooled.onnx"
    onnx.save(module.MODEL, path)
    partial = Settings(allow_partial=True, run=False)
    before = memplan_cli.plan(path, partial).report
    assert [refusal.name for refusal in before.unplanned] == ["large"]
    monkeypatch.setitem(interpret.RULES, "MaxUnpool", module.max_unpool)
    after = memplan_cli.plan(path).report
    assert after.unplanned == ()
    assert after.symbolic["planned"] == "768*batch + 32"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("Compress <axis = 0> (x, c)", (4, 3)),
        ("Compress <axis = 1> (x, c)", (2, 4, 3)),
        ("Compress <axis = -1> (x, c)", (2, 3, 4)),
        ("Compress (x, c)", (2, 2)),
    ],
)
def test_the_gradient_rule_agrees_with_central_differences(
    text: str, shape: tuple[int, ...]
) -> None:
    x = np.random.default_rng(7).normal(size=shape)
    condition = np.array([True, False, True, True])
    rules: dict[str, Any] = example("gradient_rule").EXTENDED
    check(Case(f"y = {text}", {"x": x}, constants={"c": condition}, rules=rules))


def test_without_the_gradient_rule_the_operator_is_refused() -> None:
    from memplan_cli.features.training.backward import NoRuleError
    from memplan_cli.features.training.train_step import Recipe, make_train_step

    with pytest.raises(NoRuleError, match="Compress"):
        make_train_step(example("gradient_rule").MODEL, Recipe("loss", None, ("x",)))


def test_a_gradient_rule_of_the_callers_comes_before_memplans_own() -> None:
    from memplan_cli.features.training.train_step import Recipe, make_train_step

    def tripled(call: Call) -> tuple[str, ...]:
        return (call.tape.emit("Mul", call.dy, call.tape.scalar(3, call.input(0))),)

    model = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (double x) => (double loss)'
        " { e = Exp(x) loss = Identity(e) }"
    )
    step = make_train_step(model, Recipe("loss", None, ("x",), rules={"Exp": tripled}))
    (gradient,) = onnx.reference.ReferenceEvaluator(step.model).run(
        [step.gradients["x"]], {step.parameters[0].input: np.array(1.0)}
    )
    assert gradient == 3.0


def test_the_renderer_escapes_what_a_file_is_called(samples: Path, tmp_path: Path) -> None:
    path = tmp_path / 'a"b.onnx'
    path.write_bytes((samples / "branchy_cnn.onnx").read_bytes())
    text = example("renderer").EXTENDED["metrics"](memplan_cli.plan(path))
    assert 'memplan_planned_bytes{model="a\\"b.onnx",level="2"} 221184\n' in text


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ((), 0, "221184 bytes at "),
        (("--at-most", "1000"), 1, "221184 bytes at "),
        (("--debugg",), 2, "No such option"),
    ],
)
def test_the_command_ends_with_the_exit_code_of_its_check(
    samples: Path, options: tuple[str, ...], code: int, text: str
) -> None:
    module = example("command")
    line = module.command_line(module.EXTENDED)
    model = str(samples / "branchy_cnn.onnx")
    result = CliRunner().invoke(line, ["peak", model, *options])
    assert (result.exit_code, text in result.output) == (code, True)
    assert "Print the node at which" in CliRunner().invoke(line, ["--help"]).output


def test_the_command_that_cannot_work_ends_with_2_and_a_hint(tmp_path: Path) -> None:
    module = example("command")
    line = module.command_line(module.EXTENDED)
    text = """<ir_version: 10, opset_import: ["": 20, "mine": 1]>
        g (float[4] x) => (float[4] z) { y = mine.Op(x)  z = mine.Op(y) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    result = CliRunner().invoke(line, ["peak", str(tmp_path / "m.onnx")])
    assert (result.exit_code, "Hint: give them in" in result.output) == (2, True)
