"""A model file, parsed once, and the functions that bind and plan it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import ModelProto, TensorProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.api.models.resolve_sizes import ResolvedModel
    from memplan_cli.core.problem import Allocator
    from memplan_cli.onnx_io.load import LazyModel
    from memplan_cli.planning.candidate import Source
    from memplan_cli.planning.planner import PlannedProgram
    from memplan_cli.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A parsed model without its external data, and the file that it came from.

    Attributes:
        path: the file.
        lazy: the model; a large one is parsed again when it is needed.
        external: the tensors whose data lies in other files.
    """

    path: Path
    lazy: LazyModel = field(repr=False)
    external: tuple[TensorProto, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from memplan_cli.onnx_io.weights.external_data import external_copies

        object.__setattr__(self, "external", external_copies(self.lazy.model))

    @classmethod
    def of(cls, path: Path, model: ModelProto) -> Self:
        """Return the model file of a model that was parsed already."""
        from memplan_cli.onnx_io.load import LazyModel

        return cls(path, LazyModel(model, path))

    @property
    def model(self) -> ModelProto:
        """The model; a large one may be parsed for it."""
        return self.lazy.model

    @property
    def data_files(self) -> tuple[str, ...]:
        """Return the names of the files with the model's external data, relative to its folder.

        Raises:
            ModelError: a name leads out of the model's folder.
        """
        from memplan_cli.onnx_io.weights.external_data import locations

        return locations(self.external)


def read_model(path: Path) -> ModelFile:
    """Read a model; its external weights are not loaded.

    Raises:
        ModelError: it cannot be read, its external data is not where ONNX Runtime looks for it, or
            the declared sizes of its weights are impossible.
    """
    from memplan_cli.onnx_io.load import load_model
    from memplan_cli.onnx_io.weights.external_data import check_external
    from memplan_cli.onnx_io.weights.sizes import check_initializers

    file = ModelFile.of(path, load_model(path))
    check_external(file.external, path)
    check_initializers(file.model.graph, path.stat().st_size)
    return file


def bind_all_dims(file: ModelFile, settings: Settings) -> Settings:
    """Return bound settings with a number for every dim of a model, as a run needs them.

    Dims that the settings do not bind get assumed numbers. The model may be run to find numbers at
    which it runs.
    """
    from memplan_cli.api.models.binding import bind
    from memplan_cli.api.models.resolve_sizes import resolve_sizes
    from memplan_cli.onnx_io.interface import free_dims

    bound = bind(file.model, settings)
    is_assumed = bound.inputs.assumed is not None  # then each free dim has a number
    if is_assumed or free_dims(file.model).keys() <= bound.dims.keys():
        return bound
    return resolve_sizes(file.lazy, file.path, bound).settings


def plan_model(
    file: ModelFile,
    settings: Settings,
    progress: Callable[[str], None] | None = None,
    allocate: Allocator | None = None,
) -> PlannedProgram:
    """Plan a model with the sizes and input data of settings; dims without a number get one.

    The model may be run to find these numbers, and sizes that depend on data. The settings of the result
    have the numbers and the data; runs of the planned model must use them. ``allocate`` packs the arenas
    in place of memplan's search.
    """
    from memplan_cli.api.models.resolve_sizes import resolve_sizes

    refuse_optimize_settings(settings)
    if progress:
        progress("reading")
    resolved = resolve_sizes(file.lazy, file.path, settings)
    return plan_resolved(file, resolved, progress, allocate)


def plan_resolved(
    file: ModelFile,
    resolved: ResolvedModel,
    progress: Callable[[str], None] | None = None,
    allocate: Allocator | None = None,
) -> PlannedProgram:
    """Plan a model whose sizes are resolved.

    ``file.lazy`` is released, to save memory: a large model is parsed again when it is needed.

    Raises:
        MemplanError: a setting is wrong.
    """
    from memplan_cli.api.rewrites import REWRITES
    from memplan_cli.planning.planner import make_plan

    loaded, settings = resolved.loaded, resolved.settings
    source = replace(
        with_chunking_facts(source_of(file), file.model, settings),
        warnings=loaded.warnings,
        sizes_observed=loaded.observed,
        observed_vars=loaded.observed_vars,
    )
    file.lazy.release()  # planning needs only the program and these facts of the model
    return make_plan(
        loaded.program, settings, source, REWRITES, allocate=allocate, progress=progress
    )


def source_of(file: ModelFile) -> Source:
    """Return what a plan records of the file that it is for."""
    from memplan_cli.onnx_io.interface import open_inputs
    from memplan_cli.onnx_io.load import file_digest, graph_digest
    from memplan_cli.onnx_io.metadata import recorded_phases
    from memplan_cli.planning.candidate import Source

    return Source(
        path=str(file.path),
        sha256=file_digest(file.path),
        graph_sha256=graph_digest(file.model),
        recorded_phases=recorded_phases(file.model),
        inputs=open_inputs(file.model),
    )


def with_chunking_facts(source: Source, model: ModelProto, settings: Settings) -> Source:
    """Return a source with the model's small constants and opset, if chunking is asked for."""
    if settings.chunk != "auto":
        return source
    from memplan_cli.onnx_io.constants import small_constants
    from memplan_cli.onnx_io.load import standard_opset

    return replace(source, constants=small_constants(model), opset=standard_opset(model))


def refuse_optimize_settings(settings: Settings) -> None:
    """Refuse settings that only `optimize` applies where a model is planned as it is.

    Raises:
        SettingsError: ``target``, ``kv_cache`` or ``capacity`` is set.
    """
    if settings.target != "portable":
        raise SettingsError(
            f"--target {settings.target} rewrites the model, which only `memplan optimize` does",
            hint="use the file that it writes",
        )
    if settings.kv_cache != "keep":
        raise SettingsError(
            "--kv-cache in-place rewrites the model, which only `memplan optimize` does",
            hint="use the file that it writes",
        )
    refuse_unused_capacity(settings)


def refuse_unused_capacity(settings: Settings) -> None:
    """Refuse a capacity of caches that are not updated in place."""
    if settings.kv_cache == "keep" and settings.capacity is not None:
        raise SettingsError(
            "--capacity has no effect without --kv-cache in-place",
            hint="add --kv-cache in-place",
        )
