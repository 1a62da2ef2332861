"""Short runs with and without the runtime's memory pattern: bytes and processor time.

    python -m tests.benchmarks.pattern          bytes; no quiet machine
    python -m tests.benchmarks.pattern times    the same with processor times; a quiet one

The files that ``optimize`` writes at sizes that were said have a pattern, those at sizes that
were assumed have none: the same sizes, and others that neither file's arena was made for.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli import Check, Settings, workflows
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.feeds import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all

from .process import HOW, OUT, in_turn, models, prepare

if TYPE_CHECKING:
    from pathlib import Path

OTHERS = {
    "messy_distilbert_ts": {"batch": 32, "seq": 128},
    "messy_gpt_cache_dynamo": {"s25": 8, "s48": 1, "s69": 64, "s15": 64, "s8": 64},
    "messy_gru_decoder_ts": {"batch": 1, "seq": 512},
    "messy_segformer_ts": {"batch": 1, "height": 512, "width": 512},
    "messy_vit_ts": {"batch": 32},
}
"""Models whose runs take a millisecond or less at the least sizes, and other sizes of each."""

PARTS = {"default": "plain", "cpu": "load", "cpu_on": "load"}
PARTS |= {"portable": "load", "portable_on": "load"}

Json = dict[str, Any]


def write(name: str, part: str, dims: dict[str, int]) -> None:
    """Write the file of one way."""
    folder = OUT / name
    target, _, said = part.partition("_")
    asked = Settings(target=target, dims=dims if said else {}, notes="plan")  # type: ignore[arg-type]
    check = Check(provider="cpu")
    source = folder / "default.onnx"
    report = workflows.optimize(
        source, asked, out=folder / f"{part}.onnx", check=check
    ).plan.report
    settings = report.runtime.settings if report.runtime else None
    if settings is None or settings.session["enable_mem_pattern"] is not bool(said):
        sys.exit(f"{name} {part}: {settings}")


def measured(name: str, part: str, feed: Path) -> Json:
    """Return what a fresh process takes with three runs."""
    script = [sys.executable, "-m", "tests.benchmarks.process_child"]
    words = [*script, str(OUT / name / f"{part}.onnx"), str(feed), PARTS[part]]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    answer: Json = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(arguments: list[str]) -> None:
    """Print a table."""
    HOW.update(PARTS)
    for name, others in OTHERS.items():
        folder = OUT / name
        shutil.rmtree(folder, ignore_errors=True)
        dims = prepare(name, models()[name])["dims"]
        other = folder / "other.npz"
        specs = feed_specs(load_model(folder / "default.onnx"), others)
        np.savez(other, **draw_all(specs))  # type: ignore[arg-type]
        for part in PARTS:
            if part != "default":
                write(name, part, dims)
        times = in_turn(name, list(PARTS)) if "times" in arguments else {}
        for part in PARTS:
            here, there = (measured(name, part, feed) for feed in (folder / "feed.npz", other))
            figures = (here["run"], here["private"], there["run"], there["private"])
            cells = [name, part, *(f"{figure / 1e6:.2f}" for figure in figures)]
            if times:
                cells.append(f"{times[part] / times['default']:.3f}")
            print("|", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
