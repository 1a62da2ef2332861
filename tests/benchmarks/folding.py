"""Constant expressions folded: the peak before and after, the files, what a process takes.

    python -m tests.benchmarks.folding [MODEL...]

Weights are seeded and lie in a file beside the model. Each figure of a process is of a fresh
one with one thread, beyond the same process with the runtime imported and nothing loaded;
the median of three. The table is written to docs/measurements/folding.md.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import onnx

from memplan_cli import Settings, workflows

from .models import SHARED, bindings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.report import Report

MODELS = ("gpt2_small", "t5_small_decoder", "swin_tiny", "llama_1b_dyn")
TABLE = Path(__file__).parents[2] / "docs" / "measurements" / "folding.md"
MB = 1e6
TIMES = 3

WORDS = """# Constant expressions folded

`python -m tests.benchmarks.folding`; onnxruntime {ort}, onnx {onnx}, {machine}. MB are a million
bytes.

## The plan and the files

"peak" is `live_peak`, "foldable" the part of it that hangs on initializers alone. "added" are the
new weights, in a file of their own; "dropped" is what nobody reads any more and stays in the
original's data file, to which the output refers. "bits": all outputs of both models in three runs,
under the runtime's default optimisation and without it. Without it they may differ although the
values do not: a kernel packs a weight and does not pack what a node makes, and adds in another order.
"seconds" are those of `optimize --fold-constants --no-validate`.

| model | peak before | foldable | peak after | total before | after | added | dropped | bits, default | bits, off | seconds |
|---|---:|---:|---:|---:|---:|---:|---:|---|---|---:|
{plans}

## A process that runs the model

"load" is the highest resident size when the session stands, "run" the highest with three runs,
"private" the anonymous memory after them, "file" what is mapped from files and shared; seconds
to make the session. "default" is the runtime's optimisation as it comes, which folds constants
itself; "off" runs the file as it is.

| model | optimisation | file | load | run | private | file | seconds |
|---|---|---|---:|---:|---:|---:|---:|
{runs}

What falls short: under its defaults ONNX Runtime folds the same expressions when it loads the
model, so there a file with the value saves no memory, only that work at load. Without its
optimisation the value is made anew in each run, and folding takes it from the highest size. A
weight that is read elsewhere too (a tied embedding) lies on disk twice.

## Weights that are dequantised

{quantised}
"""

QUANTISED = """A model of three `MatMul` and a `Gather` (1.30 MB of int8 weights behind
`DequantizeLinear`), and what onnxruntime 1.31.1 makes of it, by the initializers of the graph that
it runs:

| `session.disable_quant_qdq` | optimisation | weights | nodes that dequantise them |
|---|---|---:|---:|
{rows}

Kept by default, dequantised in each run; with the option set, folded into float32. The report of
such a model says so in its warnings."""


def main(names: list[str]) -> None:
    import onnxruntime

    plans, runs = [], []
    for name in names or MODELS:
        with tempfile.TemporaryDirectory(prefix="folding-") as folder:
            plan, rows = of_model(name, Path(folder))
        plans.append(plan)
        runs += rows
        print(plan, *rows, sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="folding-") as folder:
        quantised = QUANTISED.format(rows="\n".join(dequantised(Path(folder))))
    text = WORDS.format(
        ort=onnxruntime.__version__,
        onnx=onnx.__version__,
        machine=f"{platform.machine()}, CPU",
        plans="\n".join(plans),
        runs="\n".join(runs),
        quantised=quantised,
    )
    TABLE.write_text(text, encoding="utf-8")


def of_model(name: str, folder: Path) -> tuple[str, list[str]]:
    source, model = SHARED / f"{name}.onnx", folder / f"{name}.onnx"
    fill = [sys.executable, str(SHARED / "fill_weights.py"), str(source), str(model)]
    subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)
    pairs = (pair.partition("=") for pair in bindings(source))
    dims = {key: int(value) for key, _, value in pairs}
    before = workflows.plan(model, Settings(dims=dims)).report
    start = time.perf_counter()
    done = workflows.optimize(model, Settings(dims=dims, fold_constants=True), check=None)
    seconds = time.perf_counter() - start
    assert done.model is not None
    rows: list[str] = []
    digests: dict[str, list[str]] = {}
    for optimisation in ("default", "off"):
        for what, path in (("original", model), ("folded", done.model)):
            seen = [measured(path, dims, optimisation) for _ in range(TIMES)]
            figures = {key: median(each[key] for each in seen) for key in FIGURES}
            digests.setdefault(optimisation, []).extend(each["digest"] for each in seen)
            cells = " | ".join(f"{figures[key] / MB:.1f}" for key in FIGURES[:-1])
            rows.append(
                f"| {name} | {optimisation} | {what} | {cells} | {figures['seconds']:.2f} |"
            )
    equal = " | ".join("equal" if len(set(of)) == 1 else "other" for of in digests.values())
    return row(name, before, done.plan.report, f"{equal} | {seconds:.1f}"), rows


def row(name: str, before: Report, after: Report, rest: str) -> str:
    one, other, facts = before.memory, after.memory, after.folded
    sizes = (
        one.live_peak, one.foldable, other.live_peak, one.total, other.total,
        facts.added, facts.dropped,
    )  # fmt: skip
    return f"| {name} | {' | '.join(f'{(size or 0) / MB:.2f}' for size in sizes)} | {rest} |"


FIGURES = ("load", "run", "private", "file", "seconds")


def measured(path: Path, dims: Mapping[str, int], optimisation: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "tests.benchmarks.folding", "--child", str(path)]
    words = [*line, json.dumps(dict(dims)), optimisation]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def child(path: str, dims: Mapping[str, int], optimisation: str) -> None:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimisation == "off":
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    nothing = _status()
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    seconds, load = time.perf_counter() - start, _status()
    kinds = {"tensor(int64)": np.int64, "tensor(float)": np.float32, "tensor(bool)": np.bool_}
    feeds: dict[str, Any] = {
        value.name: np.ones([dims.get(dim, dim) for dim in value.shape], kinds[value.type])
        for value in session.get_inputs()
    }
    digest = sha256()
    for _ in range(3):
        for made in session.run(None, feeds):
            digest.update(made.tobytes())
    after = _status()
    found = {
        "load": load["VmHWM"] - nothing["VmHWM"],
        "run": after["VmHWM"] - nothing["VmHWM"],
        "private": after["RssAnon"] - nothing["RssAnon"],
        "file": after["RssFile"] - nothing["RssFile"],
        "seconds": seconds,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(found))


def _status() -> dict[str, int]:
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def dequantised(folder: Path) -> list[str]:
    """Return a row for each way of making a session of a model of int8 weights."""
    import numpy as np
    import onnxruntime
    from onnx import helper, numpy_helper

    path, width = folder / "q.onnx", 512
    rng = np.random.default_rng(0)
    shapes = {"emb": (1000, width), **{f"w{at}": (width, width) for at in range(3)}}
    nodes, weights = [], [numpy_helper.from_array(np.float32(0.01), "s")]
    for name, shape in shapes.items():
        data = rng.integers(-127, 127, shape, np.int8)
        weights.append(numpy_helper.from_array(data, f"{name}_q"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", "s"], [name]))
    nodes.append(helper.make_node("Gather", ["emb", "ids"], ["h0"]))
    nodes += [
        helper.make_node("MatMul", [f"h{at}", f"w{at}"], [f"h{at + 1}"]) for at in range(3)
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "q", [value("ids", 7, [4])], [value("h3", 1, [4, width])], weights
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    rows = []
    for option in ("0", "1"):
        for level in ("ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"):
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            options.graph_optimization_level = getattr(
                onnxruntime.GraphOptimizationLevel, level
            )
            options.add_session_config_entry("session.disable_quant_qdq", option)
            options.optimized_model_filepath = str(folder / "made.onnx")
            onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            made = onnx.load(folder / "made.onnx").graph
            size = sum(numpy_helper.to_array(t).nbytes for t in made.initializer)
            left = sum(node.op_type == "DequantizeLinear" for node in made.node)
            rows.append(f"| {option} | {level} | {size / MB:.2f} MB | {left} |")
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], json.loads(sys.argv[3]), sys.argv[4])
    else:
        main(sys.argv[1:])
