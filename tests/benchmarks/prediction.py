"""Hold what is predicted of ONNX Runtime against what it was measured to take.

    python -m tests.benchmarks.prediction [--out FILE] [--functions N] [MODEL...]

Each model with seeded weights, on the CPU provider with one thread, in both execution
orders, with memory pattern and reuse in all four combinations, optimization off, and at the
highest level in its DEFAULT order. Without names: the nine ``light_*`` of the onnx package and every model of
the shared collection that runs in time. ``--functions N`` instead: as many random models of
functions that call each other, in float and in float16, which is run between Casts.

Guards the claim of docs/measurements/prediction.md: predicted peaks equal ONNX Runtime's own
counters.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from collection_inputs import specs_from_json
from function_graphs import drawn_functions
from memplan_cli.core.bindings import Binding
from memplan_cli.core.results.observations import Peaks, RuntimeSettings
from memplan_cli.errors import MemplanError
from memplan_cli.runtime.graph.dumps import observed_graph, write_dump
from memplan_cli.runtime.run.run_model import record_run
from memplan_cli.runtime.simulate.predict import (
    ExecutedGraph,
    needs_observation,
    predict_peaks,
)
from memplan_cli.runtime.workers.spec import RunConditions, SessionSpec
from shared_models import LIGHT, SHARED, with_random_weights

from .in_process import keep_jobs_here

if TYPE_CHECKING:
    from collections.abc import Sequence

TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
"""Gigabytes of weights or minutes a run: not on two cores in 20 s."""

Way = tuple[str, str, bool, bool]
"""Level, execution order, memory pattern, reuse."""

LEVELS = {"off": "ORT_DISABLE_ALL", "all": "ORT_ENABLE_ALL"}
WAYS = [
    *itertools.product(["off"], ["DEFAULT", "PRIORITY_BASED"], [True, False], [True, False]),
    *itertools.product(["all"], ["DEFAULT"], [True, False], [True, False]),
]
HEAD = """| model | level | order | pattern | reuse | first run predicted | measured | \
steady predicted | measured | exact | for these feeds |
|---|---|---|---|---|---|---|---|---|---|---|"""


@dataclass(frozen=True)
class Row:
    model: str
    way: Way
    predicted: Peaks
    measured: Peaks
    of_feeds: bool

    @property
    def exact(self) -> bool:
        return None is not self.predicted.first_run_peak and figures(
            self.predicted
        ) == figures(self.measured)

    def line(self) -> str:
        level, order, pattern, reuse = self.way
        cells = [self.model, level, order, word(pattern), word(reuse)]
        for mine, theirs in zip(figures(self.predicted), figures(self.measured), strict=True):
            cells += [str(mine), str(theirs)]
        return "| " + " | ".join([*cells, word(self.exact), word(self.of_feeds)]) + " |"


def word(value: object) -> str:
    return "yes" if value else "no"


def figures(peaks: Peaks) -> tuple[int | None, int | None]:
    return peaks.first_run_peak, peaks.steady_peak


def settings(way: Way) -> RuntimeSettings:
    level, order, pattern, reuse = way
    return RuntimeSettings(
        session={
            "graph_optimization_level": LEVELS[level],
            "execution_order": order,
            "enable_mem_pattern": pattern,
            "enable_mem_reuse": reuse,
            "intra_op_num_threads": 1,
        }
    )


def fill(name: str, target: Path) -> None:
    if (LIGHT / f"{name}.onnx").exists():
        with_random_weights(LIGHT / f"{name}.onnx", target)
        return
    command = [sys.executable, str(SHARED / "fill_weights.py"), str(SHARED / f"{name}.onnx")]
    subprocess.run([*command, str(target)], check=True, stdout=subprocess.DEVNULL)


def trial_of(name: str, model: Path, timeout: float) -> RunConditions:
    """Say how a model is run: inputs as the collection draws them, dims bound to theirs."""
    plain = RunConditions(timeout=timeout)
    inputs = SHARED / "inputs" / f"{name}.json"
    if not inputs.exists():
        return plain
    specs = specs_from_json(json.loads(inputs.read_text()))
    shapes = {spec.name: spec.shape for spec in specs}
    dims = {
        dim.dim_param: number
        for value in onnx.load(str(model), load_external_data=False).graph.input
        if value.name in shapes
        for dim, number in zip(
            value.type.tensor_type.shape.dim, shapes[value.name], strict=True
        )
        if dim.dim_param.isidentifier()
    }
    return replace(plain, specs=specs, binding=Binding(dims))


def rows_of(name: str, model: Path, trial: RunConditions, ways: Sequence[Way]) -> list[Row]:
    found = []
    graphs: dict[str, ExecutedGraph] = {}
    for way in ways:
        chosen = settings(way)
        graph = graphs.get(way[0])
        if graph is None:
            graph = graphs[way[0]] = observed_graph(model, chosen, trial)
        measured = record_run(model, chosen, trial, "arena").peaks
        of_feeds = needs_observation(graph)
        found.append(Row(name, way, predict_peaks(graph, chosen), measured, of_feeds))
    return found


def sessions(model: Path, trial: RunConditions, count: int) -> str:
    """Say whether sessions of one file at the highest level run it alike, and its dump.

    The order of the nodes is compared by name with that of the first session.
    """
    chosen = settings(WAYS[-1])
    lines = []
    first: list[str] = []
    for number in range(count):
        record = record_run(model, chosen, trial, "arena", "kernels")
        (kernels,) = record.kernels or ((),)
        names = [name for name, *_ in kernels]
        first = first or names
        same = sum(a == b for a, b in zip(first, names, strict=False))
        lines.append(
            f"| session {number + 1} | {figures(record.peaks)} "
            f"| {same} of {len(names)} nodes in the place they had in session 1 |"
        )
    dump = model.with_name(f"{model.stem}.dump.onnx")
    write_dump(SessionSpec(model, settings=chosen), dump)
    plain = settings(WAYS[3])
    predicted = predict_peaks(observed_graph(dump, plain, trial), plain)
    lines.append(f"| its dump, predicted | {figures(predicted)} | |")
    loaded = [figures(record_run(dump, plain, trial, "arena").peaks) for _ in range(2)]
    lines += [f"| its dump, loaded | {found} | |" for found in loaded]
    return "\n".join(lines) + "\n"


def functions(count: int) -> str:
    """Say in how many ways random models of nested functions are exact."""
    plain = RunConditions()
    found: list[Row] = []
    for seed, dtype in itertools.product(range(count), ("float", "float16")):
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / "functions.onnx"
            onnx.save(drawn_functions(seed, dtype, (40, 100)), str(model))
            found += rows_of(f"{seed} {dtype}", model, plain, WAYS)
    missed = [row.line() for row in found if not row.exact]
    exact = len(found) - len(missed)
    return "\n".join(
        [*missed, f"{exact} of {len(found)} rows of {2 * count} models are exact."]
    )


def table(lines: list[str]) -> str:
    """Draw one row a model from the rows of all ways: what was measured, and what missed.

    Without a pattern later runs are like the first: those figures are compared, not shown.
    """
    models: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for line in lines:
        name, *cells = (cell.strip() for cell in line.strip("|\n ").split("|"))
        models.setdefault(name, {})[tuple(cells[:4])] = cells[4:]
    shown = [
        (f"{label}, {order[:8].rstrip('_')}, {'reuse' if reuse == 'yes' else 'none'}",
         ("off", order, pattern, reuse), at)
        for at, pattern, label in ((1, "no", "first"), (3, "yes", "steady"))
        for order in ("DEFAULT", "PRIORITY_BASED")
        for reuse in ("yes", "no")
    ]  # fmt: skip
    head = " | ".join(["model", "exact", *(column for column, _, _ in shown), "feeds"])
    text = [f"| {head} |", "|" + "---|" * (len(shown) + 3)]
    for name, ways in models.items():
        exact = sum(cells[4] == "yes" for cells in ways.values())
        figures = [ways[way][at] if way in ways else "" for _, way, at in shown]
        fed = "these" if any(cells[5] == "yes" for cells in ways.values()) else "any"
        text.append("| " + " | ".join([name, f"{exact} of {len(ways)}", *figures, fed]) + " |")
    every = [cells[4] for ways in models.values() for cells in ways.values()]
    missed = [
        f"{name} {way}"
        for name, ways in models.items()
        for way in ways
        if ways[way][4] != "yes"
    ]
    text.append(
        f"\n{every.count('yes')} of {len(every)} rows of {len(models)} models are exact."
    )
    return "\n".join([*text, *(f"Not exact: {each}." for each in missed)]) + "\n"


def every_name() -> list[str]:
    names = sorted(path.stem for path in LIGHT.glob("*.onnx"))
    shared = {path.stem for path in SHARED.glob("*.onnx")} - TOO_LARGE
    return names + sorted(shared)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="add the rows to this file, one after another"
    )
    parser.add_argument("--timeout", type=float, default=900.0)
    parser.add_argument("--table", type=Path, help="only draw the table of rows in this file")
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--sessions", type=int, help="compare sessions at the highest level")
    parser.add_argument("--functions", type=int, help="random models of nested functions")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(table(asked.table.read_text(encoding="utf-8").splitlines()))
        return
    # Each session has an arena of its own: a dozen of them need no process each.
    keep_jobs_here()
    if asked.functions:
        print(functions(asked.functions))
        return
    rows: list[Row] = []
    ways = [way for way in WAYS if way[0] in asked.levels]
    if not asked.sessions:
        print(HEAD, flush=True)
    for name in asked.models or every_name():
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / f"{name}.onnx"
            fill(name, model)
            before = sum(os.times()[:4])
            trial = trial_of(name, model, asked.timeout)
            if asked.sessions:
                print(f"{name}\n{sessions(model, trial, asked.sessions)}", flush=True)
                continue
            try:
                found = rows_of(name, model, trial, ways)
            except MemplanError as error:
                print(f"{name}: {str(error)[:300]}", file=sys.stderr, flush=True)
                continue
        rows += found
        text = "\n".join(row.line() for row in found)
        print(text, flush=True)
        print(f"{name}: {sum(os.times()[:4]) - before:.0f} s CPU", file=sys.stderr, flush=True)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
    if rows:
        print(table([row.line() for row in rows]))


if __name__ == "__main__":
    main(sys.argv[1:])
