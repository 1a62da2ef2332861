"""The installed ONNX Runtime, by its wheel: nothing is imported."""

from __future__ import annotations

from importlib import metadata

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
