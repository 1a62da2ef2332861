"""Long activations in pieces: peaks before and after, predicted and measured, bits and time.

    python -m tests.benchmarks.chunking

Weights are seeded. Each model is optimised with ``--chunk auto`` under a share of its live peak,
which proves equal bits and measures both files in ONNX Runtime with one thread. The table is
written to docs/measurements/chunking.md.
"""

from __future__ import annotations

import platform
import runpy
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime

from memplan_cli import Settings, workflows

from .models import SHARED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.observations import Peaks

TABLE = Path(__file__).parents[2] / "docs" / "measurements" / "chunking.md"

CASES: tuple[tuple[str, float, Mapping[str, int]], ...] = (
    ("whisper_tiny_encoder", 0.2, {}),
    ("whisper_tiny_encoder", 0.3, {}),
    ("segformer_b0", 0.5, {}),
    ("bert_base_dyn", 0.45, {"batch": 1, "seq": 512}),
)
"""Models with the share of their live peak that is the budget, and their dims."""

MIB = 1 << 20

WORDS = """# Long activations in pieces

`python -m tests.benchmarks.chunking`; onnxruntime {ort}, onnx {onnx}, {machine}, CPU, one thread.
MiB are 2^20 bytes.

"budget" is a share of the live peak of the file; "peak" is `live_peak` of the plan, before and after;
"predicted" and "measured" are what the runtime's arena holds at most in the first run, under its
defaults with the file as it is and under the settings that go with the written file. "work" is the
modelled work that is added, "time" processor time of a run against the original's. "bits": all
outputs equal. "seconds" are those of `optimize` as a whole, its proof and its measurements included.

| model | budget | peak before | peak after | regions | nodes | predicted | measured before | measured after | work | time | bits | seconds |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|
{rows}

The original is fused by the runtime and the written file runs as it stands, so "time" holds what
fusions were worth too. What falls short: the UNet of Stable Diffusion was cut on paper only, segformer
stays at the maps that an interpolating Resize makes, and a Llama prefill, ViT and training steps were
not measured.
"""


def main() -> None:
    """Measure every case and write the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = "\n".join(row(Path(folder), *case) for case in CASES)
    machine = platform.machine()
    versions = {"ort": onnxruntime.__version__, "onnx": onnx.__version__, "machine": machine}
    TABLE.write_text(WORDS.format(rows=rows, **versions), "utf-8")


def row(folder: Path, name: str, share: float, dims: Mapping[str, int]) -> str:
    """Return a model's row."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        runpy.run_path(str(SHARED / "fill_weights.py"))["fill"](
            str(SHARED / f"{name}.onnx"), str(path)
        )
    began = time.perf_counter()
    plan = workflows.optimize(path, Settings(chunk="auto", budget=share, dims=dims)).plan
    seconds, report = time.perf_counter() - began, plan.report
    runtime, validation = report.runtime, report.validation
    if runtime is None or validation is None:
        return f"| {name} | {share:.0%} | " + " | ".join(["-"] * 11) + " |"
    before, after = runtime.observed["original"], runtime.observed["optimized"]
    predicted = runtime.predicted["optimized"]
    at = "".join(f" {key}={value}" for key, value in dims.items())
    told = [
        name + at, f"{share:.0%}", mib(report.original_live_peak), mib(report.memory.live_peak),
        str(len(report.chunked.regions)), f"+{report.chunked.nodes}",
        mib(predicted.first_run_peak), mib(before.first_run_peak), mib(after.first_run_peak),
        f"{report.chunked.flops_increase:.1%}", ratio(after, before),
        "equal" if validation.bit_identical else "other", f"{seconds:.0f}",
    ]  # fmt: skip
    print(" | ".join(told), flush=True)
    return f"| {' | '.join(told)} |"


def mib(count: int | None) -> str:
    """Return bytes in MiB."""
    return "-" if count is None else f"{count / MIB:.1f}"


def ratio(after: Peaks, before: Peaks) -> str:
    """Return how long a run takes against the original's."""
    if not after.effort or not before.effort:
        return "-"
    return f"{after.effort / before.effort:.2f}"


if __name__ == "__main__":
    main()
