"""Turn forward models into training steps, run them, and print what came out as rows.

    python tests/benchmarks/train_step.py [NAME ...]

The rows are those of docs/measurements/train_step.md.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "e2e")]

from shared_models import LIGHT, SHARED, draw_inputs, filled  # noqa: E402 - see the path above
from training_checks import (  # noqa: E402 - see the path above
    MADE_BY_PYTORCH,
    gradient_errors,
    live_peaks,
    recomputed_peak,
)
from training_runs import Run, train  # noqa: E402 - see the path above

MSE = Run(1e-3, "mse", steps=3)
LIGHT_RUNS = {"light_inception_v1": Run(1e-8)}
RUNS = {
    "bert_base_dyn": MSE,
    "bert_base_sdpa": MSE,
    "cond_early_exit": Run(1e-3),
    "densenet121": Run(1e-3),
    "gpt2_small": Run(1e-2, steps=2),
    "hrnet_w18": Run(1e-12),
    "inception_v3": Run(1e-3),
    "mobilenetv2_ts": Run(1e-3),
    "mobilenetv3_large": Run(1e-3),
    "moe_sparse": MSE,
    "nasnet_a_large": Run(1e-3, steps=2),
    "resnet50": Run(1e-3),
    "resnet50_dynbatch": Run(1e-3),
    "scan_lstm": MSE,
    "segformer_b0": Run(1.0, "mse"),
    "swin_tiny": Run(1e-3),
    "t5_small_decoder": MSE,
    "whisper_tiny_encoder": MSE,
    "wiring_amoeba_cell": MSE,
    "wiring_darts_cell": MSE,
    "wiring_darts_v2_imagenet": Run(1e-3),
    "wiring_inception_resnet_v2_like": Run(1e-3),
    "wiring_nasnet_a_cifar": Run(1e-3),
    "wiring_nasnet_cell": MSE,
    "wiring_randwire_c78_s0": Run(1e-3),
    "wiring_rwcell_n32_s0": MSE,
    "wiring_unetpp": MSE,
}


def measured(name: str) -> str:
    """Return one row of the table."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if name.startswith("light_"):
            model, given, run = (
                onnx.load(LIGHT / f"{name}.onnx"),
                {},
                LIGHT_RUNS.get(name, Run(1e-3)),
            )
        else:
            model, run = filled(name, Path(folder)), RUNS[name]
            described = SHARED / "inputs" / f"{name}.json"
            given = draw_inputs(name) if described.exists() else {}
        step, losses = train(model, run, given)
    verdict = "yes" if losses[-1] < losses[0] else "NO"
    shown = ", ".join(f"{loss:.6g}" for loss in losses)
    seconds = time.perf_counter() - start
    nodes = len(model.graph.node), len(step.model.graph.node)
    return (
        f"| {name} | {nodes[0]} | {nodes[1]} | {len(step.parameters)} | {run.loss} |"
        f" {shown} | {verdict} | {seconds:.1f} |"
    )


def agreement(name: str) -> str:
    """Return a row: the worst gradient, and three live peaks."""
    with tempfile.TemporaryDirectory() as folder:
        errors = gradient_errors(name, Path(folder))
    (theirs, ours), recomputed = live_peaks(name), recomputed_peak(name, 0.6)
    return (
        f"| {name} | {len(errors)} | {max(errors.values()):.1e} | {theirs} | {ours} |"
        f" {ours / theirs:.3f} | {recomputed} | {recomputed / theirs:.3f} |"
    )


def main(names: list[str]) -> None:
    """Print a row for each model."""
    every = [*(path.stem for path in sorted(LIGHT.glob("light_*.onnx"))), *RUNS]
    for name in names or [*MADE_BY_PYTORCH, *every]:
        try:
            row = agreement(name) if name in MADE_BY_PYTORCH else measured(name)
        except Exception as error:  # noqa: BLE001 - the table shows what does not work
            row = f"| {name} | {type(error).__name__}: {str(error)[:150]} |"
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
