"""Predictions with and without the inlined bodies laid beside the runtime's dump.

Off, calls have no body: the nodes that the runtime inlined are ranked by the call that they
lead to, as those of unknown functions are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime as ort

from function_graphs import drawn_functions
from memplan_cli.errors import MemplanError
from memplan_cli.onnx_io.load import graphs
from memplan_cli.runtime.graph.executed import executed_run
from memplan_cli.runtime.measuring.measure import Trial, measure
from memplan_cli.runtime.simulation.predict import predict

from .ablation_modules import lines, put, undo
from .in_process import keep_jobs_here
from .packing_models import models
from .prediction import WAYS, figures, fill, settings, trial_of
from .prediction_ops import model_of, surrounded
from .scale import SHARED
from .suite_cases import node_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

EVERY = 4
"""One of so many cases of the suite is run; there are several of each operator."""

FUNCTIONS = 10
"""Random models of functions that call each other."""

OFF = [way for way in WAYS if way[0] == "off"]

HEAD = (
    "models", "with inlined nodes", "predictions", "exact", "exact without",
    "models that differ", "largest error without",
)  # fmt: skip

Found = list[tuple[str, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]]
"""Model; measured, predicted, predicted without."""


def rows(only: str) -> Iterator[tuple[str, ...]]:
    """Yield a row for each kind of model."""
    keep_jobs_here()
    cases = inlined_cases()
    kinds = {node.op_type for _, model in cases for node in model.graph.node}
    paths = [*models(), *sorted((SHARED / "messy").glob("*.onnx"))]
    real = [path for path in paths if _calls(path, kinds)]
    parts: dict[str, tuple[int, Callable[[], Found]]] = {
        "suite": (len(node_cases()), lambda: _all(_of_case, cases[::EVERY])),
        "random": (FUNCTIONS, lambda: _all(_of_functions, range(FUNCTIONS))),
        "real": (len(paths), lambda: _all(_of_model, real)),
    }
    yield (f"lines: {lines('inlining', 'functions')}", *[""] * (len(HEAD) - 1))
    for name, (count, found) in parts.items():
        if only in name:
            results = found()
            yield (f"{name}: {count}", *_cells(results))


def _all(function: Callable[[Any], Found], each: Iterable[Any]) -> Found:
    return [row for one in each for row in function(one)]


def _cells(found: Found) -> tuple[str, ...]:
    errors = {
        name: max(
            (
                abs(w - m) / m
                for m, w in zip(seen, without, strict=True)
                if m and w is not None
            ),
            default=0.0,
        )
        for name, seen, _, without in sorted(
            found, key=lambda row: row[1] == row[3], reverse=True
        )
    }
    differ = {name for name, _, with_it, without in found if with_it != without}
    return (
        str(len({name for name, *_ in found})),
        str(len(found)),
        str(sum(seen == with_it for _, seen, with_it, _ in found)),
        str(sum(seen == without for _, seen, _, without in found)),
        str(len(differ)) + (f" ({', '.join(sorted(differ)[:3])})" if differ else ""),
        f"{max(errors.values(), default=0.0):.2%}",
    )


def inlined_cases() -> list[tuple[str, onnx.ModelProto]]:
    """Return the suite's models of single nodes that the runtime does not run as one node."""
    found = []
    for case in node_cases():
        model = model_of(case)
        if len(model.graph.node) == 1 and _is_inlined(model):
            found.append((case.name, model))
    return found


def _is_inlined(model: onnx.ModelProto) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "dump.onnx"
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(dump)
        options.log_severity_level = 4
        try:
            ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            nodes = onnx.load(dump).graph.node
        except Exception:  # noqa: BLE001 - what the runtime refuses, it does not inline
            return False
    kind = model.graph.node[0].op_type  # a Constant becomes a weight
    return kind != "Constant" and kind not in {node.op_type for node in nodes}


def _calls(path: Path, kinds: set[str]) -> bool:
    model = onnx.load(path, load_external_data=False)
    return bool(model.functions) or any(
        node.op_type in kinds for graph in graphs(model.graph) for node in graph.node
    )


def _of_case(case: tuple[str, onnx.ModelProto]) -> Found:
    return _of_proto(case[0], surrounded(case[1]))


def _of_functions(seed: int) -> Found:
    return _of_proto(f"random {seed}", drawn_functions(seed, "float", (40, 100)))


def _of_proto(name: str, model: onnx.ModelProto) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, str(path))
        return compared(name, path, Trial(provider="cpu", runs=2, timing_runs=0))


def _of_model(path: Path) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / path.name
        fill(path.stem, target)
        return compared(path.stem, target, trial_of(path.stem, target, 600.0))


def without_bodies() -> None:
    """Let no call stand for the nodes of a function."""
    put("functions", "Definitions.of_call", lambda _self, _call, _dtypes: None)


def compared(name: str, model: Path, trial: Trial) -> Found:
    """Return what was measured and predicted in each way; nothing of what does not run."""
    try:
        graph = executed_run(model, settings(OFF[0]), trial)
        without_bodies()
        try:
            without = executed_run(model, settings(OFF[0]), trial)
        finally:
            undo()
        found: Found = []
        for way in OFF:
            chosen = settings(way)
            predicted: Sequence[Any] = [
                figures(predict(each, chosen)) for each in (graph, without)
            ]
            measured = figures(measure(model, chosen, trial))
            found.append((name, measured, predicted[0], predicted[1]))
    except MemplanError:
        return []
    return found
