"""Long activations in pieces: peaks before and after, predicted and measured, bits and time.

    python -m tests.benchmarks.chunking [MODEL ...]             optimize and run models
    python -m tests.benchmarks.chunking --budgets [MODEL ...]   plan models for several budgets

Without models, all are measured; the names are those of `CASES` and `microcontrollers.NETWORKS`. Weights
are seeded. Each model is optimized with ``--target cpu --chunk auto`` under a budget, which proves
equal bits and measures both files in ONNX Runtime with one thread; then both are run in turn in one
process for their times. If no plan is within the budget, the least found is measured. Each row goes
into docs/measurements/chunking.md when it is there; rows of other models stay. If a model fails, its
error is printed, and the next one follows.

Guards the claim of docs/measurements/chunking.md: the first run of a model in pieces needs
a fraction of the memory at about the same time, with the same bits.
"""

from __future__ import annotations

import argparse
import runpy
import shutil
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime

from memplan_cli import Settings, api
from memplan_cli.api.models.model_file import read_model
from memplan_cli.api.models.resolve_sizes import resolve_first_sizes
from memplan_cli.api.optimizing.candidates import OptimizeRequest, TargetCandidates
from memplan_cli.api.output.rewriting import Targets
from memplan_cli.core.check import Check
from memplan_cli.core.progress import silent
from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.loading.session import load_session
from memplan_cli.runtime.graph.dumps import executed_graph
from memplan_cli.runtime.simulate.predict import predict_peaks

from . import microcontrollers
from .chunking_models import GENERATED
from .microcontrollers import NETWORKS, network_rows
from .models import ROOT, SHARED
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memplan_cli.core.results.plan import Plan

TABLE = MEASUREMENTS / "chunking.md"

MIB = 1 << 20

FEWEST, SECONDS = 5, 60
"""Runs in turn that a time is the median of: so many at least, and until so long has passed."""


class Case(NamedTuple):
    """A model with its budget: MiB, or a share of its live peak."""

    budget: float
    share: bool = False

    @property
    def asked(self) -> int | float:
        """What `Settings` takes."""
        return self.budget if self.share else int(self.budget * MIB)

    def __str__(self) -> str:
        """Return the budget as it is given."""
        return f"{self.budget:.0%}" if self.share else f"{self.budget:g}MiB"


QUARTER = Case(0.25, share=True)
"""A quarter of the live peak, for a model whose sizes nobody chose a budget for."""

OPTIMIZED = RuntimeSettings(
    session={
        "graph_optimization_level": "ORT_ENABLE_ALL",
        "enable_mem_pattern": False,
        "enable_mem_reuse": False,
    }
)
"""The original as it is run by default, but for memory that dead tensors leave behind."""

CASES = {
    "super_resolution": Case(36),
    "segformer_b0": Case(25),
    "whisper_tiny_encoder": Case(10),
    "vit_2048": Case(52),
    "bert_2048": Case(52),
    "llama_prefill_2048": Case(110),
    "gpt2_loss_1024": Case(36),
    "sd15_unet": Case(60),
    # Vision transformers.
    "vit_197": QUARTER,
    "swin_tiny": QUARTER,
    # Convolution nets with and without skips.
    "resnet50": QUARTER,
    "densenet121": QUARTER,
    "efficientnet_b0": QUARTER,
    "plain_convolutions": QUARTER,
    # Detectors with pyramids.
    "detector": QUARTER,
    "common_det": QUARTER,
    "hrnet_w18": QUARTER,
    # Decoder of an image diffusion model.
    "diffusion_decoder": QUARTER,
    # Speech encoder and vocoder on waveforms.
    "wave_encoder": QUARTER,
    "vocoder": QUARTER,
    # Super-resolution.
    "enhancement": QUARTER,
    # Audio separation.
    "audio_separation": QUARTER,
    "masking_separation": QUARTER,
}
"""The models and their budgets. The first eight have rounded ones, all others a quarter of their peak."""

FIELD = {"common_det": ROOT / "out" / "field" / "models" / "ddddocr" / "common_det.onnx"}
"""Models out of packages, in the folder that `tests.benchmarks.field` fills."""

HEADS = (
    "model", "budget", "peak before", "peak after", "regions", "nodes", "measured before",
    "freed at once", "predicted", "measured after", "work", "time", "bits", "seconds",
)  # fmt: skip


BUDGETS = (None, 0.5, 0.25, 0.15)
"""Budgets of ``--budgets``, as shares of the live peak; None: at most 5 % more time."""

BUDGET_HEADS = ("model", "peak", "5 % more time", "50 %", "25 %", "15 %", "bound")

WORDS = frozenset({"model", "network", "bits"})
"""The columns that are no numbers."""


def main() -> None:
    """Measure the models that are named, or all, and write the tables row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="as the tables name them")
    parser.add_argument(
        "--budgets", action="store_true", help="plan only, for several budgets"
    )
    given = parser.parse_args()
    every, run = (
        (tuple(CASES), plan_budgets) if given.budgets else ((*NETWORKS, *CASES), measure)
    )
    for name in given.models or every:
        try:
            with tempfile.TemporaryDirectory() as folder:
                run(Path(folder), name)
        except Exception:  # noqa: BLE001 - the other models are measured all the same
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)


def measure(folder: Path, name: str) -> None:
    """Measure a model, print its rows, and put them into its table."""
    if name in NETWORKS:
        rows = network_rows(folder, name)
        lines = written_rows(NETWORKS, microcontrollers.HEADS, name, rows)
        figures = table(microcontrollers.HEADS, lines)
        replace_figures(TABLE, figures, "microcontrollers")
    else:
        rows = [f"| {' | '.join(row(folder, name, CASES[name]))} |"]
        lines = written_rows(CASES, HEADS, name, rows)
        replace_figures(TABLE, f"{table(HEADS, lines)}\n\n{means(lines)}")
    print(*rows, sep="\n", flush=True)


def plan_budgets(folder: Path, name: str) -> None:
    """Plan a model for each of `BUDGETS`, without running it; print its row, and put it into its table.

    A cell has the live peak with outputs, in MiB, the modeled work that is added, and the processor's
    seconds. A star marks a budget that is missed.
    """
    path = write_model(folder, name)
    cells, bounds = list[str](), list[int]()
    for budget in BUDGETS:
        settings = Settings(
            chunk="auto", budget=budget, best_effort=budget is not None, target="cpu"
        )
        began = time.process_time()
        report = first_plan(path, settings).report
        seconds = time.process_time() - began
        chunks = report.chunked
        if budget is None:
            cells += [name, mib(chunks.curve[0].peak)]  # the program without chunks
        star = "" if chunks.met else "*"
        cells.append(
            f"{mib(report.memory.resident)}{star}, {chunks.flops_increase:.0%}, {seconds:.0f} s"
        )
        bounds.append(chunks.bound or 0)
    cells.append(mib(max(bounds)))
    rows = [f"| {' | '.join(cells)} |"]
    lines = written_rows(CASES, BUDGET_HEADS, name, rows)
    replace_figures(TABLE, table(BUDGET_HEADS, lines), "budgets")
    print(*rows, flush=True)


def first_plan(path: Path, settings: Settings) -> Plan:
    """Return the plan of the first file that `optimize` would run: of ONNX Runtime's graph with packed weights."""
    file = read_model(path)
    request = OptimizeRequest(
        file,
        resolve_first_sizes(file.lazy, path, settings),
        Targets.of(path, None, None, None, None),
        Check(),
        silent,
    )
    with tempfile.TemporaryDirectory() as folder:
        return TargetCandidates.of(request, Path(folder)).first_round()[0].plan


def written_rows(
    names: Iterable[str], heads: Sequence[str], name: str, rows: Sequence[str]
) -> list[str]:
    """Return a table's rows of the page, with these ones for one model, in the order of the names."""
    columns = len(heads) + 2  # nothing stands before the first bar and behind the last one
    cells = [line.split("|") for line in TABLE.read_text("utf-8").splitlines()]
    written = [line for line in cells if len(line) == columns]
    lines = {
        other: ["|".join(line) for line in written if line[1].strip() == other]
        for other in names
    }
    lines[name] = [*rows]
    return [line for group in lines.values() for line in group]


def table(heads: Sequence[str], lines: Sequence[str]) -> str:
    """Return a table in Markdown."""
    rule = "|".join("---" if head in WORDS else "---:" for head in heads)
    return "\n".join([f"| {' | '.join(heads)} |", f"|{rule}|", *lines])


def means(lines: Sequence[str]) -> str:
    """Say how many times less the written files take, by the rows that were measured."""
    found = [dict(zip(HEADS, line.strip("| ").split(" | "), strict=True)) for line in lines]
    found = [row for row in found if row["measured after"] != "-"]
    by_default, alone = (
        geometric_mean(float(row[head]) / float(row["measured after"]) for row in found)
        for head in ("measured before", "freed at once")
    )
    return (
        f"Geometric mean of the {len(found)} rows: {by_default:.1f} times less than under the "
        f"defaults, {alone:.1f} times less than freed at once."
    )


def row(folder: Path, name: str, case: Case) -> list[str]:
    """Return the words of a model's row."""
    path = write_model(folder, name)
    began = time.perf_counter()
    asked = Settings(chunk="auto", budget=case.asked, best_effort=True, target="cpu")
    plan = api.optimize(path, asked, check=Check(timeout=3600)).plan
    seconds = time.perf_counter() - began
    alone = predict_peaks(executed_graph(path, OPTIMIZED, {}), OPTIMIZED).first_run_peak
    # A process has one arena, with the settings of the first session that shares it.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        ratio = pool.submit(in_turn, path, path.with_suffix(".memplan.onnx")).result()
    return [name, str(case), *told(plan, alone, ratio), f"{seconds:.0f}"]


def write_model(folder: Path, name: str) -> Path:
    """Write a model with its weights into a folder, and return its path."""
    path = folder / f"{name}.onnx"
    if name in GENERATED:
        GENERATED[name](path)
    elif name in FIELD:
        shutil.copy(FIELD[name], path)
    else:
        fill = runpy.run_path(str(SHARED / "fill_weights.py"))["fill"]
        fill(str(SHARED / f"{name}.onnx"), str(path))
    return path


def in_turn(original: Path, written: Path) -> float:
    """Return the median of the ratios of processor times, each of two runs one after the other."""
    sessions = []
    for path in (original, written):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        sessions.append(load_session(path, options))
    rng = np.random.default_rng(0)
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    feeds = {
        each.name: (rng.random(each.shape) * 2).astype(kinds[each.type])
        for each in sessions[0].get_inputs()
    }
    ratios, began = list[float](), time.perf_counter()
    while len(ratios) <= FEWEST or time.perf_counter() - began < SECONDS:
        times = []
        for session in sessions:
            start = time.process_time()
            session.run(None, feeds)
            times.append(time.process_time() - start)
        ratios.append(times[1] / times[0])
    # The first run, which grows the arena, counts in no time.
    return median(ratios[1:])


def told(plan: Plan, alone: int | None, ratio: float) -> list[str]:
    """Return what was found of one model."""
    report = plan.report
    found = [mib(report.original_live_peak), mib(report.memory.live_peak)]
    found += [str(len(report.chunked.regions)), f"+{report.chunked.nodes}"]
    runtime, validation = report.runtime, report.validation
    work = f"{report.chunked.flops_increase:.1%}"
    if runtime is None or validation is None:
        return [*found, "-", mib(alone), "-", "-", work, f"{ratio:.2f}", "-"]
    before, after = (
        runtime.observed["original"],
        runtime.observed["optimized"],
    )
    predicted = runtime.predicted["optimized"].first_run_peak
    bits = "equal" if validation.bit_identical else "other"
    found += [
        mib(before.first_run_peak),
        mib(alone),
        mib(predicted),
        mib(after.first_run_peak),
    ]
    return [*found, work, f"{ratio:.2f}", bits]


def mib(count: int | None) -> str:
    """Return bytes in MiB."""
    return "-" if count is None else f"{count / MIB:.1f}"


if __name__ == "__main__":
    main()
