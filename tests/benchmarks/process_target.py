"""Hold the process that `optimize --target cpu` predicts of its file against the one observed.

    PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.process_target [MODEL...]

Weights seeded; the prediction and the observation are those of the command's own report, and the
observation is repeated in a fresh process with nothing else in it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from memplan_cli import Check, Settings, optimize
from memplan_cli.runtime.measuring.resident import observed_process

from .process_prediction import megabytes, prepared

NUMBERS = ("load", "run", "private")


def line(name: str, folder: Path) -> str:
    model, out = folder / f"{name}.onnx", folder / "out.onnx"
    trial = prepared(name, model)
    settings = Settings(target="cpu", dims=dict(trial.dims))
    report = optimize(model, settings, out=out, check=Check("cpu")).plan.report
    facts = report.runtime
    assert facts is not None
    assert facts.settings is not None
    predicted, reported = (
        side["optimized"].process for side in (facts.predicted, facts.observed)
    )
    alone = observed_process(out, facts.settings, trial)
    cells = [
        "-" if each is None else megabytes(getattr(each, number))
        for number in NUMBERS
        for each in (predicted, reported, alone)
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    print("| model |" + "".join(f" {n} predicted | in the report | alone |" for n in NUMBERS))
    print("|---|" + "---:|" * 9)
    for name in names or ["resnet50", "whisper_tiny_encoder"]:
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            print(line(name, Path(folder)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
