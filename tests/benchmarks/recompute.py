"""Budgets and donations on the shared training steps: what is reached, at what price.

    python -m tests.benchmarks.recompute [MODEL...]

Each model's figures are kept in ``out/recompute/`` as soon as they are there, and are not
measured again: a run that was stopped goes on where it was. The table is written to
docs/measurements/recompute.md. Weights are seeded; each run is on the CPU with one thread
where bits are compared.

Guards the claim of docs/measurements/recompute.md: budgets of training steps and donated
updates are kept, with the same bits.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli import Settings, api
from memplan_cli.core.bindings import Binding
from memplan_cli.core.check import Check
from memplan_cli.core.results.observations import CPU
from memplan_cli.core.serialization import to_json
from memplan_cli.features.donation.proof import donated_steps
from memplan_cli.onnx_io.load import load_model
from memplan_cli.runtime.graph.offline import offline_program
from memplan_cli.runtime.run.baseline import BaselineRun
from memplan_cli.runtime.settings_search.written_model import (
    WrittenModel,
    read_baseline_graph,
)
from memplan_cli.runtime.simulate.predict import RUN_AS_WRITTEN
from memplan_cli.runtime.verification.verify import choose_settings, compare_models
from steps_memory import WAYS, held_by_steps

from .alternating import alternate
from .pages import MEASUREMENTS, replace_figures
from .runtime_settings import specs_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.runtime.settings_search.predicted import SettingsChoice

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
OUT = ROOT / "out" / "recompute"
TABLE = MEASUREMENTS / "recompute.md"

RUN = (
    "train_mlp_sgd", "train_mlp_adam", "train_cnn_sgd", "train_cnn_adam",
    "train_resnet18_momentum", "train_bert_small_adam",
)  # fmt: skip
PLAN = ("train_gpt2_small_adam", "train_lstm_unrolled_128x2")
"""Too large to run here: planned only."""

DONATING = ("train_mlp_adam", "train_cnn_adam", "train_resnet18_momentum", "train_bert_small_adam")  # fmt: skip
SHARES = (0.8, 0.6, 0.4)
ALL = {"in.*": "new.*"}

ON_CPU = Check("cpu")

Json = dict[str, Any]


def measured(name: str) -> Json:
    """Return a model's figures, from its file or measured now."""
    file = OUT / f"{name}.json"
    if file.exists():
        found: Json = json.loads(file.read_text())
        return found
    OUT.mkdir(parents=True, exist_ok=True)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = MODELS / f"{name}.onnx"
    if name in RUN:
        model = filled(name, folder)
    row = {"budgets": budgets(name, model, folder), "knee": knee(model)}
    if name in DONATING:
        row["donation"] = donation(model, folder)
    file.write_text(json.dumps(row, indent=1))
    shutil.rmtree(folder)
    return row


def filled(name: str, folder: Path) -> Path:
    """Return a model with seeded weights."""
    import runpy

    target = folder / f"{name}.onnx"
    fill = runpy.run_path(str(MODELS / "fill_weights.py"))["fill"]
    fill(str(MODELS / f"{name}.onnx"), str(target))
    return target


def knee(model: Path) -> Json:
    """Return what is chosen where no budget is given."""
    began = time.process_time()
    report = api.plan(model, Settings(recompute="auto")).report
    seconds = time.process_time() - began
    return {"seconds": seconds, **peaks(report)}


def peaks(report: Any) -> Json:  # noqa: ANN401 - the report, which the api does not name
    """Return what a plan comes to, as shares of the original's live peak."""
    whole = report.original_live_peak
    bound = report.recompute.bound
    return {
        "peak": report.memory.live_peak / whole,
        "bound": None if bound is None else bound / whole,
        "met": report.recompute.met,
        "extra": report.recompute.flops_increase,
        "copies": report.recompute.nodes,
    }


def budgets(name: str, model: Path, folder: Path) -> list[Json]:
    """Plan, write and run a model under each budget."""
    runs = name in RUN
    rows, trials = [], {}
    if runs:
        before = best_as_written(model)
        trials["before"] = (model, to_json(before.settings))
    for share in SHARES:
        asked = Settings(recompute="auto", budget=share)
        out = folder / f"{share}.onnx"
        began = time.process_time()
        done = api.optimize(model, asked, out=out, check=None)
        row: Json = {"share": share, "seconds": time.process_time() - began}
        row |= peaks(done.plan.report)
        if runs and done.model:
            after = best_as_written(out)
            written = WrittenModel(out, spoiled_by_optimization=True)
            check = replace(ON_CPU, reference="unoptimized", depth="outputs")
            verdict = compare_models(model, written, check, Binding()).verdict
            trials[str(share)] = (out, to_json(after.settings))
            row |= {
                "before": first_peaks(before),
                "after": first_peaks(after),
                "bits": verdict.bit_identical,
            }
        rows.append(row)
    if trials:
        times = alternate(trials, specs_of(name), {})
        for row in rows:
            row["ms"] = [times["before"], times.get(str(row["share"]))]
    return rows


def best_as_written(model: Path) -> SettingsChoice:
    """Return the settings for a file as it stands, confirmed by a run."""
    program = offline_program(model, {}, CPU)
    written = WrittenModel(model, program, optimized_offline=True)
    with BaselineRun(model, load_model(model), ON_CPU, Binding(), RUN_AS_WRITTEN) as run:
        baseline = run.result()
        return choose_settings(baseline, read_baseline_graph(baseline), written)


def first_peaks(found: SettingsChoice) -> list[int | None]:
    """Return the first run's peak, predicted and measured, in bytes."""
    observed = found.observed
    return [found.predicted.first_run_peak, observed.first_run_peak if observed else None]


def donation(model: Path, folder: Path) -> Json:
    """Donate what may be donated, take two steps, and hold the process's memory against it."""
    out = folder / "donated.onnx"
    plain = api.plan(model).report
    report = api.optimize(model, Settings(donate=ALL), out=out, check=None).plan.report
    pairs = report.donated.pairs
    steps = donated_steps((model, out), pairs, ON_CPU, Binding())
    best = best_as_written(out)
    held = {way: held_by_steps(out, pairs, way, best.settings) for way in WAYS}
    return {
        "asked": len(pairs) + len(report.donated.refused),
        "pairs": len(pairs),
        "before": plain.memory.total,
        "after": report.memory.total,
        "steps": steps.passed and not steps.differences,
        "not_finite": len(steps.not_finite),
        "held": {way: (found.peak or 0) - (found.before or 0) for way, found in held.items()},
    }


def table() -> Iterator[str]:
    """Yield the lines of the page, for the models that are measured."""
    there = [name for name in (*RUN, *PLAN) if (OUT / f"{name}.json").exists()]
    yield (
        "| model | budget | met | peak | bound | work | copies | bits | runtime before "
        "(predicted, measured) | after (predicted, measured) | ms before | after | seconds |\n"
    )
    yield f"|---|{'---:|' * 12}\n"
    for name in there:
        found = measured(name)
        yield from (budget_line(name, row) for row in found["budgets"])
        yield budget_line(name, {"share": "knee", **found["knee"]})
    yield "\nDonation (`--donate 'in.*=new.*'`):\n\n"
    yield (
        "| model | pairs | donated | total before | after | steps | memory: one buffer | "
        "two buffers | fed |\n"
    )
    yield f"|---|{'---:|' * 8}\n"
    for name in there:
        if "donation" in measured(name):
            yield donation_line(name, measured(name)["donation"])


def budget_line(name: str, row: Json) -> str:
    """Return one row of the first table."""
    before, after = row.get("before", [None, None]), row.get("after", [None, None])
    milliseconds = row.get("ms", [None, None]) if row.get("after") else [None, None]
    cells = (
        name,
        row["share"],
        "yes" if row["met"] else "refused",
        f"{row['peak']:.3f}",
        "" if row["bound"] is None else f"{row['bound']:.3f}",
        f"{row['extra']:.2%}",
        row["copies"],
        {True: "equal", False: "differ", None: ""}[row.get("bits")],
        *(", ".join(map(megabytes, side)) if side[0] else "" for side in (before, after)),
        *("" if ms is None else f"{ms:.1f}" for ms in milliseconds),
        f"{row['seconds']:.1f}",
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def donation_line(name: str, row: Json) -> str:
    """Return one row of the second table."""
    cells = (
        name,
        row["asked"],
        row["pairs"],
        megabytes(row["before"]),
        megabytes(row["after"]),
        "equal" if row["steps"] else "differ",
        *(megabytes(row["held"][way]) for way in ("donated", "swapped", "fed")),
    )
    return f"| {' | '.join(map(str, cells))} |\n"


def megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.2f}"


def main() -> None:
    asked = sys.argv[1:] or [*RUN, *PLAN]
    for name in asked:
        measured(name)
        replace_figures(TABLE, "".join(table()))


if __name__ == "__main__":
    main()
