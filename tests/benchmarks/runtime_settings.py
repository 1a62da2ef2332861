"""Measure what settings, and the offline graph in a better order, win over the defaults.

``python tests/benchmarks/runtime_settings.py [MODEL...]`` writes
``docs/measurements/runtime.md``. Weights are filled into a temporary folder.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from memplan_cli.analysis.aliasing import Aliasing
from memplan_cli.evidence import Peaks, RuntimeSettings
from memplan_cli.ir import Origin
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.write import rewrite
from memplan_cli.runtime.bits import Tolerance
from memplan_cli.runtime.compare import Comparison, compare
from memplan_cli.runtime.executed import executed_graph
from memplan_cli.runtime.inputs import specs_from_json
from memplan_cli.runtime.measure import Trial, measure
from memplan_cli.runtime.offline import RUN_AS_WRITTEN, offline_program, optimise_offline
from memplan_cli.runtime.predict import Executed
from memplan_cli.runtime.probe import load_table
from memplan_cli.runtime.steer import recommend
from memplan_cli.sizes import size_of
from memplan_cli.transforms.order import best_order

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
ONE_THREAD = RuntimeSettings(session={"intra_op_num_threads": 1})
TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
FIGURES = ("first", "held", "held-w", "time")


@dataclass(frozen=True)
class Row:
    name: str
    default: Peaks
    settings: Peaks
    offline: Peaks
    settings_same: str
    offline_same: str


def ratios(better: Peaks, base: Peaks) -> tuple[float, float, float, float]:
    def figure(peaks: Peaks) -> tuple[float, float, float, float]:
        held, weights = peaks.held or 1, peaks.weights or 0
        return (
            peaks.first_run_peak or 1,
            held,
            max(held - weights, 1),
            peaks.milliseconds or 1,
        )

    a, b, c, d = (x / y for x, y in zip(figure(better), figure(base), strict=True))
    return a, b, c, d


def reordered(dump: Path, out: Path) -> None:
    program = offline_program(dump, {})
    sizes = {
        var.id: size
        for var in program.vars.values()
        if var.origin is Origin.OP and (size := size_of(var.shape, var.dtype))
    }
    table = load_table()
    aliasing = Aliasing(frozenset(table.alias), table.in_place)
    best = best_order(program, sizes, aliasing=aliasing, time_limit=20).program
    out.write_bytes(rewrite(load_model(dump), best).SerializeToString())


def row(name: str, model: Path, folder: Path) -> Row:
    inputs = MODELS / "inputs" / f"{name}.json"
    specs = specs_from_json(json.loads(inputs.read_text())) if inputs.exists() else None
    trial = Trial(provider="cpu", specs=specs, runs=3, timing_runs=5)
    how = Comparison(provider="cpu", specs=specs, tolerance=Tolerance())
    default = measure(model, ONE_THREAD, trial)
    best = recommend(model, executed_graph(model, ONE_THREAD, {}), ONE_THREAD, trial)
    same = compare(model, model, replace(how, rewritten_settings=best.settings))
    dump, out = folder / "dump.onnx", folder / "ordered.onnx"
    optimise_offline(model, dump)
    reordered(dump, out)
    base = ONE_THREAD.updated(RUN_AS_WRITTEN)
    executed = Executed(offline_program(out, {}))
    offline = recommend(out, executed, base, trial)
    offline_same = compare(model, out, replace(how, rewritten_settings=offline.settings))
    assert best.observed
    assert offline.observed
    found = Row(name, default, best.observed, offline.observed, say(same), say(offline_same))
    for file in folder.iterdir():
        file.unlink()
    return found


def say(validation: object) -> str:
    return f"{validation.status}{'' if validation.bit_identical else ' (bits differ)'}"  # type: ignore[attr-defined]


def line(found: Row) -> str:
    cells = [f"{value:.2f}" for value in ratios(found.settings, found.default)]
    cells += [found.settings_same]
    cells += [f"{value:.2f}" for value in ratios(found.offline, found.default)]
    return f"| {found.name} | " + " | ".join([*cells, found.offline_same]) + " |"


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def table(rows: list[Row]) -> str:
    head = "| model | " + " | ".join([*FIGURES, "outputs"] * 2) + " |"
    text = [head, "|" + "---|" * 11, *map(line, rows)]
    for label, pick in (("settings", "settings"), ("offline, ordered", "offline")):
        columns = zip(*(ratios(getattr(r, pick), r.default) for r in rows), strict=True)
        means = [mean(list(column)) for column in columns]
        figures = ", ".join(f"{n} {v:.3f}" for n, v in zip(FIGURES, means, strict=True))
        text.append(f"\nGeometric means, {label}: {figures} ({len(rows)} models).")
    return "\n".join(text) + "\n"


def main(names: list[str]) -> None:
    rows: list[Row] = []
    names = names or sorted({p.stem for p in MODELS.glob("*.onnx")} - TOO_LARGE)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as text:
            folder = Path(text)
            model = folder / f"{name}.onnx"
            work = folder / "work"
            work.mkdir()
            fill = [sys.executable, str(MODELS / "fill_weights.py")]
            subprocess.run(
                [*fill, str(MODELS / f"{name}.onnx"), str(model)],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            began = time.perf_counter()
            try:
                rows.append(row(name, model, work))
            except Exception as error:  # noqa: BLE001 - one model's failure is a line
                print(f"| {name} | {str(error)[:200]} |", flush=True)
                continue
            print(line(rows[-1]), f"{time.perf_counter() - began:.0f} s", flush=True)
    print(table(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
