"""Hold what is predicted against what is taken for each operator of ONNX's own test suite.

    python -m tests.benchmarks.prediction_ops [--first N] [--last N]

Each test model of a single node, with a Concat of one before each input and behind each
output: graph inputs and outputs have memory of their own, and what a kernel shares would not
show. With optimisation off, in both execution orders, with the memory pattern and without
reuse, and the other way round. Names what is not exact, and says how many the runtime does
not run.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto, helper

from memplan_cli.errors import MemplanError
from memplan_cli.runtime.measuring.measure import Trial

from .in_process import keep_jobs_here
from .prediction import figures, rows_of
from .suite_cases import node_cases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .prediction import Row

WAYS = [
    ("off", order, pattern, not pattern)
    for order, pattern in itertools.product(["DEFAULT", "PRIORITY_BASED"], [True, False])
]


def model_of(case: Any) -> onnx.ModelProto:  # noqa: ANN401 - the onnx package's own
    return case.model or onnx.load(Path(case.model_dir) / "model.onnx")


def surrounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose tensors of at least one dim are made and read by other nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    weights = {tensor.name for tensor in graph.initializer}
    before, behind = [], []
    for value in wrapped(graph.input):
        if value.name not in weights:
            given = f"{value.name}_given"
            before.append(helper.make_node("Concat", [given], [value.name], axis=0))
            value.name = given
    for value in wrapped(graph.output):
        result = f"{value.name}_result"
        behind.append(helper.make_node("Concat", [value.name], [result], axis=0))
        value.name = result
    nodes = [*before, *graph.node, *behind]
    del graph.node[:]
    graph.node.extend(nodes)
    return copy


def wrapped(values: Any) -> Iterator[onnx.ValueInfoProto]:  # noqa: ANN401 - protobuf's own
    for value in values:
        kind = value.type.tensor_type
        dense = value.type.HasField("tensor_type") and kind.elem_type != TensorProto.STRING
        if dense and kind.shape.dim:
            yield value


def rows_for(name: str, model: onnx.ModelProto) -> list[Row]:
    """Return the rows of all ways; none where the runtime does not run the model."""
    trial = Trial(provider="cpu", runs=2, timing_runs=0)
    with tempfile.TemporaryDirectory(prefix="memplan-bench-") as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, str(path))
        try:
            return rows_of(name, path, trial, WAYS)
        except MemplanError:
            return []


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int)
    asked = parser.parse_args(arguments)
    keep_jobs_here()
    found: Counter[str] = Counter()
    for case in node_cases()[asked.first : asked.last]:
        rows = rows_for(case.name, surrounded(model_of(case)))
        missed = [row for row in rows if not row.exact]
        if not rows:
            verdict = "not run by the runtime"
        elif not missed:
            verdict = "exact"
        elif None in figures(missed[0].predicted):
            verdict = "not predicted"
        else:
            verdict = "not exact"
        found[verdict] += 1
        if missed:
            print(f"{verdict}: {missed[0].line()} {len(missed)} of {len(rows)}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in found.most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])
