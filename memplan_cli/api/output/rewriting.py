"""One way to write a model: what was planned, the files that it goes into, and writing them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.api.models.file_names import default_output, is_lasting, plan_beside
from memplan_cli.api.output.output_files import refuse_overwriting, refuse_targets
from memplan_cli.api.output.weight_files import (
    NewWeights,
    fold_beside,
    move_beside,
    own_weights,
    possible_weights,
)
from memplan_cli.core.files import write_files
from memplan_cli.core.results.memory import ExternalWeights
from memplan_cli.core.results.observations import CPU, PROVIDERS
from memplan_cli.core.results.report import FileBytes
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memplan_cli.api.models.model_file import ModelFile
    from memplan_cli.core.files import Content
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.core.results.report import Report
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
            SettingsError: ``settings_out`` ends in ``.json``, the name of the JSON beside it.
        """
        for path in (source, model):
            if path is not None and Path(path).is_dir():
                raise ModelError(f"{path} is a folder", hint="name a file")
        model_file = default_output(source) if model is None else Path(model)
        plan_file = plan_beside(model_file) if plan is None else Path(plan)
        certificate_file = None if certificate is None else Path(certificate)
        python = None if settings_out is None else Path(settings_out)
        if python is not None and python.suffix == ".json":
            raise SettingsError(
                "--settings-out takes a file of Python; the JSON is written beside it",
                hint=f"name it {python.with_suffix('.py').name}",
            )
        return cls(model_file, plan_file, python, certificate_file)

    @property
    def settings_files(self) -> tuple[Path, ...]:
        """The runtime settings as Python and as JSON; empty if they are not asked for."""
        if self.settings_out is None:
            return ()
        return self.settings_out, self.settings_out.with_suffix(".json")

    def refuse(self, source: Path) -> None:
        """Refuse files that cannot be written, that are named twice, or that overwrite the source."""
        targets = self._by_option()
        refuse_targets(targets, (source,))
        if self.settings_out is not None:
            # A settings file must not have the name of a weight file that the output may get beside it.
            names = possible_weights(self.model)
            weights = {f"its weights {name}": self.model.with_name(name) for name in names}
            refuse_targets({**weights, **targets})

    def refuse_overwriting_weights(self, file: ModelFile) -> None:
        """Refuse to write over the weights of a model, or where these will be copied to."""
        folders = (file.path.parent, self.model.parent)
        weights = [folder / name for folder in folders for name in file.data_files]
        refuse_overwriting(weights, file.path.name, self._by_option())

    def _by_option(self) -> dict[str, Path]:
        """Return the files that are asked for, by the option that names each in messages."""
        is_default = self.plan == plan_beside(self.model)
        named = {"-o": self.model, "the plan" if is_default else "--plan": self.plan}
        if self.certificate is not None:
            named["--certificate"] = self.certificate
        if self.settings_files:
            python, json = self.settings_files
            named |= {"--settings-out": python, "the JSON of --settings-out": json}
        return named


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A planned model that can be written, run, and compared with its original.

    Attributes:
        file: the model that was planned: the given one, or the graph that ONNX Runtime made of it.
        settings: bound to the given model, with the dims of the run that verifies the written one.
        optimized_from: the given model, if ``file`` is the graph that ONNX Runtime made of it; else
            None.
        metadata: further entries in the metadata of the written model.
    """

    file: ModelFile
    planned: PlannedProgram
    settings: Settings
    targets: Targets
    optimized_from: ModelFile | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """The plan of the model, with what is known of the written model in its report."""
        return self.planned.plan

    def with_plan(self, plan: Plan) -> Self:
        """Return the rewriting with another plan, mostly with more facts in its report."""
        return replace(self, planned=replace(self.planned, plan=plan))

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
        """Whether ONNX Runtime must run the written file without optimizing its graph (a second time)."""
        return self.optimized_offline or is_spoiled_by_optimization(self.plan.report)


def is_spoiled_by_optimization(report: Report) -> bool:
    """Return whether ONNX Runtime's graph optimization would undo a plan, or make it unsafe."""
    if report.recompute.nodes or report.chunked.regions:
        return True  # it would merge copied nodes and chunks
    # It may change the order of nodes, in which a donated input is dead when its output is written.
    # In-place caches are donated in any order, and exclude other donated inputs.
    return bool(report.donated.pairs) and not report.caches.buffers


@contextmanager
def rewritten_files(rewriting: Rewriting) -> Iterator[RewrittenFiles]:
    """Write the weight files of a rewriting beside its output, and serialize its model, for one block.

    The weight files are removed at the end of the block, unless `RewrittenFiles.finish` was called.

    Raises:
        ModelError: a file is in the way or cannot be written, or a folded value cannot be computed.
    """
    file, output = rewriting.file, rewriting.targets.model
    rewriting.targets.refuse_overwriting_weights(file)
    with NewWeights(output, earlier=own_weights(output)) as weights:
        # If ONNX Runtime wrote the graph (``optimized_offline``), its weight files are named after the
        # output, and replace those of an earlier version. Other graphs have the weight files of the
        # original, which must not replace a file of the same name in the output's folder.
        replaceable = weights.earlier if rewriting.optimized_offline else ()
        weights.copy(file.data_files, file.path.parent, replaceable)
        yield _rewritten(rewriting, weights)


def _rewritten(rewriting: Rewriting, weights: NewWeights) -> RewrittenFiles:
    """Fold constants, chunk regions and move weights out of the model file, as planned; serialize the model.

    Folded and moved weights go into files of ``weights``.
    """
    from memplan_cli.onnx_io.metadata import FOLDED, WEIGHTS, donation_note
    from memplan_cli.onnx_io.writing.structure import checked
    from memplan_cli.onnx_io.writing.write import written_model

    file, planned = rewriting.file, rewriting.planned
    report = rewriting.plan.report
    model, program = file.model, planned.program
    # Each step below may add weight files and metadata.
    used_weights = set(file.data_files)
    metadata = {**rewriting.metadata, **donation_note(report.donated.pairs)}
    if report.folded.tensors:
        model, program, data_file = fold_beside(file, planned, weights)
        metadata[FOLDED] = f"{len(report.folded.tensors)} constants"
        if data_file:
            metadata[FOLDED] += f" in {data_file}"
            used_weights.add(data_file)
    if report.chunked.regions:
        from memplan_cli.onnx_io.writing.chunked import chunked_model

        model, program = chunked_model(model, program, planned.constants)
    if model is not file.model:  # its nodes have changed: it must be valid, and fed as before
        checked(model, source=lambda: file.model, program=program, fed_like=file.model)
    moved = ExternalWeights()  # none
    # If ONNX Runtime wrote the graph, the weights are in files already.
    if not rewriting.optimized_offline and rewriting.settings.external_weights != "keep":
        model, moved = move_beside(model, weights, taken=used_weights)
        if moved.file:
            metadata[WEIGHTS] = f"{moved.bytes} bytes in {moved.file}"
            used_weights.add(moved.file)
    data = written_model(model, program, rewriting.plan, metadata)
    return RewrittenFiles(rewriting, weights, data, frozenset(used_weights), moved)


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """A rewritten model as bytes, with its weight files beside the output.

    Attributes:
        weights: the weight files that were created for it.
        data: the serialized model in parts, without the settings to run it with, which are known after
            it was run: `finish` appends them.
        used_weights: the names of all weight files that the model refers to.
        moved: the weights that were moved out of the model file.
    """

    rewriting: Rewriting
    weights: NewWeights
    data: Sequence[bytes]
    used_weights: frozenset[str]
    moved: ExternalWeights

    def finish(self, plan: Plan) -> tuple[Plan, tuple[Path, ...]]:
        """Write the model, its plan, and the files asked for; return the plan as written, and the weight files.

        The weight files were written before, by `rewritten_files`, and are now kept. Those that only an
        earlier version of the output used are deleted. In the written plan, the model's path is relative to
        the plan's folder, and the weights that were moved out are added.

        Raises:
            SettingsError: settings are asked for and nothing was measured.
            ModelError: a file cannot be written.
        """
        targets = self.rewriting.targets
        plan = _named_from(targets.plan.parent, plan)
        # Protobuf merges appended bytes into the message: they add an entry to the model's metadata.
        model = [*self.data, _settings_metadata(self.rewriting, plan)]
        # The plan records the bytes of the model file, so it is encoded once the model is complete.
        files = self._file_bytes(sum(map(len, model)))
        plan = plan.with_report(replace(plan.report, external_weights=self.moved, files=files))
        contents: dict[Path, Content] = {targets.plan: plan.encoded(), targets.model: model}
        if targets.certificate is not None:
            from memplan_cli.features.certificates.certify import certificate_of

            certificate = certificate_of(self.rewriting.planned)
            contents[targets.certificate] = certificate.dumps().encode()
        contents.update(_settings_files(targets, plan))  # raises if nothing was measured
        write_files(contents)
        # The original may lie in the same folder, and use weight files of an earlier output.
        in_use = self.used_weights.union(self.rewriting.original_file.data_files)
        weight_files = self.weights.keep(in_use)  # deletes earlier ones that are not in use
        return plan, weight_files

    def _file_bytes(self, model_bytes: int) -> FileBytes:
        """Return the bytes on disk of the original and of the written model, with their weights.

        ``model_bytes`` is the size of the written model file. Weight files that are not there count as 0.
        """
        original, folder = self.rewriting.original_file, self.rewriting.targets.model.parent
        original_weights = (original.path.parent / name for name in original.data_files)
        return FileBytes(
            original=_total_bytes((original.path, *original_weights)),
            written=model_bytes + _total_bytes(folder / name for name in self.used_weights),
        )


def _total_bytes(files: Iterable[Path]) -> int:
    """Return the bytes of the files that exist."""
    return sum(file.stat().st_size for file in files if file.is_file())


def _settings_files(targets: Targets, plan: Plan) -> Iterator[tuple[Path, bytes]]:
    """Yield the settings of the written model as Python and as JSON, if asked for.

    Raises:
        SettingsError: nothing was measured, so that there are none.
    """
    from memplan_cli.reporting.snippets import settings_json, settings_snippet

    if targets.settings_out is None:
        return
    runtime = plan.report.runtime
    if runtime is None or runtime.settings is None:
        raise SettingsError(
            "the runtime's memory was not measured, so there are no settings",
            hint="remove --settings-out",
        )
    model = str(targets.model)
    python, json = targets.settings_files
    yield python, settings_snippet(runtime.settings, model, runtime.provider).encode()
    yield json, settings_json(runtime.settings, runtime.provider).encode()


def _settings_metadata(rewriting: Rewriting, plan: Plan) -> bytes:
    """Return metadata, as protobuf bytes to append to the model, with the settings to run it with.

    A model whose outputs were compared with an unoptimized run also gets an entry that says so. Empty
    if any settings will do.
    """
    from memplan_cli.onnx_io.metadata import reference_entry
    from memplan_cli.onnx_io.settings_metadata import config_entry, settings_entry

    recorded = _settings_to_record(rewriting, plan)
    if recorded is None:
        return b""
    entry = settings_entry(recorded)
    if _has_unoptimized_reference(plan):
        entry += reference_entry("unoptimized")
    return entry + config_entry(recorded.settings, rewriting.file.model)


def _settings_to_record(rewriting: Rewriting, plan: Plan) -> RecordedSettings | None:
    """Return the settings that the written model records for its sessions; None if any settings will do.

    The settings of the report, if there are any, were found for this model, and keep its outputs. Otherwise,
    sessions must not optimize the graph if the model was made for, or compared with, unoptimized runs.
    """
    from memplan_cli.onnx_io.settings_metadata import RecordedSettings

    runtime = plan.report.runtime
    if runtime is not None and runtime.settings is not None:
        return RecordedSettings(runtime.provider, runtime.settings)
    # A model with donated outputs, whose bindings must be recorded, is ``unoptimized_only``.
    if not rewriting.unoptimized_only and not _has_unoptimized_reference(plan):
        return None
    from memplan_cli.runtime.simulate.predict import ARENA_REUSE_ONLY

    provider = PROVIDERS.get(rewriting.settings.target, CPU)
    output_to_input = {output: input_ for input_, output in plan.report.donated.pairs}
    # Nothing was measured, so the safe settings: no optimization, the file's order, memory reused by the arena only.
    return RecordedSettings(provider, replace(ARENA_REUSE_ONLY, io_binding=output_to_input))


def _has_unoptimized_reference(plan: Plan) -> bool:
    """Return whether the outputs of the written model were compared with an unoptimized run."""
    validation = plan.report.validation
    return validation is not None and validation.reference == "unoptimized"


def _named_from(folder: Path, plan: Plan) -> Plan:
    """Return a plan that names its model relative to a folder; a temporary model by its name alone."""
    model = plan.report.model
    path = Path(model.path)
    name = Path(path.name)
    if is_lasting(path):
        try:
            name = Path(os.path.relpath(path.absolute(), folder.absolute()))
        except ValueError:  # no relative path leads to another drive
            return plan
    return plan.with_report(replace(plan.report, model=replace(model, path=name.as_posix())))
