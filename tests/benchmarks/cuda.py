"""The first hour on a GPU: what is predicted for CUDA from sources, measured.

    python -m tests.benchmarks.cuda             every part that is not there yet, then the page
    python -m tests.benchmarks.cuda PART...     these parts again, then the page
    python -m tests.benchmarks.cuda settings    settings of five models into docs/cuda.md; no GPU

Each part keeps its result in ``out/cuda/`` as soon as it is there, so that a run that was stopped goes on
where it was. A part that fails is a row of the page with its reason, and the next part begins.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from memplan_cli import api
from memplan_cli.settings.settings import Settings

from .models import ROOT, SAMPLES, SHARED, bindings
from .pages import replace_figures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OUT = ROOT / "out" / "cuda"

FIVE = ("branchy_cnn", "resnet50", "segformer_b0", "bert_base_sdpa", "train_cnn_adam")
"""Models whose settings docs/cuda.md lists: with and without convolutions, and a training step."""


def filled(name: str) -> Path:
    """Return a sample model, or a shared model with seeded weights."""
    sample = SAMPLES / f"{name}.onnx"
    if sample.exists():
        return sample
    model = OUT / "models" / f"{name}.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        fill = [sys.executable, str(SHARED / "fill_weights.py"), str(SHARED / model.name)]
        subprocess.run([*fill, str(model)], check=True, stdout=subprocess.DEVNULL)
    return model


def settings_of(name: str) -> Settings:
    """Return the numbers of a model's free dims."""
    pairs = (pair.partition("=") for pair in bindings(SHARED / f"{name}.onnx"))
    return Settings(dims={dim: int(value) for dim, _, value in pairs})


# ---- settings, without a GPU ----


def settings_table() -> Iterator[str]:
    """Yield the table of the settings of `FIVE` models, as Markdown."""
    yield "| model | arena | first region | later regions | strategy | `max_mem` | reuse | convolutions |"
    yield "|---|--:|--:|--:|---|--:|---|---|"
    for name in FIVE:
        choice = api.settings(filled(name), settings_of(name), provider="cuda")
        arena, provider = choice.settings.arena, choice.settings.provider
        sizes = (
            choice.predicted.held,
            arena.get("initial_chunk_size_bytes"),
            arena.get("max_power_of_two_extend_bytes"),
        )
        arena_bytes, first, later = ("" if size is None else mib(int(size)) for size in sizes)
        row = (
            name,
            arena_bytes,
            first,
            later,
            str(arena["arena_extend_strategy"]).removeprefix("k"),
            mib(int(arena["max_mem"])),
            "on" if choice.settings.session["enable_mem_reuse"] else "off",
            "HEURISTIC, 0" if provider else "",
        )
        yield f"| {' | '.join(row)} |"


def mib(size: int) -> str:
    """Return bytes in MiB, with one decimal."""
    return f"{size / (1 << 20):,.1f}"


def main(arguments: list[str]) -> None:
    """Run the parts that are named, or all."""
    if arguments == ["settings"]:
        replace_figures(ROOT / "docs" / "cuda.md", "\n".join(settings_table()))


if __name__ == "__main__":
    main(sys.argv[1:])
