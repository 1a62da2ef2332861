"""Hold the predicted process of a model against the one observed.

    python -m tests.benchmarks.process_prediction [--of SET] [--runs N] [--no-page] [MODEL...]

Each model with seeded weights, on the CPU provider with one thread, under the
runtime's defaults and as memplan's settings have it (optimization off, the file's order, no
pattern, no reuse). Nothing of a prediction is run but what data decides. Rows are kept in
``out/process_prediction/`` and not measured again.

``--of shared``: the shared collection, weights beside the file. ``--of held-out``: models that no
constant was picked on, with weights in them: models of the onnx package, the exporters' own of the
shared collection, the samples, and drawn nets.
Without models, sums go into docs/measurements/process_prediction.md.

Guards the claim of docs/measurements/process_prediction.md: the predicted memory of a process is within
2 % or 2 MB of the observed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collection_inputs import specs_from_json
from memplan_cli.core.bindings import Binding
from memplan_cli.core.deserialization import from_json
from memplan_cli.core.results.observations import ProcessBytes, RuntimeSettings
from memplan_cli.errors import MemplanError
from memplan_cli.onnx_io.weights.stored import stored_model
from memplan_cli.runtime.process.parts import PredictedProcess  # noqa: TC001 - rows are read
from memplan_cli.runtime.process.predict import simulate_process
from memplan_cli.runtime.run.run_model import process_of_run
from memplan_cli.runtime.settings_search.model_prediction import (
    executed_or_observed_graph,
)
from memplan_cli.runtime.simulate.predict import ARENA_REUSE_ONLY
from memplan_cli.runtime.workers.spec import RunConditions
from shared_models import with_random_weights

from .models import DIMS, LIGHT, ROOT, SAMPLES, SHARED
from .pages import write_full_table
from .prediction import fill, trial_of
from .runtime_settings import dims_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OUT = ROOT / "out" / "process_prediction"
PAGE = ROOT / "docs" / "measurements" / "process_prediction.md"

TOO_LARGE = {
    "llama_1b_dyn",
    "lstm_unrolled_512x2",
    "sd15_unet",
    "train_bert_small_adam",
    "train_bert_small_dropout_adam",
    "train_gpt2_small_adam",
    "train_lstm_unrolled_128x2",
}
"""Gigabytes, or minutes a run."""

WAYS = {
    "defaults": RuntimeSettings(),
    "settings": ARENA_REUSE_ONLY.updated(
        RuntimeSettings(session_config={"session.use_device_allocator_for_initializers": "1"})
    ),
}
NUMBERS = ("load", "run", "private")
SHARE, BYTES = 0.02, 2_000_000
"""What is asked: within one of both."""


@dataclass(frozen=True)
class Row:
    """One model under some settings."""

    model: str
    way: str
    predicted: PredictedProcess | None
    observed: tuple[ProcessBytes, ...]

    def middle(self, name: str) -> int:
        return int(median(getattr(each, name) for each in self.observed))

    def is_near(self, name: str) -> bool:
        """Whether the prediction is as near as is asked to what some run took."""
        if self.predicted is None:
            return False
        found = getattr(self.predicted.process, name)
        seen = [getattr(each, name) for each in self.observed]
        low, high = min(seen), max(seen)
        room = max(SHARE * self.middle(name), BYTES)
        return bool(low - room <= found <= high + room)

    @property
    def good(self) -> bool:
        return all(map(self.is_near, NUMBERS))

    def cells(self) -> Iterator[str]:
        yield from (self.model, self.way)
        for name in NUMBERS:
            seen = [getattr(each, name) for each in self.observed]
            spread = f" ({megabytes(min(seen))} - {megabytes(max(seen))})"
            wide = max(seen) - min(seen) > SHARE * self.middle(name)
            predicted = "-"
            if self.predicted is not None:
                predicted = megabytes(getattr(self.predicted.process, name))
            yield predicted if self.is_near(name) else f"**{predicted}**"
            yield megabytes(self.middle(name)) + (spread if wide else "")
        yield "yes" if self.good else "no"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.1f}"


def names(chosen: str) -> list[str]:
    if chosen == "held-out":
        return held_out_names()
    found = {path.stem for path in SHARED.glob("*.onnx")} - TOO_LARGE
    return sorted(found)


def prepared(name: str, model: Path) -> RunConditions:
    """Write a model with weights; say how it is run."""
    if name in held_out_names():
        fill_held_out(name, model)
        return held_out_trial(name, model)
    fill(name, model)
    plain = trial_of(name, model, 900)
    return replace(plain, timeout=900)


DRAWN = tuple(f"drawn_{kind}_{seed}" for kind in ("conv", "matmul") for seed in range(4))
"""Drawn nets: convolutions or products of a drawn width and number. Those of an even number have
their weights in the model file, the others beside it."""


def held_out_names() -> list[str]:
    """Return the names of the held-out models, small ones first."""
    messy = sorted(f"messy_{path.stem}" for path in SHARED.glob("messy/*.onnx"))
    samples = sorted(path.stem for path in SAMPLES.glob("*.onnx"))
    light = sorted(path.stem for path in LIGHT.glob("*.onnx"))
    return [*samples, *messy, *DRAWN, *light]


def fill_held_out(name: str, target: Path) -> None:
    """Write a held-out model with weights."""
    if name in DRAWN:
        _, kind, seed = name.split("_")
        _write_drawn(kind, int(seed), target)
    elif name.startswith("messy_"):
        source = SHARED / "messy" / f"{name.removeprefix('messy_')}.onnx"
        command = [sys.executable, str(SHARED / "fill_weights.py"), str(source), str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elif name.startswith("light_"):
        with_random_weights(LIGHT / f"{name}.onnx", target)
    else:
        shutil.copy(SAMPLES / f"{name}.onnx", target)


def held_out_trial(name: str, model: Path) -> RunConditions:
    """Return how a held-out model is run."""
    trial = RunConditions(timeout=300)
    inputs = SHARED / "messy" / "inputs" / f"{name.removeprefix('messy_')}.json"
    if name.startswith("messy_") and inputs.exists():
        specs = specs_from_json(json.loads(inputs.read_text()))
        return replace(trial, specs=specs, binding=Binding(dims_of(model, specs)))
    given = (item.partition("=") for item in DIMS.get(name, ()))
    return replace(trial, binding=Binding({dim: int(value) for dim, _, value in given}))


def _write_drawn(kind: str, seed: int, target: Path) -> None:
    """Write a net of convolutions or products with drawn widths."""
    random = np.random.default_rng(seed)
    shapes, layers, given, made = [*_widths(kind, random)], [], "x", ""
    values = []
    for at, shape in enumerate(shapes):
        array = (random.standard_normal(shape) / shape[-1]).astype(np.float32)
        values.append(numpy_helper.from_array(array, f"w{at}"))
        made = f"y{at}"
        node = "Conv" if kind == "conv" else "MatMul"
        pads = {"pads": [shape[2] // 2] * 4} if kind == "conv" else {}
        layers += [
            helper.make_node(node, [given, f"w{at}"], [f"p{at}"], name=f"n{at}", **pads),
            helper.make_node("Relu", [f"p{at}"], [made], name=f"r{at}"),
        ]
        given = made
    first = [1, shapes[0][1], 24, 24] if kind == "conv" else [8, shapes[0][0]]
    last = [1, shapes[-1][0], 24, 24] if kind == "conv" else [8, shapes[-1][1]]
    edges = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", first), (made, last))
    ]
    graph = helper.make_graph(layers, "drawn", edges[:1], edges[1:], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(target), save_as_external_data=bool(seed % 2), size_threshold=0)


def _widths(kind: str, random: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yield shapes of weights: tens of megabytes together."""
    depth = int(random.integers(4, 16))
    wide = random.integers(8, 33, depth + 1) * (16 if kind == "conv" else 64)
    for one, other in pairwise(wide):
        if kind == "conv":
            side = int(random.choice((1, 3, 5)))
            yield int(other), int(one), side, side
        else:
            yield int(one), int(other)


def row(name: str, model: Path, way: str, trial: RunConditions, runs: int) -> Row:
    settings, stored = WAYS[way], stored_model(model)
    executed = executed_or_observed_graph(model, settings, trial)
    found = simulate_process(stored, executed, settings)
    seen = []
    for _ in range(runs):
        drop_cached(model)
        seen.append(process_of_run(model, settings, trial))
    return Row(name, way, found, tuple(each for each in seen if each is not None))


def drop_cached(model: Path) -> None:
    """Let the system forget the file and its data: what a page of a file brings with it hangs
    on how that came into the cache, and a machine that has just started has none of it."""
    for path in model.parent.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rows(chosen: Sequence[str], runs: int) -> Iterator[Row]:
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / f"{name}.onnx"
            trial = prepared(name, model)
            for way in WAYS if runs else ("defaults",):
                try:
                    yield kept(row(name, model, way, trial, runs))
                except MemplanError as error:
                    print(f"{name}: {str(error)[:200]}", file=sys.stderr, flush=True)


def kept(found: Row) -> Row:
    """Keep what was found in ``out/process_prediction/``."""
    if found.observed:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / f"{found.model}.{found.way}.json").write_text(json.dumps(asdict(found)))
    return found


def before(chosen: str) -> list[Row]:
    """Return the rows that are kept, of a set."""
    found = []
    for name in names(chosen):
        for way in WAYS:
            path = OUT / f"{name}.{way}.json"
            if path.exists():
                found.append(from_json(Row, json.loads(path.read_text()), "a row"))
    return found


HEAD = """| model | settings | load | observed | run | observed | private | observed | within |
|---|---|---|---|---|---|---|---|---|"""


def rows_of(found: Sequence[Row]) -> list[str]:
    """Return the table with a row for each model."""
    return [HEAD, *(f"| {' | '.join(each.cells())} |" for each in found)]


def sums(found: Sequence[Row]) -> str:
    """Return how many models are predicted well."""
    lines = []
    for way in WAYS:
        mine = [each for each in found if each.way == way]
        good = sum(each.good for each in mine)
        near = {name: sum(each.is_near(name) for each in mine) for name in NUMBERS}
        words = ", ".join(f"{name} {count}" for name, count in near.items())
        lines.append(f"{way}: {good} of {len(mine)} within 2 % or 2 MB in all ({words}).")
    return "\n\n".join(lines)


def written(chosen: str, text: str) -> None:
    """Put a text between the marks of its set in the page."""
    first, last = f"<!-- {chosen} -->\n", f"<!-- end of {chosen} -->"
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(first)
    tail = rest.partition(last)[2]
    PAGE.write_text(f"{head}{first}{text.strip()}\n{last}{tail}", encoding="utf-8")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="processes observed of each")
    parser.add_argument("--of", choices=("shared", "held-out"), default="shared")
    parser.add_argument("--no-page", action="store_true", help="print, do not write")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    found = []
    left = asked.models or names(asked.of)
    if not asked.models:
        found = before(asked.of)
        done = [each.model for each in found]
        left = [name for name in left if done.count(name) < len(WAYS)]
    for each in rows(left, asked.runs):
        found.append(each)
        if each.observed:
            print(f"| {' | '.join(each.cells())} |", flush=True)
    text = sums(found)
    if not asked.no_page and not asked.models:
        written(asked.of, text)
        write_full_table(f"process_prediction_{asked.of}", rows_of(found))
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
