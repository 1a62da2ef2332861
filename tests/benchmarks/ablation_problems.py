"""Packing problems that tell strategies apart: instances, real arenas, nearly full rectangles.

Real arenas are those that memplan packs when it plans a model, in every order it tries, and
that no cheap strategy brings to the lower bound: of the shared models, and of training steps
that `memplan train-step` makes of forward models and of unrolled recurrent networks.
"""

from __future__ import annotations

import csv
import gzip
import pickle
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memplan_cli.cli import main as memplan
from memplan_cli.core.problem import Buffer, BufferId, LiveRange, Problem
from memplan_cli.packing import portfolio
from memplan_cli.packing.lowering import cheapest
from memplan_cli.packing.pieces import layout_of, reduce
from memplan_cli.packing.problem_file import read_problem

from .ablation_modules import put, undo
from .models import LIGHT, ROOT, SHARED, bindings
from .packing_instances import FAMILIES
from .packing_models import models

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import ModelProto, NodeProto

    from memplan_cli.core.problem import Layout

INSTANCES = ROOT.parent / "shared" / "instances"
DATA = ROOT / "tests" / "data"

FULL = (
    *(
        (family, count, seed)
        for family in ("square", "thinned", "mosaic")
        for count, seed in ((350, 0), (1_000, 0), (1_000, 2), (10_000, 1))
    ),
    ("crowded", 350, 0),
    ("crowded", 1_000, 0),
)
"""Families, buffers and seeds of the nearly full rectangles."""

FORWARD = (
    (LIGHT, "light_densenet121"),
    (LIGHT, "light_inception_v2"),
    (LIGHT, "light_resnet50"),
    (LIGHT, "light_shufflenet"),
    (SHARED, "densenet121"),
    (SHARED, "hrnet_w18"),
    (SHARED, "mobilenetv3_large"),
    (SHARED, "swin_tiny"),
    (SHARED, "wiring_darts_v2_imagenet"),
    (SHARED, "wiring_nasnet_a_cifar"),
)
"""Forward models of which training steps are made."""

RECURRENT = tuple(
    (kind, steps, width, optimizer)
    for kind, steps, width in (("lstm", 24, 24), ("rnn", 32, 20))
    for optimizer in ("sgd", "momentum", "adamw")
)
"""Unrolled networks: cell, steps, width, optimizer."""

MOST = {"models": 3, "generated steps": 1}
"""Problems of one model, of all the orders that are tried."""

Named = tuple[str, Problem]


def instances() -> Iterator[Named]:
    """Yield the shared instances."""
    for path in sorted(INSTANCES.glob("*.csv")):
        yield path.stem.partition(".")[0], read_problem(path)


def kept() -> Iterator[Named]:
    """Yield the problems that real training steps gave, as the tests keep them."""
    for path in sorted(DATA.glob("training_*.csv.gz")):
        with gzip.open(path, "rt", newline="") as file:
            rows = [tuple(map(int, row)) for row in csv.reader(file)]
        yield (
            path.name.partition(".")[0],
            Problem(
                tuple(
                    Buffer(BufferId(str(index)), 64 * size, LiveRange(start, end))
                    for index, (start, end, size) in enumerate(rows)
                )
            ),
        )


def nearly_full() -> Iterator[Named]:
    """Yield the generated problems, all of which have a layout at their lower bound."""
    for family, count, seed in FULL:
        yield f"{family} {count:,} seed {seed}", FAMILIES[family](count, seed)


def of_models(paths: Iterable[tuple[str, Path]], most: int) -> Iterator[Named]:
    """Yield what is packed when models are planned, where the cheap strategies miss the bound."""
    for name, path in paths:
        tried = [problem for order in ("keep", "auto") for problem in packed(path, order)]
        hard = {_shape(problem): problem for problem in tried if is_hard(problem)}
        for number, problem in enumerate([*hard.values()][:most]):
            yield f"{name} {number}", problem


def _shape(problem: Problem) -> tuple[tuple[int, int, int], ...]:
    """Return what is the same of two problems that differ in names alone."""
    return tuple(sorted((b.live.start, b.live.end, b.size) for b in problem.buffers))


def packed(path: Path, order: str) -> list[Problem]:
    """Return the problems of all arenas that are packed when a model is planned."""
    found: list[Problem] = []

    def noting(problem: Problem, **knobs: Any) -> Layout:  # noqa: ANN401 - passed on
        found.append(problem)
        return portfolio(problem, **knobs)

    put("levels", "portfolio", noting)
    with tempfile.TemporaryDirectory() as folder:
        options = ["--no-validate", "--quiet", "--order", order]
        dims = [word for dim in bindings(path) for word in ("--dim", dim)]
        words = ["optimize", str(path), "-o", str(Path(folder) / path.name), *options, *dims]
        _run(words)
    undo()
    return found


def is_hard(problem: Problem) -> bool:
    """Whether no cheap strategy reaches the lower bound."""
    reduction = reduce(problem)
    cheap = [cheapest(piece, reduction.load) for piece in reduction.pieces]
    return not layout_of(reduction, cheap).proved


def training_steps(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write training steps into a folder, and yield them by name."""
    from onnx import save

    for home, name in FORWARD:
        yield _trained(name, home / f"{name}.onnx", folder, "sgd")
    for kind, steps, width, optimizer in RECURRENT:
        name = f"{kind} {steps}x{width} {optimizer}"
        path = folder / f"{kind}_{steps}.onnx"
        save(unrolled(kind, steps, width), path)
        yield _trained(name, path, folder, optimizer)


def _trained(name: str, path: Path, folder: Path, optimizer: str) -> tuple[str, Path]:
    out = folder / f"{name.replace(' ', '_')}_step.onnx"
    loss = ["--loss-fn", "softmax-cross-entropy", "--optimizer", optimizer]
    _run(["train-step", str(path), "-o", str(out), *loss, "--quiet"])
    return f"{name} step", out


def _run(words: list[str]) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        memplan(words, standalone_mode=False)


_GATES = {"lstm": 4, "gru": 3, "rnn": 1}


def unrolled(kind: str, steps: int, width: int) -> ModelProto:
    """Return a recurrent network written out step by step, with logits of the last state."""
    from onnx import TensorProto, helper

    batch, classes, gates = 8, 10, _GATES[kind]
    shapes = {
        "wx": (width, gates * width),
        "wh": (width, gates * width),
        "b": (gates * width,),
    }
    shapes["out"] = (width, classes)
    nodes: list[NodeProto] = []

    def add(op: str, *inputs: str, count: int = 1, **attributes: object) -> list[str]:
        names = [f"{op}{len(nodes)}_{at}" for at in range(count)]
        nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    (state,), (cell,) = add("Identity", "h0"), add("Identity", "h0")
    for step in range(steps):
        (seen,) = add("MatMul", f"x{step}", "wx")
        (kept,) = add("MatMul", state, "wh")
        (summed,) = add("Add", *add("Add", seen, kept), "b")
        if kind == "rnn":
            (state,) = add("Tanh", summed)
            continue
        parts = add("Split", summed, count=gates, axis=1, num_outputs=gates)
        (keep,), (let,) = add("Sigmoid", parts[0]), add("Sigmoid", parts[1])
        (new,) = add("Tanh", parts[2])
        if kind == "gru":
            (both,) = add("Sub", new, *add("Mul", let, state))
            (state,) = add("Add", state, *add("Mul", keep, both))
            continue
        (cell,) = add("Add", *add("Mul", keep, cell), *add("Mul", let, new))
        (state,) = add("Mul", *add("Sigmoid", parts[3]), *add("Tanh", cell))
    nodes.append(helper.make_node("MatMul", [state, "out"], ["logits"]))
    weights = [
        helper.make_tensor(name, TensorProto.FLOAT, dims, bytes(4 * _count(dims)), raw=True)
        for name, dims in shapes.items()
    ]
    names = ["h0", *(f"x{step}" for step in range(steps))]
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, width]) for n in names
    ]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, classes])
    graph = helper.make_graph(nodes, kind, inputs, [output], weights)
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9)


def _count(dims: tuple[int, ...]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def collected(cache: Path) -> Mapping[str, list[Named]]:
    """Return all problems by set; those of models are kept in a file, for the next run."""
    if not cache.exists():
        with tempfile.TemporaryDirectory() as folder:
            steps = list(of_models(training_steps(Path(folder)), MOST["generated steps"]))
        zoo = list(of_models(((path.stem, path) for path in models()), MOST["models"]))
        cache.write_bytes(pickle.dumps({"models": zoo, "generated steps": steps}))
    real: dict[str, list[Named]] = pickle.loads(cache.read_bytes())  # noqa: S301 - our own
    return {
        "instances": list(instances()),
        "models": [*real["models"], *kept()],
        "generated steps": real["generated steps"],
        "nearly full": list(nearly_full()),
    }
