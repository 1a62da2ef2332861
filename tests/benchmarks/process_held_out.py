"""Models that no constant of the predicted process was picked on, with weights in them.

The models of the onnx package, the exporters' own of the shared collection, the samples, and nets
that are drawn: some convolutions or products of a drawn width and number, their weights in the
model file or beside it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from collection_inputs import specs_from_json
from memplan_cli.runtime.measuring.measure import Trial
from shared_models import with_random_weights

from .models import DIMS, LIGHT, SAMPLES, SHARED
from .runtime_settings import dims_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAWN = tuple(f"drawn_{kind}_{seed}" for kind in ("conv", "matmul") for seed in range(4))
"""Of each kind, those of an even number have their weights in the file."""


def names() -> list[str]:
    """Return what there is, those first that take little."""
    messy = sorted(f"messy_{path.stem}" for path in SHARED.glob("messy/*.onnx"))
    samples = sorted(path.stem for path in SAMPLES.glob("*.onnx"))
    light = sorted(path.stem for path in LIGHT.glob("*.onnx"))
    return [*samples, *messy, *DRAWN, *light]


def fill(name: str, target: Path) -> None:
    """Write a model with weights."""
    if name in DRAWN:
        _, kind, seed = name.split("_")
        _draw(kind, int(seed), target)
    elif name.startswith("messy_"):
        source = SHARED / "messy" / f"{name.removeprefix('messy_')}.onnx"
        command = [sys.executable, str(SHARED / "fill_weights.py"), str(source), str(target)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    elif name.startswith("light_"):
        with_random_weights(LIGHT / f"{name}.onnx", target)
    else:
        shutil.copy(SAMPLES / f"{name}.onnx", target)


def trial_of(name: str, model: Path) -> Trial:
    """Say how a model is run."""
    trial = Trial("cpu", runs=3, timing_runs=0, timeout=300)
    inputs = SHARED / "messy" / "inputs" / f"{name.removeprefix('messy_')}.json"
    if name.startswith("messy_") and inputs.exists():
        specs = specs_from_json(json.loads(inputs.read_text()))
        return replace(trial, specs=specs, dims=dims_of(model, specs))
    given = (item.partition("=") for item in DIMS.get(name, ()))
    return replace(trial, dims={dim: int(value) for dim, _, value in given})


def _draw(kind: str, seed: int, target: Path) -> None:
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
