"""What `optimize` costs beside running the two models, as whole processes.

    python -m tests.benchmarks.main_job [MODEL...]    measure, and write the page
    python -m tests.benchmarks.main_job table         the page again from what was measured

For each shared model that runs in 20 s: one process that creates the original's session and
runs it twice, and the command in its ways, in turn, the median of three rounds. Weights are
seeded. The number of the runtime's processes is counted in a run of its own.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.files.binding import binding_of
from memplan_cli.workflows.files.model_file import bind_whole, read_model

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
"""Their weights, optimiser states or runs are beyond two cores and 20 seconds."""

OUT = ROOT / "out" / "main_job"
PAGE = ROOT / "docs" / "measurements" / "main_job.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

ROUNDS = 3
SLOWEST = 20.0
"""Seconds that the unit may take."""

WAYS: dict[str, tuple[str, ...]] = {
    "optimize": (),
    "--validate outputs": ("--validate", "outputs"),
    "--no-validate": ("--no-validate",),
    "--target cpu": ("--target", "cpu"),
}

UNIT = """
import sys
import numpy
import onnxruntime
feed = dict(numpy.load(sys.argv[2], allow_pickle=False))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options)
for _ in range(2):
    session.run(None, feed)
"""

COUNTED = """
import sys
from memplan_cli.runtime.workers import worker
real, started = worker.start_script, []
def counted(arguments, *words, **more):
    started.append(arguments[-1])
    return real(arguments, *words, **more)
worker.start_script = counted
from memplan_cli.__main__ import main
try:
    main()
finally:
    print(len(started), *started, file=open(__file__ + ".started", "w"))
"""

Json = dict[str, Any]


def filled(name: str) -> Path:
    model = OUT / name / f"{name}.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        fill = [sys.executable, str(MODELS / "fill_weights.py")]
        source = str(MODELS / f"{name}.onnx")
        subprocess.run([*fill, source, str(model)], check=True, stdout=subprocess.DEVNULL)
    return model


def seconds(words: list[str]) -> float:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["?"])[-1][:200])
    return time.perf_counter() - began


def assumed(model: Path) -> Mapping[str, int]:
    """Return the numbers of free dims at which `optimize` runs a model."""
    return binding_of(bind_whole(read_model(model), Settings())).dims


def command(model: Path, *options: str) -> list[str]:
    words = ["optimize", str(model), "-o", str(model.with_name("net.memplan.onnx")), "-q"]
    return [sys.executable, "-m", "memplan_cli", *words, *options]


def measured(name: str) -> Json:
    model = filled(name)
    feed = model.with_name("feed.npz")
    drawn: Json = {**draw_all(feed_specs(load_model(model), assumed(model)))}
    np.savez(feed, **drawn)
    unit = [sys.executable, "-c", UNIT, str(model), str(feed)]
    first = seconds(unit)
    if first > SLOWEST:
        raise RuntimeError(f"the unit takes {first:.0f} s")
    times: dict[str, list[float]] = {"unit": []}
    for _ in range(ROUNDS):
        times["unit"].append(seconds(unit))
        for way, options in WAYS.items():
            times.setdefault(way, []).append(seconds(command(model, *options)))
    row: Json = {"name": name, "times": {way: median(each) for way, each in times.items()}}
    for way in ("optimize", "--target cpu"):
        row[way] = counted(model, WAYS[way])
    return row


def counted(model: Path, options: tuple[str, ...]) -> Json:
    """Return how many processes of the runtime a command starts, and what it saves."""
    script = model.with_name("counted.py")
    script.write_text(COUNTED)
    words = [sys.executable, str(script), *command(model, *options)[3:]]
    seconds(words)
    plan = json.loads(model.with_name("net.memplan.json").read_text())
    runtime = plan["report"]["runtime"]
    seen = runtime["observed"]
    before, after = seen["original"], seen["optimized"]
    predicted = runtime["predicted"]["optimized"]["first_run_peak"]
    started = Path(f"{script}.started").read_text().split()
    return {
        "processes": int(started[0]),
        "first run": ratio(after["first_run_peak"], before["first_run_peak"]),
        "held": ratio(after["held"], before["held"]),
        "held-w": ratio(*(each["held"] - each["weights"] for each in (after, before))),
        "exact": predicted == after["first_run_peak"],
    }


def ratio(after: float | None, before: float | None) -> float | None:
    return after / before if after and before else None


def geometric(values: list[float | None]) -> float | None:
    known = [math.log(value) for value in values if value]
    return math.exp(sum(known) / len(known)) if known else None


def text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def table(rows: list[Json]) -> list[str]:
    heads = [
        "model",
        "unit, s",
        *(f"{way}, s" for way in WAYS),
        *(f"/ unit: {w}" for w in WAYS),
    ]
    heads += ["processes", "target's", "first run", "held", "held-w", "target's held"]
    found = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    columns: list[list[float | None]] = []
    for row in rows:
        times, one, other = row["times"], row["optimize"], row["--target cpu"]
        ratios = [times[way] / times["unit"] for way in WAYS]
        sides = [one["first run"], one["held"], one["held-w"], other["held"]]
        columns.append([*ratios, *sides])
        cells = [row["name"], text(times["unit"]), *(text(times[way]) for way in WAYS)]
        cells += [*(text(each) for each in ratios), str(one["processes"])]
        cells += [str(other["processes"]), *(text(each) for each in sides)]
        found.append(f"| {' | '.join(cells)} |")
    means = [text(geometric(list(column))) for column in zip(*columns, strict=True)]
    blank = [""] * (1 + len(WAYS))
    cells = ["**geometric mean**", *blank, *means[: len(WAYS)], "", "", *means[len(WAYS) :]]
    return [*found, f"| {' | '.join(cells)} |"]


def write_page() -> None:
    rows = [json.loads(file.read_text()) for file in sorted(OUT.glob("*.json"))]
    good = [row for row in rows if "times" in row]
    lines = table(good) if good else []
    lines += ["", *(f"- {row['name']}: {row['error']}" for row in rows if "error" in row)]
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n" + "\n".join(lines).rstrip() + f"\n{END}{tail}")


def main(names: list[str]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    if names != ["table"]:
        every = sorted(
            path.stem for path in MODELS.glob("*.onnx") if path.stem not in TOO_LARGE
        )
        for name in names or every:
            try:
                row = measured(name)
            except (RuntimeError, subprocess.CalledProcessError) as error:
                row = {"name": name, "error": str(error)}
            (OUT / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
            print(json.dumps(row), flush=True)
    write_page()


if __name__ == "__main__":
    main(sys.argv[1:])
