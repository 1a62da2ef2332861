"""Requests of changing size: what processes take under the defaults, our settings and others.

    python -m tests.benchmarks.serving                  measure what out/serving lacks
    python -m tests.benchmarks.serving --only NAME...   measure these anew
    python -m tests.benchmarks.serving --only bert_base_dyn --requests 1000 --seconds 7200

Each model serves seeded requests of random size by `soak`, a process for each configuration,
in one thread; then each configuration serves the largest request alone. Stripped weights are
filled with seeded ones first. The page is written after each model: its rows are those in
out/serving, and those that it had where there are none.

Guards the claim of docs/measurements/serving.md: the memory of a server under `--bounds`, and
the printed bound of its arena.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.utils
from onnx import TensorProto, helper

from memplan_cli.api.request_range import service_of
from memplan_cli.api.soak import soak
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.features.serving.report import SOAK
from memplan_cli.features.serving.soak import RequestSequence, serve
from memplan_cli.settings.settings import Settings

from .chunking_models import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def _conv(add: Writer, x: str, widths: tuple[int, int], size: int = 3, stride: int = 1) -> str:
    read, made = widths
    return add(
        "Conv",
        x,
        add.matrix(made, read, size, size),
        add.zeros(made),
        kernel_shape=(size, size),
        pads=(size // 2,) * 4,
        strides=(stride, stride),
    )


def _block(add: Writer, x: str, widths: tuple[int, int], stride: int = 1) -> str:
    return add("Relu", _conv(add, x, widths, 3, stride))


def _silu(add: Writer, x: str, widths: tuple[int, int], stride: int = 1) -> str:
    y = _conv(add, x, widths, 3, stride)
    return add("Mul", y, add("Sigmoid", y))


def _enlarged(add: Writer, x: str, like: str) -> str:
    """Return an image as large as another one, of its own channels."""
    channels = add("Shape", x, start=0, end=2)
    sizes = add("Concat", channels, add("Shape", like, start=2, end=4), axis=0)
    return add("Resize", x, "", "", sizes, mode="nearest")


def unet(path: Path) -> None:
    """Three times smaller and three times larger, two convolutions each, of 16 to 128 channels."""
    add, x, before = Writer(), "image", 3
    left: list[tuple[str, int]] = []
    for width in (16, 32, 64):
        x = _block(add, _block(add, x, (before, width)), (width, width))
        left.append((x, width))
        x = add("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
        before = width
    x = _block(add, _block(add, x, (before, 128)), (128, 128))
    before = 128
    for skip, width in reversed(left):
        x = add("Concat", skip, _enlarged(add, x, skip), axis=1)
        x = _block(add, _block(add, x, (before + width, width)), (width, width))
        before = width
    masks = add("Sigmoid", _conv(add, x, (before, 2), 1))
    add.save(path, {"image": (1, 3, "height", "width")}, masks)


def detector(path: Path) -> None:
    """A backbone of five strides, features joined from the smallest up, and boxes of three."""
    add, x, before = Writer(), "image", 3
    levels: list[tuple[str, int]] = []
    for width in (16, 32, 64, 96, 128):
        x = _silu(add, x, (before, width), 2)
        x = add("Add", x, _silu(add, x, (width, width)))
        levels.append((x, width))
        before = width
    joined, (top, wide) = [], levels[-1]
    joined.append(_silu(add, top, (wide, 64)))
    for level, width in reversed(levels[2:4]):
        larger = _enlarged(add, joined[-1], level)
        joined.append(_silu(add, add("Concat", larger, level, axis=1), (64 + width, 64)))
    rows = []
    for each in joined:
        boxes = _conv(add, each, (64, 85), 1)
        flat = add("Reshape", boxes, add.shape(0, 85, -1))
        rows.append(add("Transpose", flat, perm=(0, 2, 1)))
    found = add("Sigmoid", add("Concat", *rows, axis=1))
    add.save(path, {"image": (1, 3, "height", "width")}, found)


def recognizer(path: Path, hidden: int = 64, letters: int = 97) -> None:
    """Convolutions of a line 32 pixels high to one row, two LSTMs, and a letter for each column."""
    add, x, before = Writer(), "line", 1
    for width, pool in ((32, 2), (64, 2), (128, 1), (128, 1)):
        x = _block(add, x, (before, width))
        x = add("MaxPool", x, kernel_shape=(2, pool), strides=(2, pool))
        before = width
    x = add("ReduceMean", x, add.shape(2), keepdims=0)
    x, read = add("Transpose", x, perm=(2, 0, 1)), before
    for _ in range(2):
        x = add(
            "LSTM",
            x,
            add.matrix(2, 4 * hidden, read),
            add.matrix(2, 4 * hidden, hidden),
            hidden_size=hidden,
            direction="bidirectional",
        )
        x = add("Transpose", x, perm=(0, 2, 1, 3))
        x, read = add("Reshape", x, add.shape(0, 0, 2 * hidden)), 2 * hidden
    scores = add("Add", add("MatMul", x, add.matrix(read, letters)), add.zeros(letters))
    add.save(path, {"line": ("batch", 1, 32, "width")}, add("Softmax", scores, axis=-1))


def gru_loop(path: Path, hidden: int = 128, letters: int = 400) -> None:
    """A Loop of as many turns as the input is long, one step of a GRU and its logits in each."""
    add, body = Writer(), Writer()
    body.rng = np.random.default_rng(1)
    now = body("Gather", "series", "turn", axis=1)
    step = body(
        "GRU",
        body("Unsqueeze", now, body.shape(0)),
        body.matrix(1, 3 * hidden, hidden),
        body.matrix(1, 3 * hidden, hidden),
        "",
        "",
        "state",
        hidden_size=hidden,
    )
    last = body("Squeeze", step, body.shape(1))
    row = body("Squeeze", last, body.shape(0))
    logits = body("MatMul", row, body.matrix(hidden, letters))
    body.nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        body.nodes,
        "turn_body",
        [
            value("turn", TensorProto.INT64, ()),
            value("go", TensorProto.BOOL, ()),
            value("state", TensorProto.FLOAT, (1, "batch", hidden)),
        ],
        [
            value("on", TensorProto.BOOL, ()),
            value(last, TensorProto.FLOAT, (1, "batch", hidden)),
            value(logits, TensorProto.FLOAT, ("batch", letters)),
        ],
        body.weights,
    )
    wide = add("MatMul", "frames", add.matrix(40, hidden))
    add.nodes.append(helper.make_node("Tanh", [wide], ["series"]))
    batch = add("Shape", "frames", start=0, end=1)
    shape = add("Concat", add.shape(1), batch, add.shape(hidden), axis=0)
    zeros = add("Expand", add.number(0.0), shape)
    turns = add("Squeeze", add("Shape", "frames", start=1, end=2))
    outputs = ["last", "steps"]
    add.nodes.append(
        helper.make_node("Loop", [turns, "", zeros], outputs, "turns", body=graph)
    )
    add.save(path, {"frames": ("batch", "length", 40)}, add("Softmax", "steps", axis=-1))


WRITTEN: Mapping[str, Callable[[Path], None]] = {
    "unet": unet,
    "detector": detector,
    "recognizer": recognizer,
    "gru_loop": gru_loop,
}
"""Models that no folder holds, each by what writes it."""


ROOT = Path(__file__).parents[2]
MODELS = ROOT.parent / "shared" / "models"
OUT = ROOT / "out" / "serving"
PAGE = ROOT / "docs" / "measurements" / "serving.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the bounds of its requests' dims, and how long each configuration may take.

    Attributes:
        path: in the folder of models; written where there is none.
        bounds: of the requests' dims.
        requests, seconds: how many, and after how long none is begun.
        until: the value that becomes the model's one output; the file's own outputs without.
    """

    path: str
    bounds: Mapping[str, tuple[int, int]]
    requests: int = 1000
    seconds: float = 240.0
    until: str = ""


_TEXT = {"batch": (1, 8), "seq": (8, 512)}

CASES: Mapping[str, Case] = {
    "distilbert_ts": Case("messy/distilbert_ts.onnx", _TEXT, seconds=600),
    "unet": Case("", {"height": (64, 192), "width": (64, 192)}),
    "detector": Case("", {"height": (64, 320), "width": (64, 320)}),
    "segformer_ts": Case("messy/segformer_ts.onnx", {"height": (64, 256), "width": (64, 256)}),
    "recognizer": Case("", {"batch": (1, 4), "width": (32, 640)}),
    "gru_loop": Case("", {"batch": (1, 4), "length": (8, 512)}),
    "gru_decoder_ts": Case("messy/gru_decoder_ts.onnx", {"batch": (1, 8), "seq": (8, 256)}),
    "bert_base_layer": Case("bert_base_dyn.onnx", _TEXT, seconds=900, until="layer_norm_2"),
    "bert_base_dyn": Case("bert_base_dyn.onnx", _TEXT, 60, 900),
}
"""By name; those without a path are written. A layer of BERT-base, whose live peak is that of all
twelve, serves the thousand requests that take all twelve an hour under each configuration."""

_ALONE = 3
"""Times that the largest request is served alone."""


def main() -> None:
    """Measure what is asked for, and write the page after each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(CASES))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    asked = {"requests": arguments.requests, "seconds": arguments.seconds}
    changed = {key: value for key, value in asked.items() if value is not None}
    OUT.mkdir(parents=True, exist_ok=True)
    for name in arguments.only or [name for name in CASES if not _found(name).exists()]:
        measured = _measured(name, replace(CASES[name], **changed))
        _found(name).write_text(json.dumps(measured))
        print(name, measured["passed"], flush=True)
        _write_page()
    _write_page()


def _found(name: str) -> Path:
    return OUT / f"{name}.json"


def _measured(name: str, case: Case) -> Any:  # noqa: ANN401 - JSON
    path = _model(name, case)
    # The other configurations get as many requests, and may take longer for them.
    timeout = 2 * case.seconds + 120
    bounds = {name: DimRange(*ends) for name, ends in case.bounds.items()}
    settings = Settings(bounds=bounds)
    found = soak(path, settings, requests=case.requests, seconds=case.seconds, timeout=timeout)
    service, _ = service_of(path, settings, timeout)
    largest = RequestSequence((service.extent.largest,) * _ALONE, case.seconds)
    runs = serve(service, largest, {run.name: run.settings for run in found.runs})
    alone = {run.name: run.highest for run in runs}
    return {**json.loads(SOAK["json"](found)), "alone": alone}


def _model(name: str, case: Case) -> Path:
    path = OUT / f"{name}.onnx"
    if not case.path:
        WRITTEN[name](path)
        return path
    source = MODELS / case.path
    if case.path.startswith("messy/"):
        return source
    if case.until:
        whole, source = onnx.load(source, load_external_data=False), OUT / f"{name}.empty.onnx"
        inputs = [value.name for value in whole.graph.input]
        onnx.save(onnx.utils.Extractor(whole).extract_model(inputs, [case.until]), source)
    command = [sys.executable, str(MODELS / "fill_weights.py"), str(source), str(path)]
    subprocess.run(command, check=True)
    return path


def _write_page() -> None:
    """Write rows of what was measured; of other models, those that the page has."""
    text = PAGE.read_text("utf-8")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    old = text[len(head) + len(BEGIN) : -len(END) - len(tail)].strip().split("\n\n")
    found = {n: json.loads(_found(n).read_text()) for n in CASES if _found(n).exists()}
    tables = [
        _merged(list(new), before.splitlines())
        for new, before in zip((_bounds(found), _rows(found)), old, strict=True)
    ]
    PAGE.write_text(f"{head}{BEGIN}\n" + "\n".join(tables) + f"{END}{tail}", "utf-8")


def _merged(new: list[str], before: list[str]) -> str:
    """Return a table, model by model, each with its new rows or those of before."""
    lines = new[:2]
    for name in CASES:
        start = f"| {name} |"
        rows = [[row for row in table if row.startswith(start)] for table in (new, before)]
        lines += rows[0] or rows[1]
    return "".join(f"{line}\n" for line in lines)


def _bounds(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| model | sizes | simulated | requests | live peak, MB | bound, MB | bound / live | "
        "held, MB |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, one in found.items():
        serving = one["serving"]
        sizes = ", ".join(f"{dim} {low}-{high}" for dim, (low, high) in one["bounds"].items())
        (held,) = (c["held"] for c in one["configurations"] if c["name"] == "chosen")
        bound, live = serving["bound"], serving["live_peak"]
        yield (
            f"| {name} | {sizes} | {serving['sizes_simulated']:,} of {serving['sizes']:,} | "
            f"{one['requests']['served']:,} | {_mb(live)} | {_mb(bound)} | "
            f"{'-' if bound is None else f'{bound / live:.2f}'} | {_mb(held)} |"
        )


def _rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| model | settings | growth, MB | highest, MB | alone, MB | highest / least alone | "
        "median, ms | 99th percentile, ms | CPU median, ms | CPU / defaults |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, one in found.items():
        base = one["configurations"][0]["milliseconds"]["cpu"]
        alone = one.get("alone", {})
        least = min(alone.values(), default=None)
        for course in one["configurations"]:
            times, highest = course["milliseconds"], course["highest"]
            share = "-" if least is None else f"{highest / least:.2f}"
            yield (
                f"| {name} | {course['name']} | {_mb(course['growth'])} | "
                f"{_mb(highest)} | {_mb(alone.get(course['name']))} | "
                f"{share} | {times['median']:.2f} | {times['p99']:.2f} | "
                f"{times['cpu']:.2f} | {times['cpu'] / base:.2f} |"
            )


def _mb(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:.2f}"


if __name__ == "__main__":
    main()
