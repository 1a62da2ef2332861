"""One way to write a model: what was planned, the files that it goes into, and writing them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.api.models.file_names import default_output, is_lasting, plan_beside
from memplan_cli.api.output.output_files import OutputFiles, refuse_targets
from memplan_cli.api.output.weight_files import (
    fold_beside,
    move_beside,
    own_weights,
    possible_weights,
)
from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.core.results.observations import CPU, PROVIDERS
from memplan_cli.core.results.report import FileBytes
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.files import Content
    from memplan_cli.core.program import Program
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Targets:
    """The files to write: a model and its plan; settings and a certificate, if asked for.

    Attributes:
        settings_out: the Python file with the runtime settings of the written model; their JSON is
            beside it.
    """

    model: Path
    plan: Path
    settings_out: Path | None = None
    certificate: Path | None = None

    @classmethod
    def of(
        cls,
        source: Path,
        model: Path | str | None = None,
        plan: Path | str | None = None,
        settings_out: Path | str | None = None,
        certificate: Path | str | None = None,
    ) -> Self:
        """Return the files that the caller named, with defaults beside the source for model and plan.

        `refuse` checks whether they can be written.

        Raises:
            ModelError: the source or the model, after which the others are named, is a folder.
            SettingsError: the settings, which are Python, have the name of their JSON.
        """
        model_file = None if model is None else Path(model)
        for path in (source, model_file):
            if path is not None and path.is_dir():
                raise ModelError(f"{path} is a folder", hint="name a file")
        if model_file is None:
            model_file = default_output(source)
        python = Path(settings_out) if settings_out else None
        if python is not None and python.suffix == ".json":
            raise SettingsError(
                "--settings-out takes a file of Python; the JSON is written beside it",
                hint=f"name it {python.with_suffix('.py').name}",
            )
        plan_file = Path(plan) if plan else plan_beside(model_file)
        return cls(model_file, plan_file, python, Path(certificate) if certificate else None)

    @property
    def settings_files(self) -> tuple[Path, ...]:
        """The runtime settings as Python and as JSON; empty if they are not asked for."""
        if self.settings_out is None:
            return ()
        return self.settings_out, self.settings_out.with_suffix(".json")

    def refuse(self, source: Path) -> None:
        """Refuse files that cannot be written, that are named twice, or that overwrite the source.

        The source is not parsed yet; `refuse_overwriting_weights` looks up its weights.
        """
        # A settings file must not have the name of a weight file that the output may get beside it.
        names = possible_weights(self.model) if self.settings_out is not None else ()
        output_weights = {f"its weights {name}": self.model.with_name(name) for name in names}
        refuse_targets({**output_weights, **self._by_option()}, (source,), source_weights={})

    def refuse_overwriting_weights(self, file: ModelFile) -> None:
        """Refuse to write over the weights of the source, or where these will be copied to."""
        folders = (file.path.parent, self.model.parent)
        source_weights = {
            folder / name: file.path.name for folder in folders for name in file.data_files
        }
        refuse_targets(self._by_option(), (), source_weights)

    def _by_option(self) -> dict[str, Path]:
        """Return the files that are asked for, by the option that names each in messages."""
        is_default = self.plan == plan_beside(self.model)
        named = {"-o": self.model, "the plan" if is_default else "--plan": self.plan}
        if self.certificate is not None:
            named["--certificate"] = self.certificate
        options = "--settings-out", "the JSON of --settings-out"
        return named | dict(zip(options, self.settings_files, strict=False))


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A planned model that can be written, run, and compared with its original.

    Attributes:
        file: the model that was planned: the given one, or the graph that ONNX Runtime made of it.
        optimized_from: the given model, if ``file`` is the graph that ONNX Runtime made of it; else
            None.
        notes: further metadata of the written model.
    """

    file: ModelFile
    planned: PlannedProgram
    settings: Settings
    targets: Targets
    optimized_from: ModelFile | None = None
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def original_file(self) -> ModelFile:
        """The given model, whose outputs the written model must have."""
        return self.optimized_from or self.file

    @property
    def original(self) -> Path:
        """The path of the given model."""
        return self.original_file.path

    @property
    def optimized_offline(self) -> bool:
        """Whether the planned model is a graph that ONNX Runtime optimized and wrote to a file."""
        return self.optimized_from is not None

    @property
    def unoptimized_only(self) -> bool:
        """Whether ONNX Runtime must run the written file without optimizing its graph."""
        if self.optimized_offline:  # it must not optimize a graph twice
            return True
        report = self.planned.plan.report
        if report.recompute.nodes or report.chunked.regions:
            return True  # it would merge copied nodes and chunks
        # It may change the order of nodes, in which a donated input is dead when its output is
        # written. In-place caches are donated in any order, and exclude other donated inputs.
        return bool(report.donated.pairs) and not report.caches.buffers


class RewrittenFiles(OutputFiles):
    """The files of one `Rewriting`, with the bytes of its model.

    Weight files are created with the object and removed at the end of its block, unless `finish`
    was called.

    Attributes:
        data: the serialized model in parts, without the settings to run it with, which are known
            later.

    Raises:
        ModelError: a file is in the way or cannot be written, or a folded value cannot be computed.
    """

    def __init__(self, rewriting: Rewriting) -> None:
        """Write the weight files and serialize the model. On an error, the files are removed again."""
        file, targets = rewriting.file, rewriting.targets
        targets.refuse_overwriting_weights(file)
        earlier_weights = own_weights(targets.model)
        # The weight files of a graph that ONNX Runtime wrote are named after the output: they replace
        # those of an earlier version. Other graphs have the weight files of the original, which must
        # not replace a file of the same name in the output's folder.
        replaceable = earlier_weights if rewriting.optimized_offline else ()
        super().__init__(file.data_files, file.path.parent, targets.model.parent, replaceable)
        self._rewriting, self._targets = rewriting, targets
        # The names of weight files: those of an earlier version of the output, and those that the new
        # version refers to.
        self._earlier_weights, self._used_weights = earlier_weights, set(file.data_files)
        self._moved = ExternalWeights()  # what was moved out of the model file
        try:
            self.data: Sequence[bytes] = self._write_weights_and_serialize()
        except BaseException:  # no block was entered whose end would remove the weight files
            self.remove_weights()
            raise

    def _write_weights_and_serialize(self) -> Sequence[bytes]:
        """Create the weight files; return the rewritten model, which refers to them, serialized in parts.

        The files are added to the object's ``_created`` and ``_used_weights``. If weights are moved out of
        the model, ``_moved`` is set.
        """
        from memplan_cli.onnx_io.metadata import WEIGHTS, donation_note
        from memplan_cli.onnx_io.writing.write import written_model

        rewriting, plan = self._rewriting, self._rewriting.planned.plan
        # The notes are metadata of the written model.
        notes = {**rewriting.notes, **donation_note(plan.report.donated.pairs)}
        model, program = self._fold_and_chunk(notes)  # adds a note about folded constants
        # If ONNX Runtime wrote the graph, the weights are in files already.
        if not rewriting.optimized_offline and rewriting.settings.external_weights != "keep":
            # The new file must not have the name of a used one. It may replace one of an earlier output.
            moved = move_beside(
                model, self._targets.model, self._used_weights, self._earlier_weights
            )
            self._add_weights(moved.created)
            model = moved.model
            self._moved = moved.facts
            if moved.created:
                notes[WEIGHTS] = f"{moved.facts.bytes} bytes in {moved.facts.file}"
        return written_model(model, program, plan, notes)

    def _fold_and_chunk(self, notes: dict[str, str]) -> tuple[ModelProto, Program]:
        """Return the file's model with its constants folded and its regions chunked, as planned, and its program.

        Folded constants that are large go into a weight file. ``notes`` gets an entry about them.
        """
        from memplan_cli.onnx_io.metadata import FOLDED
        from memplan_cli.onnx_io.writing.structure import checked

        file, planned = self._rewriting.file, self._rewriting.planned
        report = planned.plan.report
        model, program = file.model, planned.program
        if report.folded.tensors:
            folded = fold_beside(file, planned, self._targets.model, self._earlier_weights)
            self._add_weights(folded.created)
            model, program = folded.model, folded.program
            where = "".join(f" in {path.name}" for path in folded.created)
            notes[FOLDED] = f"{len(report.folded.tensors)} constants{where}"
        if report.chunked.regions:
            from memplan_cli.onnx_io.writing.chunked import chunked_model

            model, program = chunked_model(model, program, planned.constants)
        if model is not file.model:
            checked(model, lambda: file.model, program, fed_like=file.model)
        return model, program

    def _add_weights(self, created: Sequence[Path]) -> None:
        """Note created weight files as used; they are removed again unless `finish` is called."""
        self._created = (*self._created, *created)
        self._used_weights.update(path.name for path in created)

    def finish(self, plan: Plan) -> tuple[Plan, tuple[Path, ...]]:
        """Write all files; return the plan as written, and the weight files.

        In the written plan, the model's path is relative to the plan's folder, and the weights that
        were moved out are added. Weight files that only an earlier version of the output used are
        deleted.

        Raises:
            SettingsError: settings are asked for and nothing was measured.
            ModelError: a file cannot be written.
        """
        plan = _named_from(self._targets.plan.parent, plan)
        # Protobuf merges appended bytes into the message: they add an entry to the model's metadata.
        model = [*self.data, _settings_metadata(self._rewriting, plan)]
        files = self._file_bytes(sum(map(len, model)))
        plan = plan.with_report(
            replace(plan.report, external_weights=self._moved, files=files)
        )
        contents: dict[Path, Content] = {
            self._targets.plan: plan.encoded(),
            self._targets.model: model,
        }
        if self._targets.certificate is not None:
            from memplan_cli.features.certificates.certify import certificate_of

            certificate = certificate_of(self._rewriting.planned)
            contents[self._targets.certificate] = certificate.dumps().encode()
        contents.update(self._settings_files(plan))  # raises if nothing was measured
        weights = self.write(contents)
        self._drop_unused()
        return plan, weights

    def _file_bytes(self, model_bytes: int) -> FileBytes:
        """Return the bytes on disk of the original and of the written model, with their weights.

        ``model_bytes`` is the size of the written model file. Weight files that are not there count as 0.
        """
        original, folder = self._rewriting.original_file, self._targets.model.parent
        original_weights = (original.path.parent / name for name in original.data_files)
        return FileBytes(
            original=_total_bytes((original.path, *original_weights)),
            written=model_bytes + _total_bytes(folder / name for name in self._used_weights),
        )

    def _settings_files(self, plan: Plan) -> Iterator[tuple[Path, bytes]]:
        """Yield the settings of the written model as Python and as JSON, if asked for."""
        from memplan_cli.reporting.snippets import settings_json, settings_snippet

        if self._targets.settings_out is None:
            return
        runtime = plan.report.runtime
        if runtime is None or runtime.settings is None:
            raise SettingsError(
                "the runtime's memory was not measured, so there are no settings",
                hint="remove --settings-out",
            )
        model = str(self._targets.model)
        python, json = self._targets.settings_files
        yield python, settings_snippet(runtime.settings, model, runtime.provider).encode()
        yield json, settings_json(runtime.settings, runtime.provider).encode()

    def _drop_unused(self) -> None:
        """Delete weight files that only an earlier version of the output used."""
        # The original may use a file of this name in the same folder.
        needed = self._used_weights.union(self._rewriting.original_file.data_files)
        for name in self._earlier_weights:
            if name not in needed:
                self._targets.model.with_name(name).unlink(missing_ok=True)


def _total_bytes(files: Iterable[Path]) -> int:
    """Return the bytes of the files that exist."""
    return sum(file.stat().st_size for file in files if file.is_file())


def _settings_metadata(rewriting: Rewriting, plan: Plan) -> bytes:
    """Return metadata, as protobuf bytes to append to the model, with the settings to run it with.

    A model whose outputs were compared with an unoptimized run also gets an entry that says so. Empty
    if any settings will do.
    """
    from memplan_cli.onnx_io.metadata import reference_entry
    from memplan_cli.onnx_io.settings_metadata import config_entry, settings_entry

    validation = plan.report.validation
    is_unoptimized = validation is not None and validation.reference == "unoptimized"
    recorded = _settings_to_record(rewriting, plan, needs_file_graph=is_unoptimized)
    if recorded is None:
        return b""
    entry = settings_entry(recorded)
    entry += reference_entry("unoptimized") if is_unoptimized else b""
    return entry + config_entry(recorded.settings, rewriting.file.model)


def _settings_to_record(
    rewriting: Rewriting, plan: Plan, *, needs_file_graph: bool
) -> RecordedSettings | None:
    """Return the settings of the report, measured or predicted, or the simplest ones that are right.

    Without settings in the report, a model that must run without graph optimization gets settings that
    ensure this and bind donated outputs to their inputs; for other models None is returned.

    ``needs_file_graph``: the model was compared with an unoptimized run, so it must run in the same way.
    """
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings

    runtime = plan.report.runtime
    if runtime is not None and runtime.settings is not None:
        return RecordedSettings(runtime.provider, runtime.settings)
    if not rewriting.unoptimized_only and not needs_file_graph:
        return None
    from memplan_cli.runtime.simulate.predict import ARENA_REUSE_ONLY

    provider = PROVIDERS.get(rewriting.settings.target, CPU)
    output_to_input = {output: input_ for input_, output in plan.report.donated.pairs}
    # No optimization, the file's order, and, unmeasured, the simplest reuse of memory.
    return RecordedSettings(provider, replace(ARENA_REUSE_ONLY, io_binding=output_to_input))


def _named_from(folder: Path, plan: Plan) -> Plan:
    """Return a plan that names its model relative to a folder; a temporary model by its name alone."""
    model = plan.report.model
    with suppress(ValueError):  # no relative path leads to another drive
        path = Path(model.path)
        relative = os.path.relpath(path.absolute(), folder.absolute())
        path = Path(relative if is_lasting(path) else path.name)
        return plan.with_report(
            replace(plan.report, model=replace(model, path=path.as_posix()))
        )
    return plan
