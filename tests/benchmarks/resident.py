"""Budgets of resident bytes on steps that give gradients: planned, and held by the runtime.

    python -m tests.benchmarks.resident [NAME ...]

Each step is made by `train-step --gradients` of a forward part with seeded weights. Each row is
added to docs/measurements/resident.md as soon as it is there.

Guards the claim of docs/measurements/resident.md: a budget of resident bytes is what the
runtime holds.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]


from memplan_cli import Settings, api  # noqa: E402 - see the path above
from memplan_cli.core.bindings import Binding  # noqa: E402
from memplan_cli.core.check import Check  # noqa: E402
from memplan_cli.core.results.observations import CPU  # noqa: E402
from memplan_cli.features.training.losses import LossFunction  # noqa: E402
from memplan_cli.features.training.train_step import Recipe, make_train_step  # noqa: E402
from memplan_cli.runtime.graph.offline import offline_program  # noqa: E402
from memplan_cli.runtime.run.run_model import record_run  # noqa: E402
from memplan_cli.runtime.settings_search.written_model import WrittenModel  # noqa: E402
from memplan_cli.runtime.simulate.predict import (  # noqa: E402
    ARENA_REUSE_ONLY,
    ExecutedGraph,
    predict_peaks,
)
from memplan_cli.runtime.verification.verify import compare_models  # noqa: E402
from memplan_cli.runtime.workers.spec import RunConditions  # noqa: E402
from perceptrons import perceptron  # noqa: E402
from shared_models import filled, gradient_tensors  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = ROOT / "docs" / "measurements" / "resident.md"
BEGIN = "<!-- rows -->\n"
PERCEPTRON = "perceptron_2048x256x8"
STEPS = (
    PERCEPTRON, "train_mlp_sgd", "train_cnn_sgd", "train_resnet18_momentum",
    "train_bert_small_adam",
)  # fmt: skip
Sizes = tuple[int, int, int | None, int | None]
"""Resident bytes of the file's order and of the plan, and what the runtime held."""

BUDGETS = (None, 0.8, 0.6)


def step_of(name: str, folder: Path) -> Path:
    """Write the step of a model that gives gradients in place of new weights."""
    if name == PERCEPTRON:
        model, recipe = perceptron(width=256, rows=2048), Recipe(LossFunction("mse"), None)
    else:
        model = filled(name, folder)
        recipe = Recipe("loss", None, tuple(gradient_tensors(model)))
    path = folder / "step.onnx"
    onnx.save(make_train_step(model, recipe).model, str(path))
    return path


def rows(name: str) -> Iterator[str]:
    """Yield a row for the file and one for each budget."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        step, out = step_of(name, folder), folder / "out.onnx"
        report = api.plan(step, Settings(order="keep")).report
        before = report.memory.resident or 0
        given = report.memory.outputs or 0
        yield line(
            name, f"file (outputs {given / 1e6:.2f})", (before, before, *held(step)), ""
        )
        for budget in BUDGETS:
            asked = Settings(recompute="auto", budget=budget)
            done = api.optimize(step, asked, out=out, check=None)
            report = done.plan.report
            word = f"{budget}" if budget else "none: the knee"
            least = (report.recompute.resident_bound or 0) / before
            word += "" if report.recompute.met else f", refused: no order below {least:.3f}"
            work = f"{report.recompute.flops_increase:.2%}"
            found = held(out) if done.model else (None, None)
            if done.model:
                work += ", " + bits(step, out)
            yield line(name, word, (before, report.memory.resident or 0, *found), work)


def bits(step: Path, out: Path) -> str:
    """Return whether both files give the same bits."""
    written = WrittenModel(out, spoiled_by_optimization=True)
    check = Check("cpu", reference="unoptimized", depth="outputs")
    found = compare_models(step, written, check, Binding())
    return "equal" if found.verdict.bit_identical else "differ"


def held(path: Path) -> tuple[int | None, int | None]:
    """Return the first run's peak of a file as it stands, predicted and measured."""
    executed = ExecutedGraph(offline_program(path, {}, CPU), {})
    predicted = predict_peaks(executed, ARENA_REUSE_ONLY).first_run_peak
    observed = record_run(path, ARENA_REUSE_ONLY, RunConditions(), "arena").peaks
    return predicted, observed.first_run_peak


def line(name: str, what: str, found: Sizes, work: str) -> str:
    """Return one row of the page."""
    before, planned, _, measured = found
    sizes = ["" if size is None else f"{size / 1e6:.3f}" for size in found[1:]]
    ratio = "" if measured is None else f"{measured / planned:.4f}"
    cells = (name, what, f"{planned / before:.3f}", *sizes, ratio, work)
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Replace the rows of the models asked for."""
    for name in sys.argv[1:] or STEPS:
        made = list(rows(name))
        text = PAGE.read_text()
        head, rest = text.split(BEGIN)
        kept = [
            row for row in rest.splitlines(keepends=True) if not row.startswith(f"| {name} ")
        ]
        table, tail = kept[:2], kept[2:]
        PAGE.write_text(head + BEGIN + "".join([*table, *made, *tail]))
        print("".join(made), end="", flush=True)


if __name__ == "__main__":
    main()
