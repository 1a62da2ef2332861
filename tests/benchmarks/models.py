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
    return tuple(f"{name}={value}" for name, value in known.items())
