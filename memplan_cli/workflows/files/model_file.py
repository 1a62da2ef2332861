"""A model file: read once, planned as often as one likes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onnx import ModelProto, TensorProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.problem import Allocator
    from memplan_cli.onnx_io.lazy_model import LazyModel
    from memplan_cli.planning.decided import Source
    from memplan_cli.planning.planner import Planned
    from memplan_cli.settings.settings import Settings
    from memplan_cli.shapes.reading import Loaded


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
        from memplan_cli.onnx_io.lazy_model import LazyModel

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
    check_external(file.external, path.parent)
    check_sums(file.model.graph, path.stat().st_size)
    return file


def load_program(model: ModelProto | LazyModel, path: Path, settings: Settings) -> Loaded:
    """Return the program of a model, read from ``path``, with the sizes that settings give.

    What inputs decide is seen in one run, where they were given and no dim is free.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.onnx_io.lazy_model import lazy
    from memplan_cli.shapes.bindings import Bindings
    from memplan_cli.shapes.given_values import small_values
    from memplan_cli.workflows.files.binding import bind
    from memplan_cli.workflows.files.reading import (
        read_completely,
        read_observed,
        read_with_inputs,
    )

    source = lazy(model)
    del model
    settings = bind(source.model, settings)
    feeds = settings.inputs.feeds or {}
    bindings = Bindings(settings.dims, settings.shapes, values=small_values(feeds))
    if settings.profile_shapes:
        return read_observed(source, path, bindings, feeds)
    if settings.inputs.given:
        return read_with_inputs(source, path, bindings, feeds)
    return read_completely(source, path, bindings)


def plan_model(
    file: ModelFile,
    settings: Settings,
    progress: Callable[[str], None] | None = None,
    allocate: Allocator | None = None,
) -> Planned:
    """Plan a model that was read, with an allocator of the caller's if there is one.

    Raises:
        MemplanError: the model or a setting is wrong.
    """
    from memplan_cli.planning.planner import make_plan
    from memplan_cli.workflows.files.binding import bind

    if progress:
        progress("reading")
    settings = bind(file.model, settings)
    loaded = load_program(file.lazy, file.path, settings)
    if loaded.observed:
        settings = replace(settings, profile_shapes=True)
    source = source_of(file, loaded.warnings)
    if settings.chunk == "auto":
        from memplan_cli.onnx_io.weights.small import small_constants, standard_opset

        known = small_constants(file.model)
        source = replace(source, constants=known, opset=standard_opset(file.model))
    file.lazy.release()
    return make_plan(loaded.program, settings, source, allocate=allocate, progress=progress)


def source_of(file: ModelFile, warnings: tuple[str, ...] = ()) -> Source:
    """Return what a plan says of the file that it is about."""
    from memplan_cli.onnx_io.load import file_digest, graph_digest
    from memplan_cli.onnx_io.metadata import recorded_phases
    from memplan_cli.planning.decided import Source

    return Source(
        path=str(file.path),
        sha256=file_digest(file.path),
        graph_sha256=graph_digest(file.model),
        warnings=warnings,
        recorded_phases=recorded_phases(file.model),
    )
