"""What file names mean: models as users name them, and the names of files written beside them.

A name says where to look. Whether a file belongs to a plan is decided by digests (`plan_files`).
"""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path

WRITTEN_SUFFIX = ".memplan.onnx"
"""The end of a written model's default name."""

PLAN_SUFFIX = ".memplan.json"
"""The end of a plan's default name."""

TEMPORARY_PREFIX = "memplan-model-"
"""The start of the name of a temporary folder, which holds a model that has no file."""


def is_lasting(model: Path) -> bool:
    """Return whether a model is a file of the user's, not one in a temporary folder of ours."""
    return not model.parent.name.startswith(TEMPORARY_PREFIX)


def expanded_glob(path: Path) -> tuple[Path, ...]:
    """Return the files that a path stands for, sorted: the path itself, or the matches of a glob.

    A path that exists is never a glob: file names may contain brackets. The result is empty if
    a glob matches nothing.
    """
    if path.exists() or not has_magic(str(path)):
        return (path,)
    return tuple(sorted(map(Path, glob(str(path), recursive=True))))  # noqa: PTH207 - absolute ones too


def default_output(model: Path) -> Path:
    """Return where a model is written by default: ``<stem>.memplan.onnx`` beside the model."""
    return model.with_name(f"{model.stem}{WRITTEN_SUFFIX}")


def default_original(written: Path) -> Path | None:
    """Return the model whose `default_output` is this file; None if the name is no such default.

    The default name does not contain the original's suffix, which is taken to be ``.onnx``.
    """
    stem = written.name.removesuffix(WRITTEN_SUFFIX)
    return None if stem == written.name else written.with_name(f"{stem}.onnx")


def plan_beside(written: Path) -> Path:
    """Return where the plan of a written model is by default, whatever the model's name."""
    return written.with_suffix(".json")


def model_beside(plan: Path) -> Path:
    """Return the written model whose plan is by default this file: the inverse of `plan_beside`."""
    return plan.with_suffix(".onnx")
