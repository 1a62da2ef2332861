"""A model file: read once, planned as often as one likes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import ModelProto, TensorProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.files.assuming import Settled, Trust
    from memplan_cli.core.problem import Allocator
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.planning.candidate import Source
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A model in memory, without its external data, and where it came from."""

    path: Path
    lazy: LazyModel = field(repr=False)
    external: tuple[TensorProto, ...] = field(init=False, repr=False, compare=False)
    """The tensors whose data lies in other files: looked for once, asked for often."""

    def __post_init__(self) -> None:
        from memplan_cli.onnx_io.weights.external_data import external_copies

        object.__setattr__(self, "external", external_copies(self.lazy.model))

    @classmethod
    def of(cls, path: Path, model: ModelProto) -> Self:
        """Return a file whose model was parsed already."""
        from memplan_cli.onnx_io.load import LazyModel

        return cls(path, LazyModel(model, path))

    @property
    def model(self) -> ModelProto:
        """The model; a large one may be parsed for it."""
        return self.lazy.model

    @property
    def data_files(self) -> tuple[str, ...]:
        """Return the files that hold the model's external data, as it names them.

        Raises:
            ModelError: a name leads out of the model's folder.
        """
        from memplan_cli.onnx_io.weights.external_data import locations

        return locations(self.external)


def read_model(path: Path) -> ModelFile:
    """Read a model; its weights stay on disk.

    Raises:
        ModelError: it cannot be read, keeps its data where no runtime takes it from, or
            says of its weights what cannot be.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.weights.external_data import check_external
    from memplan_cli.onnx_io.weights.sizes import check_sums

    file = ModelFile.of(path, load_model(path))
    check_external(file.external, path)
    check_sums(file.model.graph, path.stat().st_size)
    return file


def plan_model(
    file: ModelFile,
    settings: Settings,
    progress: Callable[[str], None] | None = None,
    allocate: Allocator | None = None,
) -> PlannedProgram:
    """Plan a model that was read, with an allocator of the caller's if there is one.

    What comes back has the settings that it was planned under: all that runs the model goes
    by these.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.api.files.assuming import settle

    refuse_caches(settings)
    if progress:
        progress("reading")
    found = settle(file.lazy, file.path, settings)
    return plan_settled(file, found, progress, allocate)


def refuse_caches(settings: Settings) -> None:
    """Refuse caches in place where a model is planned as it is.

    Raises:
        SettingsError: they are asked for, or a capacity that nothing has.
    """
    if settings.kv_cache != "keep":
        raise SettingsError(
            "--kv-cache in-place makes another model, which only `memplan optimize` does",
            hint="look at the file that it writes",
        )
    if settings.capacity is not None:
        raise SettingsError(
            "--capacity is that of caches in place", hint="add --kv-cache in-place"
        )


def plan_settled(
    file: ModelFile,
    found: Settled,
    progress: Callable[[str], None] | None = None,
    allocate: Allocator | None = None,
) -> PlannedProgram:
    """Plan a model whose sizes were found.

    Raises:
        MemplanError: a setting is wrong.
    """
    from memplan_cli.api.rewrites import REWRITES
    from memplan_cli.planning.planner import make_plan

    settings = replace(found.settings, profile_shapes=found.loaded.observed)
    source = knowing(file.model, source_of(file, found.loaded.warnings), settings)
    source = replace(source, seen=found.loaded.seen)
    file.lazy.release()
    return make_plan(
        found.loaded.program,
        settings,
        source,
        REWRITES,
        allocate=allocate,
        progress=progress,
    )


def bind_whole(file: ModelFile, settings: Settings, trust: Trust = "tried") -> Settings:
    """Return settings with a number for every dim of a model, as a run needs them.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.api.files.assuming import settle
    from memplan_cli.api.files.binding import bind
    from memplan_cli.onnx_io.interface import free_dims

    bound = bind(file.model, settings)
    if bound.inputs.assumed is not None or free_dims(file.model).keys() <= bound.dims.keys():
        return bound
    return settle(file.lazy, file.path, bound, trust).settings


def knowing(model: ModelProto, source: Source, settings: Settings) -> Source:
    """Return a source with what splits of ops hang on, where regions may be put in pieces."""
    if settings.chunk != "auto":
        return source
    from memplan_cli.onnx_io.constants import small_constants
    from memplan_cli.onnx_io.load import standard_opset

    return replace(source, constants=small_constants(model), opset=standard_opset(model))


def source_of(file: ModelFile, warnings: tuple[str, ...] = ()) -> Source:
    """Return what a plan says of the file that it is about."""
    from memplan_cli.onnx_io.interface import open_inputs
    from memplan_cli.onnx_io.load import file_digest, graph_digest
    from memplan_cli.onnx_io.metadata import recorded_phases
    from memplan_cli.planning.candidate import Source

    return Source(
        path=str(file.path),
        sha256=file_digest(file.path),
        graph_sha256=graph_digest(file.model),
        warnings=warnings,
        recorded_phases=recorded_phases(file.model),
        inputs=open_inputs(file.model),
    )
