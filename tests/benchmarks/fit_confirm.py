"""See whether the first answer of `memplan fit --confirm` fits, and the next value does not.

    python -m tests.benchmarks.fit_confirm [--page FILE] [MODEL...]

Ten models with seeded weights, some of which get a symbolic batch. The next value is run as
the answer was, in a process of its own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from onnx import numpy_helper

from memplan_cli.core.results.observations import RuntimeSettings
from memplan_cli.runtime.measuring.measure import Trial
from memplan_cli.runtime.measuring.resident import observed_process
from memplan_cli.settings.settings import Settings
from memplan_cli.workflows.fit import MemoryLimit, fit

from .prediction import fill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.planning.fit import Fit

MIB = 1 << 20

MODELS: Mapping[str, tuple[str, int, Mapping[str, int]]] = {
    "resnet50_dynbatch": ("batch", 300, {}),
    "mobilenetv2_ts": ("batch", 200, {}),
    "bert_base_dyn": ("batch", 700, {"seq": 128}),
    "densenet121": ("batch", 250, {}),
    "efficientnet_b0": ("batch", 250, {}),
    "inception_v3": ("batch", 350, {}),
    "mobilenetv3_large": ("batch", 200, {}),
    "wiring_darts_v2_imagenet": ("batch", 250, {}),
    "wiring_darts_cell": ("batch", 100, {}),
    "wiring_amoeba_cell": ("batch", 80, {}),
}
"""What is looked for, in how many MiB, with which other dims."""

HEAD = """| model | memory | answer | predicted | observed | first answer fits | one more takes | \
does not fit |
|---|---|---|---|---|---|---|---|"""


def with_batch(model: Path, symbol: str) -> None:
    """Make the first dim of every input symbolic where none is; outputs say nothing of it."""
    loaded = onnx.load(str(model), load_external_data=False)
    values = [*loaded.graph.input]
    if any(dim.dim_param for v in values for dim in v.type.tensor_type.shape.dim):
        return
    for value in (*values, *loaded.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = symbol
    shapes = {node.input[1] for node in loaded.graph.node if node.op_type == "Reshape"}
    for tensor in loaded.graph.initializer:
        if tensor.name in shapes:
            dims = numpy_helper.to_array(tensor).copy()
            if dims.size and dims[0] == 1:
                dims[0] = -1
                tensor.CopyFrom(numpy_helper.from_array(dims, tensor.name))
    del loaded.graph.value_info[:]
    onnx.save(loaded, str(model))


def line(name: str, model: Path) -> str:
    symbol, memory, dims = MODELS[name]
    with_batch(model, symbol)
    limit = MemoryLimit(memory * MIB, (symbol,), provider="cpu")
    found = fit(model, limit, Settings(dims=dims))
    seen = found.confirmed
    if seen is None:
        return f"| {name} | {memory} MiB | nothing fits | | | no | | |"
    more = {**seen.dims, symbol: seen.dims[symbol] + 1}
    process = observed_process(model, RuntimeSettings(), Trial("cpu", more, 3, 0))
    assert process is not None
    inputs = seen.inputs * more[symbol] // seen.dims[symbol]
    next_total = process.run + inputs + found.overhead
    cells = (
        name,
        f"{memory} MiB",
        f"{symbol} {seen.dims[symbol]}",
        mib(predicted(found)),
        mib(seen.total(found.overhead)),
        "yes" if found.passed and seen.runs == 1 else f"no ({seen.runs} runs)",
        mib(next_total),
        "yes" if next_total > found.memory else "no",
    )
    return f"| {' | '.join(cells)} |"


def predicted(found: Fit) -> int:
    return found.points[0].need.total + found.overhead


def mib(size: int) -> str:
    return f"{size / MIB:.1f}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, help="write the table here")
    parser.add_argument("models", nargs="*")
    asked = parser.parse_args(arguments)
    lines = [HEAD]
    print(HEAD, flush=True)
    for name in asked.models or MODELS:
        with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
            model = Path(folder) / f"{name}.onnx"
            fill(name, model)
            lines.append(line(name, model))
            print(lines[-1], flush=True)
    if asked.page:
        asked.page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
