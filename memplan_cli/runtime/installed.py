"""The installed version of ONNX Runtime, and this processor; nothing heavy is imported."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import RuntimeMissingError
from memplan_cli.runtime.profile.record import PROFILE

if TYPE_CHECKING:
    from collections.abc import Mapping

_WHEELS = (
    "onnxruntime-gpu",
    "onnxruntime",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-qnn",
    "onnxruntime-training",
)
"""Wheels that contain ONNX Runtime; all of them install the folder ``onnxruntime``."""


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def runtime_wheels() -> Mapping[str, str]:
    """Return the versions of the installed wheels that contain ONNX Runtime, by name.

    More than one overwrite each other's files.
    """
    versions = {wheel: version for wheel in _WHEELS if (version := version_of(wheel))}
    if versions:
        return versions
    # Builds under other names. To find them takes a tenth of a second.
    names = metadata.packages_distributions().get("onnxruntime", ())
    return {name: version_of(name) for name in names}


def runtime_version() -> str:
    """Return the version of the installed runtime; empty if none is installed."""
    return next(iter(runtime_wheels().values()), "")


def required_version(*, hint: str = "") -> str:
    """Return the version of the installed runtime.

    Raises:
        RuntimeMissingError: none is installed; it has the hint.
    """
    version = runtime_version()
    if not version:
        raise RuntimeMissingError(hint=hint)
    return version


def hardware() -> str:
    """Return the architecture of this processor, and the features that decide its kernels.

    ONNX Runtime chooses kernels, and so how weights are packed, by features and not by the name
    of the processor.

    Returns:
        Such as ``x86_64 avx2 avx512f``; the architecture alone on systems other than Linux.
    """
    architecture = platform.machine() or platform.processor()
    try:
        lines = (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        return architecture
    line = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    features = line.partition(":")[2].split()
    return " ".join([architecture, *sorted(PROFILE.cpu_features.intersection(features))])
