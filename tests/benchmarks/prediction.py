"""Hold what is predicted of ONNX Runtime against what it was measured to take.

    python -m tests.benchmarks.prediction [--out FILE] [MODEL...]

Each model with seeded weights, on the CPU provider with one thread, in both execution
orders, with memory pattern and reuse in all four combinations, optimisation off, and at the
highest level in its DEFAULT order. Without names: the nine ``light_*`` of the onnx package and every model of
the shared collection that runs in time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test
import onnx.numpy_helper

from memplan_cli.errors import MemplanError
from memplan_cli.evidence import Peaks, RuntimeSettings
from memplan_cli.runtime.executed import executed_run
from memplan_cli.runtime.inputs import specs_from_json
from memplan_cli.runtime.measure import Trial, measure
from memplan_cli.runtime.predict import Executed, needs_run, predict

from .in_process import keep_jobs_here

SHARED = Path(__file__).parents[3] / "shared" / "models"
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"

TOO_LARGE = {"llama_1b_dyn", "sd15_unet", "train_gpt2_small_adam"}
"""Gigabytes of weights or minutes a run: not on two cores in 20 s."""

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
    way: tuple[str, str, bool, bool]
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


def settings(way: tuple[str, str, bool, bool]) -> RuntimeSettings:
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


def with_random_weights(source: Path, target: Path) -> None:
    """Put seeded data where a ``light_*`` file makes weights with ConstantOfShape."""
    model = onnx.load(str(source))
    shapes = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    generator = np.random.default_rng(0)
    nodes = list(model.graph.node)
    variances = {node.input[4] for node in nodes if node.op_type == "BatchNormalization"}
    del model.graph.node[:]
    for node in nodes:
        if node.op_type != "ConstantOfShape":
            model.graph.node.append(node)
            continue
        shape = tuple(int(dim) for dim in shapes[node.input[0]])
        drawn = generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        data = np.abs(drawn) + np.float32(0.5) if node.output[0] in variances else drawn
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, node.output[0]))
    model.ir_version = 8
    onnx.save(model, str(target))


def fill(name: str, target: Path) -> None:
    if (LIGHT / f"{name}.onnx").exists():
        with_random_weights(LIGHT / f"{name}.onnx", target)
        return
    command = [sys.executable, str(SHARED / "fill_weights.py"), str(SHARED / f"{name}.onnx")]
    subprocess.run([*command, str(target)], check=True, stdout=subprocess.DEVNULL)


def trial_of(name: str, model: Path, timeout: float) -> Trial:
    """Say how a model is run: inputs as the collection draws them, dims bound to theirs."""
    plain = Trial(provider="cpu", runs=2, timing_runs=0, timeout=timeout)
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
    return replace(plain, specs=specs, dims=dims)


def rows_of(name: str, model: Path, trial: Trial) -> list[Row]:
    found = []
    graphs: dict[str, Executed] = {}
    for way in WAYS:
        chosen = settings(way)
        graph = graphs.get(way[0])
        if graph is None:
            graph = graphs[way[0]] = executed_run(model, chosen, trial)
        measured = measure(model, chosen, trial)
        of_feeds = needs_run(graph)
        found.append(Row(name, way, predict(graph, chosen), measured, of_feeds))
    return found


def summary(rows: list[Row]) -> str:
    exact = sum(row.exact for row in rows)
    counts = Counter(row.model for row in rows if not row.exact)
    text = (
        f"{exact} of {len(rows)} rows of {len({row.model for row in rows})} models are exact."
    )
    missed = ", ".join(f"{model} ({count})" for model, count in sorted(counts.items()))
    return f"{text} Not exact: {missed or 'none'}.\n"


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
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    # Each session has an arena of its own: a dozen of them need no process each.
    keep_jobs_here()
    rows: list[Row] = []
    print(HEAD, flush=True)
    for name in asked.models or every_name():
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / f"{name}.onnx"
            fill(name, model)
            before = sum(os.times()[:4])
            try:
                found = rows_of(name, model, trial_of(name, model, asked.timeout))
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
    print(summary(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
