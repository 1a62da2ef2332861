"""Decoder caches in place: memory, time and bits of long decode loops.

    PYTHONPATH=tests python -m tests.benchmarks.caches            measure what out/caches lacks
    PYTHONPATH=tests python -m tests.benchmarks.caches NAME...    measure these anew

Each model is written with ``--kv-cache in-place --fold-constants``. Then the original, whose
caches are fed back as values of the runtime, without a copy through numpy, and the written file
under `memplan.Decoder` decode the same seeded tokens in processes of their own; every step's
logits are compared. At the end both take steps with nearly full caches, which are timed; so are the
written file's first steps, whose caches are nearly empty: no cache could make a step faster.
The page is written after each model: rows that were not measured here stay.

Guards the claim of docs/measurements/caches.md: a decoder with caches in place needs less
memory and time per step, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
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

from memplan_cli import Decoder, Settings, api
from memplan_cli.runtime.workers.process_memory import baseline, resident

from .models import SHARED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.report import Report

ROOT = Path(__file__).parents[2]
OUT = ROOT / "out" / "caches"
PAGE = ROOT / "docs" / "measurements" / "caches.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

MIB = 1 << 20

FULL_STEPS = 9
"""Timed steps at the end, the first of which warms up."""

EMPTY_STEPS = 16
"""Timed steps behind the prefill and a first one."""


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

COLUMNS = (
    "model", "capacity", "before", "now", "process before", "process now", "step before, ms",
    "step now, ms", "times faster", "step empty, ms", "at most", "tokens", "bits",
)  # fmt: skip


def main(names: list[str]) -> None:
    """Measure models, and write the page after each."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name in names or [name for name in CASES if not _found(name).exists()]:
        _found(name).write_text(_row(name, CASES[name]))
        print(_found(name).read_text(), end="", flush=True)
        _write_page()
    _write_page()


def _found(name: str) -> Path:
    return OUT / f"{name}.md"


def _write_page() -> None:
    """Write the rows that were measured; of other models, those that the page has."""
    head, rest = PAGE.read_text("utf-8").split(BEGIN)
    before, tail = rest.split(END)
    rows = {line.split(" | ")[0]: f"{line}\n" for line in before.splitlines()}
    rows |= {f"| {name}": _found(name).read_text() for name in CASES if _found(name).exists()}
    lines = [f"| {' | '.join(COLUMNS)} |\n", f"|---|{'---:|' * (len(COLUMNS) - 2)}---|\n"]
    lines += [rows[f"| {name}"] for name in CASES if f"| {name}" in rows]
    PAGE.write_text(f"{head}{BEGIN}\n{''.join(lines)}{END}{tail}", "utf-8")


def _row(name: str, case: Case) -> str:
    with tempfile.TemporaryDirectory(prefix="memplan-caches-") as folder:
        path = _model(name, Path(folder))
        settings = Settings(kv_cache="in-place", capacity=case.capacity, fold_constants=True)
        done = api.optimize(path, settings)
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
        f"{now['empty']:.1f}", f"{before['milliseconds'] / now['empty']:.2f}", len(before["logits"]) - 1, equal,
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
    steps = [_timed(loop, _feed(name, case, at, new)) for at, new in _steps(case)]
    loop.fill(case.capacity - FULL_STEPS)
    full = range(case.capacity - FULL_STEPS, case.capacity)
    last = [_timed(loop, _feed(name, case, at, 1)) for at in full]
    after = resident()
    assert before is not None
    assert after is not None
    print(
        json.dumps(
            {
                "logits": [digest for digest, _ in steps],
                "milliseconds": statistics.median(time for _, time in last[1:]),
                "empty": statistics.median(time for _, time in steps[2 : 2 + EMPTY_STEPS]),
                "process": after.highest - before.now,
            }
        )
    )


def _timed(loop: _Growing | _InPlace, feed: dict[str, Any]) -> tuple[str, float]:
    """Return the digest of a step's logits, and its milliseconds of processor time."""
    start = time.process_time()
    digest = loop.step(feed)
    return digest, 1000 * (time.process_time() - start)


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
        from memplan_cli.loading.metadata import scanned_metadata
        from memplan_cli.onnx_io.caches_metadata import recorded_caches

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
