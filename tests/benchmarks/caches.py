"""Decoder caches in place: memory, time and bits of long decode loops.

    PYTHONPATH=tests python -m tests.benchmarks.caches [NAME]...

Each model is written with ``--kv-cache in-place --fold-constants``. Then the original, whose
caches are fed back as values of the runtime, without a copy through numpy, and the written file
under `memplan.Decoder` decode the same seeded tokens in processes of their own; every step's
logits are compared. At the end both take steps with nearly full caches, which are timed.
Without names, the table of all models is written to docs/measurements/caches.md; with names, rows
are printed.
"""

from __future__ import annotations

import hashlib
import json
import platform
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from memplan_cli import Decoder, Settings, workflows
from memplan_cli.runtime.workers.process_memory import baseline, resident

from .models import SHARED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.report import Report

TABLE = Path(__file__).parents[2] / "docs" / "measurements" / "caches.md"

MIB = 1 << 20

FULL_STEPS = 9
"""Timed steps at the end, the first of which warms up."""


@dataclass(frozen=True)
class Case:
    """A model, the entries that its caches hold, and the tokens that are compared."""

    capacity: int
    tokens: int
    words: int


CASES: Mapping[str, Case] = {
    "llama_1b_dyn": Case(4096, 500, 32000),
    "llama_like": Case(4096, 500, 8000),
    "gpt2_like": Case(1024, 500, 50257),
    "whisper_tiny_like": Case(448, 430, 51865),
}

WORDS = """# Caches in place

`PYTHONPATH=tests python -m tests.benchmarks.caches`; onnxruntime {ort}, onnx {onnx}, {machine}, CPU,
one thread, two shared cores. MiB are 2^20 bytes.

`optimize MODEL --kv-cache in-place --capacity N --fold-constants`. "before" and "now" are inputs +
outputs + planned bytes of the step that fills the caches, by the plans of both files. "process" is
resident memory beyond that of the loaded session, at its highest in all steps, the last of which
have nearly full caches (the original's outputs are fed back without a copy through numpy), "step" the median
processor time of these; "tokens" were decoded by both from the empty cache on, after a prefill of 8, and the logits of every step
compared.

| model | capacity | before | now | process before | process now | step before, ms | step now, ms | times faster | tokens | bits |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|
"""

AFTER = """
`llama_1b_dyn` is the shared graph of a Llama of 1.2 billion parameters (16 layers, 32 heads over 8 for
keys and values) with seeded weights; its 250 MiB of transposed head are folded, without which they
are planned on both sides. `llama_like` (2 layers of the same 32 heads over 8), `gpt2_like` (12 layers, 12 heads of 64, 50,257 words) and
`whisper_tiny_like` (4 layers, 6 heads of 64, 51,865 words, cross-attention over 1,500 frames) are
graphs built by `tests/cache_models.py` in the published sizes, not exported files.

Resident memory has the rows of embeddings in it that the tokens touched, as pages of the file: about 200 MiB of the large
Llama's on both sides.

What falls short: without groups of heads (`gpt2_like`) a step is no faster, and its plan is larger. There
is little to win: of a step of 1,024 entries the products with 0.5 GB of weights take nine tenths, Concat an eighth, and
Slice copies as many bytes. One copy for each head, of the buffer seen as rows without an end, took as long.
Keys read whole, with the scores cut to what is valid, gave the same bits at every length
tried and would save half of these copies, but a prefill would compute scores of the whole capacity. Values
read whole, with zeros behind the probabilities, gave other bits where the length is 3 more than a multiple of 4: the
runtime's product adds four terms at a time, then two, then one. The machine was busy with other work. Valid entries are cut out of the buffer before they are multiplied, which copies one layer's
keys and values a step. `Attention` with `nonpad_kv_seqlen` needs no such copy, and was measured
and left: it computes the whole capacity whatever is valid (a layer of 32 heads over 8, 4,096
entries: 1.8 ms at 37 valid ones where the cut takes 0.04, 2.3 against 2.3 at 4,000), and at 6 entries its
bits differed. Nothing was measured on CUDA, and no model with caches inside an If (merged decoders) is rewritten.
"""


def main(names: list[str]) -> None:
    """Measure models, and write the table if all were."""
    rows = [_row(name, CASES[name]) for name in names or CASES]
    head = WORDS.format(ort=ort.__version__, onnx=onnx.__version__, machine=platform.machine())
    text = head + "".join(rows) + AFTER
    if names:
        print("".join(rows))
    else:
        TABLE.write_text(text, encoding="utf-8")


def _row(name: str, case: Case) -> str:
    with tempfile.TemporaryDirectory(prefix="memplan-caches-") as folder:
        path = _model(name, Path(folder))
        settings = Settings(kv_cache="in-place", capacity=case.capacity, fold_constants=True)
        done = workflows.optimize(path, settings)
        assert done.model is not None
        before = _child("original", path, name, done.model)
        now = _child("written", done.model, name, done.model)
    return _written(name, done.plan.report, before, now)


def _written(
    name: str, report: Report, before: Mapping[str, Any], now: Mapping[str, Any]
) -> str:
    first, last = _planned(report)
    equal = "equal" if before["logits"] == now["logits"] else "DIFFERENT"
    faster = before["milliseconds"] / now["milliseconds"]
    cells = (
        name, CASES[name].capacity, first, last, _mib(before["process"]), _mib(now["process"]),
        f"{before['milliseconds']:.1f}", f"{now['milliseconds']:.1f}", f"{faster:.2f}",
        len(before["logits"]) - 1, equal,
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |\n"


def _planned(report: Report) -> tuple[str, str]:
    """Return inputs, outputs and plan of both files."""
    before, memory = report.caches.before, report.memory
    assert before is not None
    outputs = (memory.outputs or 0) - report.caches.bytes
    now = memory.inputs or 0, outputs, memory.planned or 0
    return tuple(" + ".join(map(_mib, parts)) for parts in (before, now))  # type: ignore[return-value]


def _mib(size: int) -> str:
    return f"{size / MIB:.0f}" if size >= MIB else f"{size / MIB:.1f}"


def _model(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if name == "llama_1b_dyn":
        filling = runpy.run_path(str(SHARED / "fill_weights.py"))
        filling["fill"](SHARED / f"{name}.onnx", str(path))
        return path
    from cache_models import Shape, decoder

    like = {
        "gpt2_like": Shape(12, 12, 1, 64, words=50257, whole=True),
        "llama_like": Shape(2, 8, 4, 64, words=8000, whole=True),
        "whisper_tiny_like": Shape(4, 6, 1, 64, words=51865, whole=True, crossed=True),
    }[name]
    model = decoder(like)
    onnx.save(model, path, save_as_external_data=True, location=f"{name}.data")
    return path


def _child(way: str, path: Path, name: str, written: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.benchmarks.caches", "--child", way]
    done = subprocess.run(
        [*command, str(path), name, str(written)], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def child(way: str, path: Path, name: str, written: Path) -> None:
    """Decode, and print what was seen."""
    case = CASES[name]
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    loop = (_Growing if way == "original" else _InPlace)(path, options, written)
    before = baseline()
    logits = [loop.step(_feed(name, case, at, new)) for at, new in _steps(case)]
    loop.fill(case.capacity - FULL_STEPS)
    times = []
    for at in range(case.capacity - FULL_STEPS, case.capacity):
        feed = _feed(name, case, at, 1)
        start = time.process_time()
        loop.step(feed)
        times.append(1000 * (time.process_time() - start))
    after = resident()
    assert before is not None
    assert after is not None
    print(
        json.dumps(
            {
                "logits": logits,
                "milliseconds": statistics.median(times[1:]),
                "process": after.highest - before.now,
            }
        )
    )


def _steps(case: Case) -> list[tuple[int, int]]:
    return [(0, 8), *((8 + at, 1) for at in range(case.tokens))]


def _feed(name: str, case: Case, past: int, new: int) -> dict[str, Any]:
    rng = np.random.default_rng([7, past])
    ids = rng.integers(0, case.words, (1, new))
    if name != "llama_1b_dyn":
        heard = {}
        if name.startswith("whisper") and past == 0:
            for each in (f"{kind}{layer}_past" for kind in "cd" for layer in range(4)):
                heard[each] = rng.standard_normal((1, 6, 1500, 64), dtype=np.float32)
        return {"ids": ids, **heard}
    mask = np.triu(np.full((new, past + new), -1e9, np.float32), past + 1)
    places = np.arange(past, past + new)[None]
    return {"input_ids": ids, "position_ids": places, "mask": mask[None, None]}


class _Growing:
    """The loop of the original's user."""

    def __init__(self, path: Path, options: Any, written: Path) -> None:  # noqa: ANN401
        from memplan_cli.onnx_io.caches.note import recorded_caches
        from memplan_cli.onnx_io.scan import scanned_metadata

        self.session = ort.InferenceSession(str(path), options)
        self.shapes = {value.name: value.shape for value in self.session.get_inputs()}
        caches = recorded_caches(scanned_metadata(written))
        assert caches is not None
        self.caches = caches
        self.state: dict[str, Any] = {}
        self.fill(0)

    def fill(self, length: int) -> None:
        for each in self.caches.growing:
            shape = [dim if isinstance(dim, int) else 1 for dim in self.shapes[each.input]]
            shape[each.axis] = length
            self.state[each.input] = ort.OrtValue.ortvalue_from_numpy(
                np.full(shape, 0.01, np.float32)
            )

    def step(self, feed: dict[str, Any]) -> str:
        given = {name: ort.OrtValue.ortvalue_from_numpy(a) for name, a in feed.items()}
        binding = self.session.io_binding()
        for name, value in {**self.state, **given}.items():
            binding.bind_ortvalue_input(name, value)
        names = [value.name for value in self.session.get_outputs()]
        for name in names:
            binding.bind_output(name)
        self.session.run_with_iobinding(binding)
        values = dict(zip(names, binding.get_outputs(), strict=True))
        self.state = {each.input: values[each.output] for each in self.caches.buffers}
        return _digest(values["logits"].numpy())


class _InPlace:
    """The loop of the written file's user."""

    def __init__(self, path: Path, options: Any, written: Path) -> None:  # noqa: ANN401
        del written
        self.decoder = Decoder(path, options)

    def fill(self, length: int) -> None:
        # Pages that nobody wrote are one page of zeros: they take nothing, and are read fast.
        buffers = self.decoder._buffers
        for each in self.decoder.caches.growing:
            full = np.full(buffers[each.input].shape(), 0.01, np.float32)
            buffers[each.input] = ort.OrtValue.ortvalue_from_numpy(full)
        self.decoder.position = length

    def step(self, feed: dict[str, Any]) -> str:
        return _digest(self.decoder.step(feed)["logits"])


def _digest(array: np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], Path(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
    else:
        main(sys.argv[1:])
