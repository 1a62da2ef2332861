"""Collect every text that a user of the command line may see, in one listing.

    python -m tests.benchmarks.texts [OUT]    write the listing; default: out/texts.md

The listing is for reading: the help of every command, the reports on the sample models, and what
commands print if options are wrong. Run it after a change of texts and read what is new.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from click.testing import CliRunner

from memplan_cli.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_models"

REPORTS = (
    "optimize branchy_cnn.onnx",
    "optimize branchy_cnn.onnx --verbose -o verbose.onnx",
    "optimize branchy_cnn.onnx --explain -o explain.onnx",
    "optimize branchy_cnn.onnx --target cpu -o target.onnx",
    "optimize branchy_cnn.onnx --no-validate -o plain.onnx",
    "optimize branchy_cnn.onnx --level 1 --exclude fc1 --print-log -o log.onnx",
    "optimize branchy_cnn.onnx --reference unoptimized -o reference.onnx",
    "optimize branchy_cnn.onnx --budget 10KiB --recompute auto -o budget.onnx",
    "optimize dynamic_batch.onnx",
    "optimize dynamic_batch.onnx --bounds batch=1..8 -o range.onnx --verbose",
    "optimize dynamic_batch.onnx --dim batch=1,8 -o profiles.onnx --verbose",
    "optimize train_mlp.onnx --donate 'in.*=new.*' -o donated.onnx --verbose",
    "optimize train_mlp.onnx --recompute auto --budget 90% -o recomputed.onnx --verbose",
    "report branchy_cnn.memplan.onnx",
    "report branchy_cnn.memplan.json",
    "report branchy_cnn.memplan.json --explain",
    "report branchy_cnn.onnx --format markdown",
    "report dynamic_batch.onnx --verbose",
    "report dynamic_batch.onnx --format markdown",
    "report train_mlp.onnx --verbose",
    "report train_mlp.onnx --dry-run",
    "report branchy_cnn.onnx --dry-run",
    "validate branchy_cnn.memplan.onnx",
    "validate branchy_cnn.memplan.onnx --replay --measure",
    "validate branchy_cnn.memplan.onnx --measure",
    "gate branchy_cnn.onnx --max-memory 512MiB",
    "gate branchy_cnn.onnx --max-memory 1KiB",
    "gate branchy_cnn.onnx --max-memory 1KiB --format markdown",
    "gate branchy_cnn.onnx --max-memory 1KiB --format github",
    "gate branchy_cnn.onnx --update-baseline",
    "gate branchy_cnn.onnx --max-increase 2%",
    "gate dynamic_batch.onnx --max-increase 2%",
    "diff branchy_cnn.onnx branchy_cnn.memplan.json",
    "diff branchy_cnn.onnx dynamic_batch.onnx --format markdown",
    "why branchy_cnn.onnx",
    "why branchy_cnn.onnx --process",
    "why branchy_cnn.onnx --process --format markdown",
    "why branchy_cnn.onnx --tensor {tensor}",
    "fit dynamic_batch.onnx --memory 200MiB --dim batch=?",
    "fit dynamic_batch.onnx --memory 1MiB --dim batch=? --of tensors",
    "fit dynamic_batch.onnx --memory 1MiB --dim batch=?",
    "fit dynamic_batch.onnx --memory 100MiB --dim batch=? --confirm",
    "settings branchy_cnn.onnx",
    "settings branchy_cnn.onnx --measure",
    "settings branchy_cnn.onnx --format c",
    "settings dynamic_batch.onnx --bounds batch=1..8",
    "simulate branchy_cnn.onnx",
    "soak dynamic_batch.onnx --bounds batch=1..4 --requests 5",
    "train-step branchy_cnn.onnx -o step.onnx --loss-fn mse --optimizer sgd",
    "train-step branchy_cnn.onnx -o step.onnx --loss-fn mse --optimizer adam --budget 1KiB",
    "pack problem.csv",
    "pack problem.csv --capacity 1",
    "pack problem.csv -o offsets.csv",
    "sweep . --jobs 1",
    "optimize branchy_cnn.onnx --certificate c.json -o certified.onnx",
    "verify-certificate branchy_cnn.onnx certified.json c.json",
    "doctor",
    "doctor branchy_cnn.memplan.onnx",
)  # fmt: skip
"""Commands that work, or whose check fails; run in this order in one folder."""

REFUSALS = (
    "optimize branchy_cnn.onnx",
    "optimize missing.onnx",
    "optimize problem.csv",
    "optimize empty.onnx",
    "optimize .",
    "optimize branchy_cnn.onnx --level 3",
    "optimize branchy_cnn.onnx --exclude fc11",
    "optimize branchy_cnn.onnx --dim batch=2",
    "optimize branchy_cnn.onnx --dim batch",
    "optimize branchy_cnn.onnx --shape image=1,3",
    "optimize branchy_cnn.onnx --shape image",
    "optimize branchy_cnn.onnx --bounds batch=8..1",
    "optimize dynamic_batch.onnx --bounds batch=8..1",
    "optimize dynamic_batch.onnx --bounds batch=few",
    "optimize dynamic_batch.onnx --dim bach=2",
    "optimize dynamic_batch.onnx --dim batch=2 --bounds batch=1..4",
    "optimize branchy_cnn.onnx --donate image=nothing",
    "optimize branchy_cnn.onnx --donate image",
    "optimize branchy_cnn.onnx --loss lost",
    "optimize branchy_cnn.onnx --budget 10",
    "optimize branchy_cnn.onnx --budget 10KiB",
    "optimize branchy_cnn.onnx --recompute checkpoints",
    "optimize branchy_cnn.onnx --recompute checkpoints --checkpoint nothing",
    "optimize branchy_cnn.onnx --recompute auto --chunk auto",
    "optimize branchy_cnn.onnx --capacity 8",
    "optimize branchy_cnn.onnx --kv-cache in-place",
    "optimize branchy_cnn.onnx --kv-cache in-place --capacity 8",
    "optimize branchy_cnn.onnx --chunk auto --no-validate",
    "optimize branchy_cnn.onnx --alignment 3",
    "optimize branchy_cnn.onnx --time-limit -1",
    "optimize branchy_cnn.onnx --inputs missing.npz",
    "optimize branchy_cnn.onnx --input image=1",
    "optimize branchy_cnn.onnx --config missing.yaml",
    "optimize branchy_cnn.onnx --config wrong.yaml",
    "optimize branchy_cnn.onnx --provider cuda",
    "optimize branchy_cnn.onnx --target cuda",
    "optimize branchy_cnn.onnx --target cpu --external-weights move",
    "optimize branchy_cnn.onnx --no-validate --settings-out s.py",
    "optimize branchy_cnn.onnx --validate none --tune",
    "optimize branchy_cnn.onnx --no-run --validate full",
    "optimize branchy_cnn.onnx --no-validate --timeout 3",
    "optimize branchy_cnn.onnx --explain --format json",
    "optimize branchy_cnn.onnx -o branchy_cnn.onnx",
    "optimize branchy_cnn.onnx -o missing/out.onnx",
    "optimize branchy_cnn.onnx -o out.onnx --plan out.onnx",
    "optimize branchy_cnn.onnx --external-weights maybe",
    "optimize train_mlp.onnx --phase test --recompute auto --budget 50%",
    "report nothing.json",
    "report branchy_cnn.memplan.json --level 1",
    "report branchy_cnn.onnx --max-memory 1KiB",
    "report branchy_cnn.onnx --format minimalloc --level 0",
    "report dynamic_batch.onnx --format c-header",
    "report dynamic_batch.onnx --format tflm",
    "validate branchy_cnn.onnx",
    "validate plain.onnx --original dynamic_batch.onnx",
    "gate branchy_cnn.onnx --max-memory 512",
    "gate branchy_cnn.onnx --max-increase 2",
    "gate branchy_cnn.onnx --max-memory 1MiB --metric pland",
    "gate branchy_cnn.onnx --baseline missing.json --max-increase 2%",
    "gate branchy_cnn.onnx --level 1 --max-increase 2%",
    "gate branchy_cnn.onnx --write xml=a.xml",
    "gate 'none*.onnx' --max-memory 1MiB",
    "why branchy_cnn.onnx --tensor nothing",
    "why branchy_cnn.onnx --tensor a --process",
    "fit branchy_cnn.onnx --memory 1GiB",
    "fit dynamic_batch.onnx --memory 1GiB",
    "fit dynamic_batch.onnx --memory lots --dim batch=?",
    "fit dynamic_batch.onnx --memory 1GiB --dim bach=?",
    "settings branchy_cnn.onnx --timeout 3",
    "settings branchy_cnn.onnx --bounds batch=1..4",
    "settings dynamic_batch.onnx --bounds batch=1..4 --tune",
    "soak dynamic_batch.onnx",
    "soak branchy_cnn.onnx --bounds batch=1..4",
    "train-step branchy_cnn.onnx -o s.onnx",
    "train-step branchy_cnn.onnx -o s.onnx --loss nothing --optimizer sgd",
    "train-step branchy_cnn.onnx -o s.onnx --loss-fn mse --optimizer sgd --freeze nothing",
    "train-step branchy_cnn.onnx -o s.onnx --loss-fn mse --optimizer sgd --train nothing",
    "pack missing.csv",
    "pack wrong.csv",
    "sweep nowhere",
    "sweep dynamic_batch.onnx --dim bach=1",
    "verify-certificate branchy_cnn.onnx plain.json problem.csv",
    "verify-certificate dynamic_batch.onnx certified.json c.json",
    "doctor missing.onnx",
    "schema nothing",
    "schema",
)  # fmt: skip
"""Commands with a typical mistake."""


def listing() -> Iterator[str]:
    """Yield the Markdown sections of the listing."""
    runner = CliRunner(env={"NO_COLOR": "1", "COLUMNS": "100"})
    yield "# Texts of the command line\n\n## Help"
    for name in COMMANDS:
        yield _section(runner, f"{name} --help")
    yield "## Reports"
    for line in REPORTS:
        yield _section(runner, line)
    yield "## Refusals and warnings"
    for line in REFUSALS:
        yield _section(runner, line)


def _section(runner: CliRunner, line: str) -> str:
    """Run one command in the current folder and return its output as a section."""
    from shlex import split

    result = runner.invoke(main, split(line))
    return f"### memplan {line}\n\nexit {result.exit_code}\n\n```text\n{result.output}```"


def prepare(folder: Path) -> None:
    """Write the sample models and some wrong files into a folder."""
    for path in sorted(SAMPLES.glob("*.onnx")):
        shutil.copy(path, folder)
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "wrong.yaml").write_text("levle: 1\n")
    (folder / "problem.csv").write_text("id,lower,upper,size\na,0,2,64\nb,1,3,32\nc,2,4,64\n")
    (folder / "wrong.csv").write_text("id,lower,upper,size\na,2,0,64\n")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out" / "texts.md").absolute()
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(temporary))
        os.chdir(temporary)
        with target.open("w") as file:
            for text in listing():
                file.write(f"{text}\n\n")
                file.flush()
        os.chdir(ROOT)
