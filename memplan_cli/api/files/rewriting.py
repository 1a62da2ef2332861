"""A model, what was planned for it, and the files that both are written into."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.api.files.file_names import has_place, plan_beside, written_beside
from memplan_cli.api.files.output_files import OutputFiles, refuse_targets
from memplan_cli.api.files.own_weights import possible_weights
from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.core.results.observations import CPU, PROVIDERS
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.files.model_file import ModelFile
    from memplan_cli.core.files import Content
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.rewrites import Caches
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Targets:
    """The files to write: a model and its plan; settings and a certificate, if asked for."""

    model: Path
    plan: Path
    settings: Path | None = None
    certificate: Path | None = None

    @classmethod
    def of(
        cls,
        source: Path,
        model: Path | str | None = None,
        plan: Path | str | None = None,
        settings: Path | str | None = None,
        certificate: Path | str | None = None,
    ) -> Self:
        """Return the files that somebody named, and the usual ones beside the source.

        Raises:
            ModelError: a name is that of a folder.
            SettingsError: the settings, which are Python, have the name of their JSON.
        """
        for path in (source, *([] if model is None else [Path(model)])):
            if path.is_dir():
                raise ModelError(f"{path} is a folder", hint="name a file")
        written = Path(model) if model else written_beside(source)
        python = Path(settings) if settings else None
        if python is not None and python.suffix == ".json":
            raise SettingsError(
                "--settings-out takes a file of Python; the JSON is written beside it",
                hint=f"name it {python.with_suffix('.py').name}",
            )
        beside = Path(plan) if plan else plan_beside(written)
        return cls(written, beside, python, Path(certificate) if certificate else None)

    @property
    def settings_files(self) -> tuple[Path, ...]:
        """The settings as Python and as JSON, where they are asked for."""
        if self.settings is None:
            return ()
        return self.settings, self.settings.with_suffix(".json")

    def refuse(self, source: Path) -> None:
        """Refuse targets that cannot be written or that are needed.

        Raises:
            ModelError: naming the file.
        """
        names = possible_weights(self.model) if self.settings is not None else ()
        own = {f"its weights {name}": self.model.with_name(name) for name in names}
        refuse_targets({**own, **self._named()}, (source,), weights={})

    def refuse_weights(self, file: ModelFile) -> None:
        """Refuse targets that are a file of the model's weights, here or where they go.

        Raises:
            ModelError: naming the file.
        """
        folders = (file.path.parent, self.model.parent)
        weights = {f / name: file.path.name for f in folders for name in file.data_files}
        refuse_targets(self._named(), (), weights)

    def _named(self) -> dict[str, Path]:
        named = {"-o": self.model, "--plan": self.plan}
        named |= {} if self.certificate is None else {"--certificate": self.certificate}
        names = "--settings-out", "the JSON of --settings-out"
        return named | dict(zip(names, self.settings_files, strict=False))


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A model, what was planned for it, and where both go."""

    file: ModelFile
    planned: PlannedProgram
    settings: Settings
    targets: Targets
    original: Path | None = None
    """What the model is compared with, where it was not planned as it is."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Further metadata for the written model."""
    caches: Caches | None = None
    """Where caches are in place: their pairs are safe in any order of the nodes."""

    @property
    def compared_with(self) -> Path:
        """Return the file whose outputs count."""
        return self.original or self.file.path

    @property
    def only_as_written(self) -> bool:
        """Whether the runtime's optimisation must not touch the written file."""
        report = self.planned.plan.report
        # Copies would be merged, and a pair is safe only in the order of the file.
        copied = report.recompute.nodes > 0 or bool(report.chunked.regions)
        moved = copied or (bool(report.donated.pairs) and self.caches is None)
        return self.original is not None or moved


class RewrittenFiles(OutputFiles):
    """The files of one rewriting: its weights go along, and go again if it fails.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """

    def __init__(self, rewriting: Rewriting) -> None:
        from memplan_cli.api.files.own_weights import own_weights
        from memplan_cli.onnx_io.metadata import donation_note

        rewriting.targets.refuse_weights(rewriting.file)
        self._rewriting = rewriting
        self._targets = rewriting.targets
        self._earlier = own_weights(self._targets.model)
        self._used = set(rewriting.file.data_files)
        super().__init__(
            rewriting.file.data_files,
            rewriting.file.path.parent,
            self._targets.model.parent,
            own=self._earlier if rewriting.original else (),
        )
        plan = rewriting.planned.plan
        notes = {**rewriting.notes, **donation_note(plan.report.donated.pairs)}
        self._moved = ExternalWeights()
        with self.undone_by_errors():
            if plan.report.folded.tensors:
                self.data = self._folded(notes)
            elif plan.report.chunked.regions:
                self.data = self._in_pieces(notes)
            else:
                program = rewriting.planned.program
                self.data = self._written(rewriting.file.model, program, notes)

    def _written(
        self, model: ModelProto, program: Program, notes: Mapping[str, str]
    ) -> Iterable[bytes]:
        """Return the written model, its weights moved beside it where that is asked for.

        Raises:
            ModelError: a file is in the way or cannot be written.
        """
        from memplan_cli.api.files.moved_weights import move_beside
        from memplan_cli.onnx_io.metadata import WEIGHTS
        from memplan_cli.onnx_io.writing.write import written_model

        rewriting, plan = self._rewriting, self._rewriting.planned.plan
        if rewriting.original is not None or rewriting.settings.external_weights == "keep":
            return written_model(model, program, plan, notes)
        moved = move_beside(model, self._targets.model, self._used, self._earlier)
        self._created = (*self._created, *moved.created)
        self._used.update(path.name for path in moved.created)
        self._moved = moved.facts
        if moved.created:
            notes = {**notes, WEIGHTS: f"{moved.facts.bytes} bytes in {moved.facts.file}"}
        return written_model(moved.model, program, plan, notes)

    def _folded(self, notes: Mapping[str, str]) -> Iterable[bytes]:
        """Return the written model with its constants folded, and bring their data.

        Raises:
            ModelError: a value cannot be computed, or a file is in the way.
        """
        from memplan_cli.api.files.folding import fold_beside
        from memplan_cli.onnx_io.metadata import FOLDED
        from memplan_cli.onnx_io.writing.chunked import chunked_model

        planned, out = self._rewriting.planned, self._targets.model
        folded = fold_beside(self._rewriting.file, planned, out, self._earlier)
        self._created = (*self._created, *folded.created)
        self._used.update(path.name for path in folded.created)
        count = len(planned.plan.report.folded.tensors)
        where = "".join(f" in {path.name}" for path in folded.created)
        notes = {**notes, FOLDED: f"{count} constants{where}"}
        model, program = folded.model, folded.program
        if planned.plan.report.chunked.regions:
            folders = (self._rewriting.file.path.parent, out.parent)
            model, program = chunked_model(model, program, planned.constants, folders)
        return self._written(model, program, notes)

    def _in_pieces(self, notes: Mapping[str, str]) -> Iterable[bytes]:
        """Return the written model with its regions in pieces."""
        from memplan_cli.onnx_io.writing.chunked import chunked_model

        planned, model = self._rewriting.planned, self._rewriting.file.model
        folders = (self._rewriting.file.path.parent,)
        cut, program = chunked_model(model, planned.program, planned.constants, folders)
        return self._written(cut, program, notes)

    def finish(self, plan: Plan) -> tuple[Plan, tuple[Path, ...]]:
        """Give all files their names; return the plan as written, and the weights.

        Raises:
            SettingsError: settings are asked for and nothing was measured.
            ModelError: a file cannot be written.
        """
        plan = _seen_from(self._targets.plan.parent, plan)
        plan = plan.with_report(replace(plan.report, external_weights=self._moved))
        model = [*self.data, _recorded(self._rewriting, plan)]
        contents: dict[Path, Content] = {
            self._targets.plan: plan.encoded(),
            self._targets.model: model,
        }
        contents |= self._certificate()
        weights = self.write({**contents, **dict(self._settings(plan))})
        self._drop_unused()
        return plan, weights

    def _certificate(self) -> Mapping[Path, Content]:
        """Return the file of what shows the plan's bounds, if it is asked for."""
        if self._targets.certificate is None:
            return {}
        from memplan_cli.api.certificate import certificate_for

        found = certificate_for(self._rewriting.file, self._rewriting.planned)
        return {self._targets.certificate: found.dumps().encode()}

    def _settings(self, plan: Plan) -> Iterator[tuple[Path, bytes]]:
        """Yield the settings of the written model as Python and as JSON, if asked for."""
        from memplan_cli.reporting.snippets import settings_json, settings_snippet

        if self._targets.settings is None:
            return
        runtime = plan.report.runtime
        if runtime is None or runtime.settings is None:
            raise SettingsError(
                "the runtime's memory was not measured, so there are no settings",
                hint="leave --settings-out out",
            )
        model = str(self._targets.model)
        python, json = self._targets.settings_files
        yield python, settings_snippet(runtime.settings, model, runtime.provider).encode()
        yield json, settings_json(runtime.settings).encode()

    def _drop_unused(self) -> None:
        """Remove what the earlier output alone has had: nobody would find it again."""
        from memplan_cli.api.files.own_weights import weights_of
        from memplan_cli.onnx_io.load import load_model

        left = [name for name in self._earlier if name not in self._used]
        used = weights_of(load_model(self._rewriting.compared_with)) if left else ()
        for name in left:
            if name not in used:
                self._targets.model.with_name(name).unlink(missing_ok=True)


def _recorded(rewriting: Rewriting, plan: Plan) -> bytes:
    """Return what the end of a written file says of how to run it; nothing where nobody knows.

    What optimisation would undo or make unsafe is run as it stands, measured or not.
    """
    from memplan_cli.onnx_io.settings_metadata import (
        RecordedSettings,
        config_entry,
        settings_entry,
    )

    model, runtime = rewriting.file.model, plan.report.runtime
    if runtime is not None and runtime.settings is not None:
        found = settings_entry(RecordedSettings(runtime.provider, runtime.settings))
        return found + config_entry(runtime.settings, model)
    if not rewriting.only_as_written:
        return b""
    from memplan_cli.runtime.simulate.predict import FREED_AT_ONCE

    provider = PROVIDERS.get(rewriting.settings.target, CPU)
    donated = {made: given for given, made in plan.report.donated.pairs}
    bound = replace(FREED_AT_ONCE, io_binding=donated)
    return settings_entry(RecordedSettings(provider, bound)) + config_entry(bound, model)


def _seen_from(folder: Path, plan: Plan) -> Plan:
    """Return a plan that names its model from a folder: the same wherever somebody stands."""
    model = plan.report.model
    with suppress(ValueError):  # on another drive there is no way from here to there
        path = Path(model.path)
        seen = os.path.relpath(path.absolute(), folder.absolute())
        path = Path(seen if has_place(path) else path.name)
        return plan.with_report(
            replace(plan.report, model=replace(model, path=path.as_posix()))
        )
    return plan
