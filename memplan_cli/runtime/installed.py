"""The installed version of ONNX Runtime, and this processor; nothing heavy is imported."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.profile.record import PROFILE

_WHEELS = ("onnxruntime-gpu", "onnxruntime")
"""The wheels whose version counts, the preferred one first; both install the same folder."""


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def runtime_version() -> str:
    """Return the version of the installed runtime; empty if none is installed."""
    return next(filter(None, map(version_of, _WHEELS)), "")


def required_version() -> str:
    """Return the version of the installed runtime.

    Raises:
        RuntimeUnavailableError: none is installed.
    """
    version = runtime_version()
    if not version:
        raise RuntimeUnavailableError("ONNX Runtime is not installed")
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
