"""Whether a plan file is about the models beside it: digests say it, names do not."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.api.files.file_names import written_with
from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memplan_cli.core.results.plan import Plan


def named_from_here(plan: Plan, path: Path | None) -> Plan:
    """Return the plan of a file with its model as the current folder's commands name it.

    A plan names its model from its own folder. One that is not there keeps its name.
    """
    model = plan.report.model
    if path is None or not model.path or not (path.parent / model.path).is_file():
        return plan
    with suppress(ValueError):  # on another drive there is no way from here to there
        here = Path(os.path.relpath(path.parent / model.path)).as_posix()
        return plan.with_report(replace(plan.report, model=replace(model, path=here)))
    return plan


def stale_models(plan: Plan, path: Path) -> Iterator[str]:
    """Yield, in words, each model beside a plan file that the plan is not about.

    Looked at are the model that the report names, from the plan's folder, and the model that
    has the plan's own name: what `optimize` writes carries the digest of its plan. A model
    that is not there, or that memplan did not write, says nothing.
    """
    from memplan_cli.onnx_io.load import file_digest

    original = path.parent / plan.report.model.path
    if plan.report.model.path and original.is_file():
        try:
            digest = file_digest(original)
        except OSError:
            digest = plan.report.model.sha256
        if digest != plan.report.model.sha256:
            yield f"{original} is not the model that {path} is about: its digest is another"
    written = written_with(path)
    if written != path and written.is_file():
        digest = _digest_in(written) or plan.digest
        if digest != plan.digest:
            yield f"{written} was written with another plan than {path}"


def _digest_in(model: Path) -> str:
    """Return the digest of a plan that a model carries; empty where it carries none."""
    from memplan_cli.onnx_io.load import load_as_written
    from memplan_cli.onnx_io.metadata import read_notes

    try:
        return read_notes(load_as_written(model)).get("digest", "")
    except ModelError:
        return ""
