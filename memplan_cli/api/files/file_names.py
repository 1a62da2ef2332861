"""What file names mean: models as users name them, and what is written beside them.

Names say where to look, never what a file holds: that is for its digest (`provenance`).
"""

from __future__ import annotations

from glob import glob, has_magic
from pathlib import Path

WRITTEN_SUFFIX = ".memplan.onnx"
"""How the name of a written model ends, where nobody has named it."""

PLAN_SUFFIX = ".memplan.json"
"""How the name of its plan ends then."""

NO_PLACE = "memplan-model-"
"""How the temporary folder of a model begins that has no file of its own."""


def has_place(model: Path) -> bool:
    """Whether a model is a file that is there tomorrow."""
    return not model.parent.name.startswith(NO_PLACE)


def matched(path: Path) -> tuple[Path, ...]:
    """Return what a path means, in order: itself, or the files that a glob matches.

    A file may be named with brackets: globs are only what is no file.
    """
    if path.exists() or not has_magic(str(path)):
        return (path,)
    return tuple(sorted(map(Path, glob(str(path), recursive=True))))  # noqa: PTH207 - absolute ones too


def written_beside(model: Path) -> Path:
    """Return where a model is written if nobody says where: ``<stem>.memplan.onnx``."""
    return model.with_name(f"{model.stem}{WRITTEN_SUFFIX}")


def original_of(written: Path) -> Path | None:
    """Return what `written_beside` made a name from; None where it has not made it.

    The suffix of the original is taken to be ``.onnx``, which the name does not tell.
    """
    stem = written.name.removesuffix(WRITTEN_SUFFIX)
    return None if stem == written.name else written.with_name(f"{stem}.onnx")


def plan_beside(written: Path) -> Path:
    """Return where a written model's plan is if nobody says where, for any name of it."""
    return written.with_suffix(".json")


def written_with(plan: Path) -> Path:
    """Return the model that has a plan's own name: the way back from `plan_beside`."""
    return plan.with_suffix(".onnx")
