"""The models that benchmarks read, and the values of their free dims."""

from __future__ import annotations

import json
from pathlib import Path

import onnx

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_models"
SHARED = ROOT.parent / "shared" / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

DIMS = {
    "bert_base_dyn": ("batch=2", "seq=64"),
    "llama_1b_dyn": ("batch=2", "new=8", "past=24", "total=32"),
    "mobilenetv2_ts": ("batch=2",),
    "resnet50_dynbatch": ("batch=2",),
    "dynamic_batch": ("batch=8",),
}
"""Bindings for symbolic models, so that every row is a number."""


def bindings(model: Path) -> tuple[str, ...]:
    """Return ``NAME=N`` for the symbols of a model: ours, or those shipped with it."""
    if model.stem in DIMS:
        return DIMS[model.stem]
    inputs = model.parent / "inputs" / f"{model.stem}.json"
    known = json.loads(inputs.read_text())["dynamic"] if inputs.exists() else {}
    there = declared_dims(model) if known else frozenset()
    return tuple(f"{name}={value}" for name, value in known.items() if name in there)


def declared_dims(model: Path) -> frozenset[str]:
    """Return the names in a model's declared dims: an exporter may list more than it wrote."""
    graph = onnx.load(model, load_external_data=False).graph
    values = (*graph.input, *graph.output, *graph.value_info)
    dims = (dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim)
    return frozenset(filter(None, dims))
