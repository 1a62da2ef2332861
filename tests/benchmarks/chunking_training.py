"""Training steps of language models whose logits are in pieces: bytes, bits, losses.

    python -m tests.benchmarks.chunking_training [--untimed] [CASE ...]

The step that ``memplan train-step`` makes of a decoder with GPT-2's vocabulary is optimized
with ``--chunk auto`` under a budget, which proves equal bits and measures both files in ONNX
Runtime with one thread. Then both train for some steps on the same batch.

Guards the claim of docs/measurements/chunking_training.md: a training step with logits in
pieces needs an eighth of the memory, with the same bits and losses.
"""

from __future__ import annotations

import argparse
import tempfile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import onnx
import onnxruntime

from memplan_cli import Settings, api
from memplan_cli.analysis.aliasing import SHARE_VIEWS
from memplan_cli.analysis.storage import live_peak
from memplan_cli.api.train_step import train_step
from memplan_cli.core.check import Check
from memplan_cli.core.program import Origin
from memplan_cli.core.symbolic.sizes import size_of
from memplan_cli.features.training.losses import LossFunction
from memplan_cli.features.training.optimizers import Optimizer
from memplan_cli.features.training.train_step import Recipe
from memplan_cli.onnx_io.shapes.reading import read_program

from .chunking import MIB, mib
from .chunking_models import gpt2
from .pages import MEASUREMENTS, replace_figures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.program import Program, Shape

    Array = np.ndarray[Any, Any]

Recompute = Literal["none", "auto"]

TABLE = MEASUREMENTS / "chunking_training.md"

VOCABULARY, FEWEST, STEPS, RATE = 50257, 128, 5, 0.5


class Case(NamedTuple):
    """A decoder, the budget of its step in MiB, and whether ops may be recomputed too."""

    tokens: tuple[int, int]
    """Samples, and the tokens of each."""
    hidden: int
    layers: int
    budget: float
    recompute: Recompute = "none"


CASES = {
    "gpt2_512": Case((1, 512), 64, 1, 56),
    "gpt2_1024": Case((8, 128), 64, 2, 104),
    "gpt2_1024_recompute": Case((8, 128), 64, 2, 92, "auto"),
}

HEADS = (
    "step", "tokens", "budget", "regions", "nodes", "recomputed", "logits before", "logits after",
    "measured before", "measured after", "work", "time", "bits", "losses", "same losses",
)  # fmt: skip

_TEXTS = frozenset({"step", "bits", "losses", "same losses"})


def main() -> None:
    """Measure the steps that are named, or all, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="as the table names them")
    parser.add_argument("--untimed", action="store_true", help="leave times out")
    asked = parser.parse_args()
    for name in asked.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            words = row(Path(folder), name, CASES[name])
        words[HEADS.index("time")] = "-" if asked.untimed else words[HEADS.index("time")]
        print(" | ".join(words), flush=True)
        write(words)


def write(words: list[str]) -> None:
    """Put a row into the page, in the order of the cases."""
    page = TABLE.read_text("utf-8")
    known = (line for line in page.splitlines() if line.startswith("| gpt2"))
    rows = {line.split(" | ")[0][2:]: line for line in known}
    rows[words[0]] = f"| {' | '.join(words)} |"
    rule = "|".join("---" if head in _TEXTS else "---:" for head in HEADS)
    lines = [rows[name] for name in CASES if name in rows]
    table = "\n".join([f"| {' | '.join(HEADS)} |", f"|{rule}|", *lines])
    replace_figures(TABLE, table)


def row(folder: Path, name: str, case: Case) -> list[str]:
    """Return the words of a step's row."""
    forward, path = folder / "forward.onnx", folder / f"{name}.onnx"
    gpt2(forward, case.tokens, case.hidden, case.layers)
    recipe = Recipe(LossFunction("softmax-cross-entropy"), Optimizer("sgd"))
    train_step(forward, path, recipe=recipe, state=folder / "state.npz")
    asked = Settings(
        chunk="auto", budget=int(case.budget * MIB), loss="loss", recompute=case.recompute
    )
    out = folder / "pieces.onnx"
    found = api.optimize(path, asked, out=out, check=Check(timeout=3600))
    report = found.plan.report
    whole, cut = (read_program(onnx.load(each)).program for each in (path, out))
    of_logits = {var.name for var in whole.vars.values() if _is_logits(var.shape)}
    state = dict(np.load(folder / "state.npz"))
    losses = [train(each, state, case) for each in (path, out)]
    runtime, validation = report.runtime, report.validation
    if runtime is None or validation is None:
        raise ValueError(f"{name} was not run")
    before, after = (
        runtime.observed["original"],
        runtime.observed["optimized"],
    )
    return [
        name,
        f"{case.tokens[0]} x {case.tokens[1]}",
        f"{case.budget:g}MiB",
        str(len(report.chunked.regions)),
        f"+{report.chunked.nodes}",
        str(report.recompute.nodes),
        mib(_most(whole, of_logits)),
        mib(_most(cut, of_logits)),
        mib(before.first_run_peak),
        mib(after.first_run_peak),
        f"{report.chunked.flops_increase + report.recompute.flops_increase:.0%}",
        f"{after.processor_milliseconds / before.processor_milliseconds:.2f}"
        if after.processor_milliseconds and before.processor_milliseconds
        else "-",
        "equal" if validation.bit_identical else "other",
        f"{losses[0][0]:.4f} to {losses[0][-1]:.4f}",
        "yes" if losses[0] == losses[1] else "NO",
    ]


def _is_logits(shape: Shape | None) -> bool:
    """Whether a tensor has the vocabulary for each token."""
    dims = [dim for dim in shape or () if isinstance(dim, int)]
    return dims[-1:] == [VOCABULARY] and prod(dims[:-1]) >= FEWEST


def _most(program: Program, names: set[str]) -> int:
    """Return the most bytes that some tensors, or pieces of them, have live at one step."""
    own = {
        var: size
        for var, facts in program.vars.items()
        if facts.origin is Origin.OP
        and any(part in names for part in _parts(facts.name))
        and (size := size_of(facts.shape, facts.dtype)) is not None
    }
    return live_peak(program, own, aliasing=SHARE_VIEWS)


def _parts(name: str) -> list[str]:
    """Return what a tensor may be a piece or a copy of: its name without what was put behind."""
    words = name.split("__")
    return ["__".join(words[: at + 1]) for at in range(len(words))]


def train(path: Path, state: Mapping[str, Array], case: Case) -> list[float]:
    """Return the losses of some steps on one batch."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    ids, labels = rng.integers(0, VOCABULARY, (2, *case.tokens))
    batch = {"input_ids": ids, "labels": labels, "learning_rate": np.array(RATE, np.float32)}
    wanted = {value.name for value in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    current, losses = dict(state), list[float]()
    for number in range(1, STEPS + 1):
        given = {**batch, **current, "step": np.array(number, np.int64)}
        made = session.run(names, {name: given[name] for name in wanted})
        results = dict(zip(names, map(np.asarray, made), strict=True))
        losses.append(float(results["loss"]))
        current = {name: results[f"new.{name[3:]}"] for name in current}
    return losses


if __name__ == "__main__":
    main()
