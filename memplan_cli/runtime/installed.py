"""The installed ONNX Runtime, by its wheel: nothing is imported."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

from memplan_cli.errors import RuntimeUnavailableError
from memplan_cli.runtime.profile.record import PROFILE

_WHEELS = ("onnxruntime-gpu", "onnxruntime")
"""Both unpack into one folder; where both are installed, that for GPUs is meant."""


def version_of(package: str) -> str:
    """Return the version of an installed package; empty where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def runtime_version() -> str:
    """Return the version of the installed runtime, whichever wheel it came from, or nothing."""
    return next(filter(None, map(version_of, _WHEELS)), "")


def required_version() -> str:
    """Return the version of the installed runtime.

    Raises:
        RuntimeUnavailableError: there is none.
    """
    version = runtime_version()
    if not version:
        raise RuntimeUnavailableError("ONNX Runtime is not installed")
    return version


def hardware() -> str:
    """Return this machine's kind of processor, and what decides how kernels pack weights.

    ONNX Runtime chooses its kernels by what the processor can, not by its name.
    """
    kind = platform.machine() or platform.processor()
    try:
        lines = (
            Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        )
    except OSError:
        return kind
    said = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    found = sorted(PROFILE.cpu_features.intersection(said.partition(":")[2].split()))
    return " ".join([kind, *found])
