"""Hostile files for each command: what never ends, what lies about sizes, what is no number."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx.parser
from onnx import TensorProto

from memplan_cli import api

SAMPLES = Path(__file__).parents[2] / "sample_models"
SAMPLE = str(SAMPLES / "branchy_cnn.onnx")
HEAD = '<ir_version: 10, opset_import: ["" : 21, "nobody" : 1]> '
CHAIN = "g (float[{n},4] x) => (float[{n},4] y) {{ a = Relu(x) b = Exp(a) y = Neg(b) }}"
HUGE = "g (float[1099511627776] x) => (float[1099511627776] y) { a = Relu(x) y = Neg(a) }"
SUM = "g (float[2,4] x) => (float y) <float[4,1] w = {1,2,3,4}>"
SUM += " { a = MatMul(x, w) y = ReduceSum<keepdims = 0>(a) }"

Make = Callable[[Path], list[str]]


def _words(folder: Path, words: tuple[str, ...]) -> list[str]:
    return [word.replace("FOLDER", str(folder)) for word in words]


def _model(text: str, *words: str, weights: tuple[TensorProto, ...] = ()) -> Make:
    def make(folder: Path) -> list[str]:
        model = onnx.parser.parse_model(HEAD + text)
        model.graph.initializer.extend(weights)
        onnx.save(model, folder / "m.onnx")
        return _words(folder, words or ("report", "FOLDER/m.onnx"))

    return make


def _dim(text: str) -> Make:
    def make(folder: Path) -> list[str]:
        model = onnx.parser.parse_model(HEAD + CHAIN.format(n="n"))
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
        onnx.save(model, folder / "m.onnx")
        return ["report", str(folder / "m.onnx")]

    return make


def _weight(*copies: TensorProto) -> Make:
    return _model("g (float[2,3] x) => (y) { y = MatMul(x, w) }", weights=copies)


def _w(*dims: int, data: bytes = b"", kind: int = TensorProto.FLOAT) -> TensorProto:
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=data)


def _prepared(prepare: Callable[[Path], object], *words: str) -> Make:
    def make(folder: Path) -> list[str]:
        prepare(folder)
        return _words(folder, words)

    return make


def _file(name: str, content: str, *words: str) -> Make:
    return _prepared(lambda folder: (folder / name).write_text(content), *words)


def _optimize(folder: Path) -> Path:
    out = folder / "o.onnx"
    api.optimize(Path(SAMPLE), out=out, check=None)
    return out


def _plan(change: Callable[[str], str], *words: str) -> Make:
    """Give a command a plan whose text was changed, as ``FOLDER/p.json``."""

    def make(folder: Path) -> list[str]:
        out = _optimize(folder)
        text = change(out.with_suffix(".json").read_text())
        for path in (out, out.with_suffix(".json")):
            path.unlink()
        (folder / "p.json").write_text(text)
        return _words(folder, words)

    return make


def _warning(plan: str, text: str) -> str:
    data = json.loads(plan)
    data["report"]["warnings"].append(text)
    return json.dumps(data)


def _not_utf8(folder: Path) -> list[str]:
    name = folder / os.fsdecode(b"\xff\xfe.onnx")
    name.write_bytes(Path(SAMPLE).read_bytes())
    return ["gate", str(name), "--max-memory", "1KiB"]


def _pipe_and_loop(folder: Path) -> None:
    os.mkfifo(folder / "pipe.onnx")
    (folder / "again").symlink_to(folder)


_OVERFLOW = "".join(f"b{i},0,{2 + i % 3},{9 * 10**17}\n" for i in range(40))
_PRODUCTS = "*".join(f"(a{i} + b{i})" for i in range(40))

CASES: Mapping[str, Make] = {
    "report: a device": lambda _: ["report", "/dev/zero"],
    "report: a pipe": _prepared(lambda f: os.mkfifo(f / "m.onnx"), "report", "FOLDER/m.onnx"),
    "report: a plan that is a device": _prepared(
        lambda f: (f / "p.json").symlink_to("/dev/zero"), "report", "FOLDER/p.json"
    ),
    "report: 12 MB of weights in 4 bytes": _weight(_w(3, 1 << 20, data=b"1234")),
    "report: a weight longer than its dims": _weight(_w(3, 1, data=bytes(1 << 16))),
    "report: a weight with a negative dim": _weight(_w(3, -5, data=b"1234")),
    "report: a weight of 2**66 bytes": _weight(_w(3, 1 << 62, 4)),
    "report: a weight that is there twice": _weight(_w(3, 1), _w(3, 4)),
    "report: a weight of type 999": _weight(_w(3, 1, kind=999)),
    "report: a dim of 2**40 products": _dim(_PRODUCTS),
    "report: a dim of 6,000 digits": _dim("9" * 6000),
    "report: a dim in 5,000 brackets": _dim("(" * 5000 + "n" + ")" * 5000),
    "report: tiled to 2**63": _model(
        "g (float[2] x) => (y) <int64[1] k = {4611686018427387904}>"
        " { a = Tile(x, k) b = Neg(a) y = Exp(b) }"
    ),
    "report: a shape below zero": _model(
        CHAIN.format(n="n"), "report", "FOLDER/m.onnx", "--shape", "x=-3,4"
    ),
    "report: a dim bound to 5,000 digits": _model(
        CHAIN.format(n="n"), "report", "FOLDER/m.onnx", "--dim", f"n={'9' * 5000}"
    ),
    "report: half a character in a plan": _plan(
        lambda text: text.replace("stem_relu", "\\ud800"), "report", "FOLDER/p.json"
    ),
    "report: a number of 4,000 digits in a plan": _plan(
        lambda text: text.replace('"bytes": ', f'"bytes": {"9" * 4000}', 1),
        "report",
        "FOLDER/p.json",
    ),
    "report: endless settings": lambda _: ["report", SAMPLE, "--config", "/dev/zero"],
    "report: TOML with a number of 5,000 digits": _file(
        "pyproject.toml",
        f"[tool.memplan]\nlevel = {'9' * 5000}\n",
        *("report", SAMPLE, "--config", "FOLDER/pyproject.toml"),
    ),
    "gate: a tensor declared 512 times too small": _model(
        CHAIN.format(n="512").replace(") {", ") <float[1,4] a, float[1,4] b> {"),
        *("gate", "FOLDER/m.onnx", "--max-memory", "1KiB"),
    ),
    "gate: a baseline that is a pipe": _prepared(
        lambda f: os.mkfifo(f / "b.json"), "gate", SAMPLE, "--baseline", "FOLDER/b.json"
    ),
    "gate: a baseline of deep JSON": _file(
        "b.json", "[" * 100_000, "gate", SAMPLE, "--baseline", "FOLDER/b.json"
    ),
    "gate: a budget of 5,000 digits": lambda _: ["gate", SAMPLE, "--max-memory", "9" * 5000],
    "gate: a plan that lies about its height": _plan(
        lambda text: text.replace('"planned": ', '"planned": 1', 1),
        *("gate", "FOLDER/p.json", "--max-memory", "1KiB"),
    ),
    "gate: a plan whose warnings steer the terminal": _plan(
        lambda text: _warning(text, "\x1b[2J\x07::error::"),
        *("gate", "FOLDER/p.json", "--max-memory", "1GiB"),
    ),
    "gate: a file name that is no text": _not_utf8,
    "validate: a plan in place of a model": _plan(str, "validate", "FOLDER/p.json"),
    "validate: the model of another original": _prepared(
        _optimize, "validate", "FOLDER/o.onnx",
        *("--original", str(SAMPLES / "nested_if_loop.onnx")),
    ),
    "validate: a tolerance that is no number": lambda _: [
        "validate", SAMPLE, "--original", SAMPLE, "--rtol", "nan"
    ],
    "optimize: a time-out that is no number": lambda _: ["optimize", SAMPLE, "--timeout", "nan"],
    "optimize: 4 TiB to be run": _model(HUGE, "optimize", "FOLDER/m.onnx"),
    "diff: a folder": lambda folder: ["diff", SAMPLE, str(folder)],
    "why: a tensor of 100,000 characters": lambda _: ["why", SAMPLE, "--tensor", "x" * 100_000],
    "fit: a memory of 300 digits": _model(
        CHAIN.format(n="n"), "fit", "FOLDER/m.onnx", "--memory", "9" * 300, "--dim", "n=?"
    ),
    "settings: an operator that nobody knows": _model(
        "g (float[4] x) => (float[4] y) { a = nobody.Foo(x) y = Neg(a) }",
        *("settings", "FOLDER/m.onnx"),
    ),
    "simulate: an operator that nobody knows": _model(
        "g (float[4] x) => (float[4] y) { a = nobody.Foo(x) y = Neg(a) }",
        *("simulate", "FOLDER/m.onnx"),
    ),
    "train-step: a loss that nothing computes": _model(
        SUM, "train-step", "FOLDER/m.onnx", "-o", "FOLDER/t.onnx", "--loss", "\x1b[2J",
        *("--optimizer", "sgd"),
    ),
    "train-step: a decay that is no number": _model(
        SUM, "train-step", "FOLDER/m.onnx", "-o", "FOLDER/t.onnx", "--loss", "y",
        *("--optimizer", "adamw", "--weight-decay", "nan"),
    ),
    "train-step: over its own model": _model(
        SUM, "train-step", "FOLDER/m.onnx", "-o", "FOLDER/m.onnx", "--loss", "y",
        *("--optimizer", "sgd"),
    ),
    "pack: an endless file": lambda _: ["pack", "/dev/zero"],
    "pack: sizes that come to more than 2**63": _file(
        "p.csv", f"id,lower,upper,size\n{_OVERFLOW}", "pack", "FOLDER/p.csv"
    ),
    "pack: an id that steers the terminal": _file(
        "p.csv", "id,lower,upper,size\n\x1b[2J,0,one,4\n", "pack", "FOLDER/p.csv"
    ),
    "sweep: a pipe and a loop": _prepared(_pipe_and_loop, "sweep", "FOLDER", "--jobs", "1"),
    "sweep: rows that are a model": _prepared(
        lambda f: (f / "r.onnx").write_bytes(b"\x08\x0a" * 99),
        *("sweep", SAMPLE, "--jobs", "1", "--resume", "FOLDER/r.onnx"),
    ),
}  # fmt: skip
