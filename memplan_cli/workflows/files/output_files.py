"""How do the files of an output get their names? All of them, or none and all is as before."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.core.results.plan import Plan
    from memplan_cli.planning.planner import Planned
    from memplan_cli.settings.settings import Settings
    from memplan_cli.workflows.files.model_file import ModelFile


@dataclass(frozen=True, slots=True)
class Targets:
    """The two files to write."""

    model: Path
    plan: Path


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A model, what was planned for it, and where both go."""

    file: ModelFile
    planned: Planned
    settings: Settings
    targets: Targets
    original: Path | None = None
    """What the model is compared with, where it was not planned as it is."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further metadata for the written model."""

    @property
    def compared_with(self) -> Path:
        """Return the file whose outputs count."""
        return self.original or self.file.path

    @property
    def only_as_written(self) -> bool:
        """Whether the runtime's optimisation must not touch the written file."""
        report = self.planned.plan.report
        # Copies would be merged, and a pair is safe only in the order of the file.
        moved = report.recompute.nodes > 0 or bool(report.donated.pairs)
        return self.original is not None or moved


def refuse_overwriting(model: Path, targets: Targets) -> None:
    """Refuse targets that cannot be written or that are the model itself.

    Raises:
        ModelError: naming the file.
    """
    for path in (targets.model, targets.plan):
        if path.is_dir():
            raise ModelError(f"{path} is a folder", hint="name a file with -o")
        if not path.parent.is_dir():
            raise ModelError(
                f"there is no folder {path.parent} to write into", hint="create it first"
            )
        if path.exists() and model.exists() and path.samefile(model):
            raise ModelError(
                f"{path} is the model itself, which is never overwritten",
                hint="name another file with -o",
            )
    if targets.model == targets.plan:
        raise ModelError(f"the model and its plan cannot both be {targets.model}")


def refuse_weights(file: ModelFile, targets: Targets) -> None:
    """Refuse targets that are a file of the model's weights, here or where they go.

    Raises:
        ModelError: naming the file.
    """
    for name in file.data_files:
        folders = (file.path.parent, targets.model.parent)
        data = {(folder / name).resolve() for folder in folders}
        for path in (targets.model, targets.plan):
            if path.resolve() in data:
                raise ModelError(
                    f"{path} is where the model's weights are", hint="name another file"
                )


class OutputFiles:
    """The files of one rewriting: its weights go along, and go again if it fails.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """

    def __init__(self, rewriting: Rewriting) -> None:
        from memplan_cli.onnx_io.metadata import donation_note
        from memplan_cli.onnx_io.weights.external_data import copy_along
        from memplan_cli.onnx_io.writing.write import written_model
        from memplan_cli.workflows.files.own_weights import own_weights

        refuse_weights(rewriting.file, rewriting.targets)
        self._rewriting = rewriting
        self._targets = rewriting.targets
        self._earlier = own_weights(self._targets.model)
        planned = rewriting.planned
        notes = {**rewriting.notes, **donation_note(planned.plan.report.donated.pairs)}
        self.data = written_model(rewriting.file.model, planned.program, planned.plan, notes)
        self._created = copy_along(
            rewriting.file.data_files,
            rewriting.file.path.parent,
            self._targets.model.parent,
            own=self._earlier if rewriting.original else (),
        )
        self._done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        from memplan_cli.onnx_io.weights.external_data import remove

        if not self._done:
            remove(self._created)

    def forget(self) -> None:
        """Let the weights of an earlier version go: it has been replaced."""
        from memplan_cli.onnx_io.weights.external_data import forget

        forget(self._created)

    def finish(self, plan: Plan) -> tuple[Plan, tuple[Path, ...]]:
        """Give model and plan their names; return the plan as written, and the weights."""
        from memplan_cli.core.files import write_files

        plan = _seen_from(self._targets.plan.parent, plan)
        write_files({self._targets.plan: plan.encoded(), self._targets.model: self.data})
        self._done = True
        self._drop_unused()
        return plan, tuple(path for path in self._created if path.is_file())

    def _drop_unused(self) -> None:
        """Remove what the earlier output alone has had: nobody would find it again."""
        from memplan_cli.onnx_io.load import load_model
        from memplan_cli.workflows.files.own_weights import weights_of

        left = [n for n in self._earlier if n not in self._rewriting.file.data_files]
        used = weights_of(load_model(self._rewriting.compared_with)) if left else ()
        for name in left:
            if name not in used:
                self._targets.model.with_name(name).unlink(missing_ok=True)


def _seen_from(folder: Path, plan: Plan) -> Plan:
    """Return a plan that names its model from a folder: the same wherever somebody stands."""
    model = plan.report.model
    with suppress(ValueError):  # on another drive there is no way from here to there
        path = Path(os.path.relpath(Path(model.path).absolute(), folder.absolute()))
        return plan.with_report(
            replace(plan.report, model=replace(model, path=path.as_posix()))
        )
    return plan
