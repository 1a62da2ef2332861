"""What `optimize` costs beside running the two models, as whole processes.

    python -m tests.benchmarks.main_job                    measure all, and write the page
    python -m tests.benchmarks.main_job --only MODEL...    these, beside what was measured
    python -m tests.benchmarks.main_job --rest             those that have no figures
    python -m tests.benchmarks.main_job --tune MODEL...    their savings with --tune, untimed
    python -m tests.benchmarks.main_job --table            the page again

For each shared model that runs in 20 s: one process that creates the original's session and
runs it twice, and the command in its ways, in turn; the median of three rounds, of fewer
where they take long. Weights are seeded. Modules are compiled beforehand, as those of an
installed package are. On a quiet machine all models together take twenty-five minutes; what was
measured stays, so that a call that ended goes on with `--rest`.

Guards the claim of docs/measurements/main_job.md: the time of `optimize` against running the
original twice.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from memplan_cli.api.models.binding import binding_of
from memplan_cli.api.models.model_file import bind_all_dims, read_model
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
"""Their weights, optimizer states or runs are beyond two cores and 20 seconds; the page says
how large they are."""

LONG = {"lstm_unrolled_512x2", "train_lstm_unrolled_128x2"}
"""Many thousand nodes, whose planning takes longest: they come last."""

OUT = ROOT / "out" / "main_job"
PAGE = ROOT / "docs" / "measurements" / "main_job.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

PUBLISHED = ROOT / "docs" / "measurements" / "runtime.md"
"""The savings with settings that were searched by measuring each."""

ROUNDS = 3
SLOWEST = 20.0
"""Seconds that the unit may take."""

ENOUGH = 12.0
"""Seconds of one model after which no further round begins."""

FAR = 0.01
"""By which a model's saving differs from the page's so that it is named."""

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
import json
import sys
from memplan_cli.runtime.workers import worker
started = []
class Counted(worker.Job):
    def __init__(self, arguments, *words, **options):
        super().__init__(arguments, *words, **options)
        started.append(arguments[-1].rpartition(":")[2])
worker.Job = Counted
from memplan_cli.__main__ import main
try:
    main()
finally:
    with open(__file__ + ".started", "w") as file:
        json.dump(started, file)
"""

COUNTED_WAYS = ("optimize", "--target cpu")
"""Those whose processes and savings are kept."""

Json = dict[str, Any]


def sources() -> dict[str, Path]:
    """Return the shared models by name, the long ones last."""
    found = {path.stem: path for path in sorted(MODELS.glob("*.onnx"))}
    found |= {path.stem: path for path in sorted(MODELS.glob("messy/*.onnx"))}
    names = sorted(found.keys() - TOO_LARGE, key=lambda name: (name in LONG, name))
    return {name: found[name] for name in names}


def filled(name: str, source: Path) -> Path:
    model = OUT / name / f"{name}.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        fill = [sys.executable, str(MODELS / "fill_weights.py")]
        words = [*fill, str(source), str(model)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return model


def seconds(words: list[str]) -> float:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["?"])[-1][:200])
    return time.perf_counter() - began


def assumed(model: Path) -> Mapping[str, int]:
    """Return the numbers of free dims at which `optimize` runs a model."""
    return binding_of(bind_all_dims(read_model(model), Settings())).dims


def command(model: Path, way: str) -> list[str]:
    words = ["optimize", str(model), "-o", str(model.with_name("net.memplan.onnx")), "-q"]
    words += WAYS[way]
    if way not in COUNTED_WAYS:
        return [sys.executable, "-m", "memplan_cli", *words]
    script = model.with_name("counted.py")
    script.write_text(COUNTED)
    return [sys.executable, str(script), *words]


def measured(name: str, source: Path) -> Json:
    model = filled(name, source)
    feed, dims = model.with_name("feed.npz"), assumed(model)
    drawn: Json = {**draw_all(feed_specs(load_model(model), dims))}
    np.savez(feed, **drawn)
    unit = [sys.executable, "-c", UNIT, str(model), str(feed)]
    first = seconds(unit)
    if first > SLOWEST:
        raise RuntimeError(f"the unit takes {first:.0f} s")
    row: Json = {"name": name, "dims": dict(dims)}
    times: dict[str, list[float]] = {"unit": []}
    began = time.perf_counter()
    for number in range(ROUNDS):
        if number and time.perf_counter() - began > ENOUGH:
            break
        times["unit"].append(seconds(unit))
        for way in WAYS:
            times.setdefault(way, []).append(seconds(command(model, way)))
            if way in COUNTED_WAYS:
                row[way] = saved(model)
    if file_of(name).exists():
        row["tuned"] = json.loads(file_of(name).read_text()).get("tuned", {})
    row["rounds"] = len(times["unit"])
    row["times"] = {way: median(each) for way, each in times.items()}
    return row


def file_of(name: str) -> Path:
    """Return where a model's figures are."""
    return OUT / f"{name}.json"


def tuned(name: str, source: Path) -> Json:
    """Return a model's figures, with what it saves where settings are searched by measuring."""
    model, row = filled(name, source), {"name": name}
    if file_of(name).exists():
        row = json.loads(file_of(name).read_text())
    found: Json = {}
    for way in COUNTED_WAYS:
        seconds([*command(model, way), "--tune"])
        found[way] = saved(model)
    return {**row, "dims": dict(assumed(model)), "tuned": found}


def saved(model: Path) -> Json:
    """Return how many processes of the runtime a command started, and what it saves."""
    plan = json.loads(model.with_name("net.memplan.json").read_text())
    runtime = plan["report"]["runtime"]
    seen = runtime["observed"]
    before, after = seen["original"], seen["optimized"]
    predicted = runtime["predicted"]["optimized"]["first_run_peak"]
    purposes = json.loads(model.with_name("counted.py.started").read_text())
    return {
        "processes": len(purposes),
        "purposes": purposes,
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


def published() -> dict[tuple[str, str], dict[str, float]]:
    """Return what `runtime.md` has, by way and column, of each model."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    table = re.findall(r"(?:^\|.*\n)+", PUBLISHED.read_text(), re.MULTILINE)[0]
    columns = {
        1: ("optimize", "first run"),
        6: ("--target cpu", "first run"),
        7: ("--target cpu", "held"),
        8: ("--target cpu", "held-w"),
    }
    for line in table.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for place, key in columns.items():
            with suppress(ValueError):
                found.setdefault(key, {})[cells[0]] = float(cells[place])
    return found


def compared(rows: list[Json]) -> list[str]:
    """Return the geometric means beside those published, over the models that both have."""
    lines = [
        "| way | figure | models | here | `runtime.md` | here / there | farthest |",
        "|" + "---|" * 7,
    ]
    known = published()
    fixed = [row for row in rows if not row["dims"]]
    sides = ([(row["name"], row) for row in fixed], "")
    tuned = ([(row["name"], row.get("tuned", {})) for row in fixed], " --tune")
    for found, more in (sides, tuned):
        for (way, figure), there in known.items():
            both = [
                (name, side[way][figure], there[name])
                for name, side in found
                if name in there and side.get(way, {}).get(figure)
            ]
            if both:
                lines.append(beside(f"{way}{more}", figure, both))
    return lines


def beside(way: str, figure: str, both: list[tuple[str, float, float]]) -> str:
    """Return a line of the table: means, and the models that are farthest apart."""
    here = geometric([each[1] for each in both]) or 1.0
    there = geometric([each[2] for each in both]) or 1.0
    apart = sorted(both, key=lambda each: -abs(math.log(each[1] / each[2])))[:3]
    far = ", ".join(
        f"{name} {one / other:.2f}" for name, one, other in apart if abs(one / other - 1) > FAR
    )
    cells = [way, figure, str(len(both)), text(here), text(there), f"{here / there:.4f}", far]
    return f"| {' | '.join(cells)} |"


GOALS = {"optimize": (5, 3), "--target cpu": (8, 4)}
"""The geometric mean of units, and the processes, that each way should need at most."""

MOST_UNITS, MOST_SECONDS = 8, 3
"""No `optimize` is to take more than both."""


def judged(rows: list[Json]) -> list[str]:
    """Return lines on which goals are missed, and by which models."""
    lines = []
    for way, (most, processes) in GOALS.items():
        mean = geometric([row["times"][way] / row["times"]["unit"] for row in rows])
        many = [
            f"{row['name']} {row[way]['processes']}"
            for row in rows
            if row[way]["processes"] > processes
        ]
        lines.append(
            f"- `{way}`: a geometric mean of {text(mean)} units over {len(rows)} models, goal {most};"
            f" more than {processes} processes: {', '.join(many) or 'none'}"
        )
    slow = [
        f"{row['name']} {row['times']['optimize'] / row['times']['unit']:.3g}"
        for row in rows
        if row["times"]["optimize"] > max(MOST_SECONDS, MOST_UNITS * row["times"]["unit"])
    ]
    above = ", ".join(slow) or "none"
    lines.append(f"- `optimize` above both {MOST_UNITS} units and {MOST_SECONDS} s: {above}")
    return lines


def unmeasured(rows: list[Json]) -> list[str]:
    """Say of each model that has no times why it has none."""
    found = [f"- {row['name']}: {row['error']}" for row in rows if "error" in row]
    timed = {row["name"] for row in rows if "times" in row or "error" in row}
    found += [f"- {name}: not measured yet" for name in sources() if name not in timed]
    for name in sorted(TOO_LARGE):
        graph = load_model(MODELS / f"{name}.onnx").graph
        size = sum(sizes_of(tensor) for tensor in graph.initializer)
        states = sum(
            math.prod(d.dim_value for d in i.type.tensor_type.shape.dim) for i in graph.input
        )
        found.append(
            f"- {name}: left out, {size / 1e9:.1f} GB of weights, {4 * states / 1e9:.1f} GB of inputs"
        )
    return found


def sizes_of(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor, wherever they lie."""
    element = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return int(math.prod(tensor.dims) * element.itemsize)


def write_page() -> None:
    rows = [json.loads(file.read_text()) for file in sorted(OUT.glob("*.json"))]
    good = [row for row in rows if "times" in row and "dims" in row]
    lines = [*table(good), "", *judged(good)] if good else []
    lines += ["", *compared([row for row in rows if "dims" in row]), "", *unmeasured(rows)]
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n" + "\n".join(lines).rstrip() + f"\n{END}{tail}")


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=sources(), metavar="MODEL")
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--tune", nargs="+", choices=sources(), metavar="MODEL")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args(words)
    OUT.mkdir(parents=True, exist_ok=True)
    compileall.compile_dir(ROOT / "memplan_cli", quiet=1)
    for name, source in sources().items():
        file = file_of(name)
        if asked.table or name not in (asked.only or asked.tune or sources()):
            continue
        if asked.rest and file.exists() and "times" in json.loads(file.read_text()):
            continue
        try:
            row = (tuned if asked.tune else measured)(name, source)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            row = {"name": name, "error": str(error)}
        file.write_text(json.dumps(row, indent=1) + "\n")
        print(json.dumps(row), flush=True)
    write_page()


if __name__ == "__main__":
    main(sys.argv[1:])
