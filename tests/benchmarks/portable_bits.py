"""Say at which level of the runtime's optimisation a model's bits change, and by which fusions.

    PYTHONPATH=tests:tests/e2e python -m tests.benchmarks.portable_bits [MODEL...]

The original under each level, the portable file as it stands and as `memplan_cli.load` runs it, and the
original under the defaults without one fusion at a time. Equal letters are equal bits.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime as ort

from memplan_cli import Check, Settings, optimize
from memplan_cli.runtime.loading import load_session
from memplan_cli.runtime.workers.inputs import draw_all

from . import process_held_out as held_out
from .process_child import digest, one_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
FUSIONS = (
    "AttentionFusion", "BiasGeluFusion", "FastGeluFusion", "GeluFusionL2", "GemmActivationFusion",
    "LayerNormFusion", "MatMulAddFusion", "MatMulScaleFusion", "MatmulTransposeFusion",
    "QuickGeluFusion", "SkipLayerNormFusion",
)  # fmt: skip


def session(path: Path, level: str, without: Sequence[str] = ()) -> ort.InferenceSession:
    options = one_thread()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    return ort.InferenceSession(
        str(path), options, ["CPUExecutionProvider"], disabled_optimizers=list(without)
    )


def found(name: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what was run, and the digest of its outputs."""
    outside, model, out = (folder / f"{word}.onnx" for word in ("outside", "net", "out"))
    held_out.fill(name, outside)
    onnx.save(onnx.load(outside), model)
    trial = held_out.trial_of(name, model)
    assert trial.specs is not None
    feed = dict(draw_all(trial.specs))
    optimize(model, Settings(dims=dict(trial.dims)), out=out, check=Check("cpu"))
    for level in LEVELS:
        yield f"original, {level}", digest(session(model, level).run(None, feed))
    yield "written, as it stands", digest(session(out, LEVELS[0]).run(None, feed))
    yield "written, as load runs it", digest(load_session(out, one_thread()).run(None, feed))
    for fusion in FUSIONS:
        run = session(model, LEVELS[-1], [fusion]).run(None, feed)
        yield f"original, defaults without {fusion}", digest(run)


def main(names: list[str]) -> None:
    for name in names or ["messy_gpt_cache_dynamo"]:
        letters: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            for what, bits in found(name, Path(folder)):
                letter = letters.setdefault(bits, chr(ord("A") + len(letters)))
                print(f"{name}: {what}: {letter}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
