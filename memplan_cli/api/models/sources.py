"""Models that a caller passes as a path, as bytes or as a `ModelProto`, made available as files.

Digests, worker processes and external weights need a file. A model in memory is therefore written
into a temporary folder for as long as the call lasts. The name of that folder appears neither in
results nor in error messages.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from memplan_cli.api.models.file_names import TEMPORARY_PREFIX
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import MemplanError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    ModelSource: TypeAlias = Path | str | bytes | ModelProto

Result = TypeVar("Result")

IN_MEMORY = "in-memory.onnx"
"""The file name of a model that has no file."""

NO_FOLDER = "its folder, of which a model in memory has none"
"""Stands in messages for the folder of a model that has none."""


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """The files of the models of one call.

    Attributes:
        paths: one path for each model, in the order of the call.
        folder: the temporary folder of the models in memory; None if every model is a file.
    """

    paths: tuple[Path, ...]
    folder: Path | None = None

    @property
    def path(self) -> Path:
        """The path of the first model."""
        return self.paths[0]

    def without_temporary_folder(self, result: Result) -> Result:
        """Return a result in which the temporary folder is left out of every text.

        Of a plan, only the report is searched: the other parts contain no paths.
        """
        return result if self.folder is None else cast("Result", _cleaned(result, self.folder))


@contextmanager
def model_paths(*models: ModelSource) -> Iterator[ModelPaths]:
    """Provide the files of models; those of models in memory are removed when the block ends.

    Results that leave the block must pass through `ModelPaths.without_temporary_folder`, since they may name the
    temporary folder. A `MemplanError` that leaves it is changed here: it does not name the folder any more.

    Raises:
        ModelError: a model in memory is no model, or is larger than a protobuf may be.
    """
    if all(map(is_path, models)):
        yield ModelPaths(tuple(Path(cast("Path | str", model)) for model in models))
        return
    with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as name:
        folder = Path(name)
        try:
            numbered = enumerate(models, start=1)
            paths = tuple(_file(model, number, folder) for number, model in numbered)
            yield ModelPaths(paths, folder)
        except MemplanError as error:
            error.message = _cleaned(error.message, folder)
            error.hint = _cleaned(error.hint, folder)
            error.args = (error.message,)
            raise


def is_path(model: ModelSource) -> bool:
    """Return whether a model is given as the path of a file."""
    return isinstance(model, str | Path)


def _file(model: ModelSource, number: int, folder: Path) -> Path:
    """Return the file of a model; one in memory is written into the folder."""
    if is_path(model):
        return Path(cast("Path | str", model))
    path = folder / (IN_MEMORY if number == 1 else f"in-memory{number}.onnx")
    path.write_bytes(_serialized(model))
    return path


def _serialized(model: Any) -> bytes:  # noqa: ANN401 - whatever a caller gives
    """Return the bytes of a model in memory.

    Raises:
        ModelError: it is no model, or is larger than a protobuf may be.
    """
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if not hasattr(model, "SerializeToString"):
        raise ModelError(
            f"an object of type {type(model).__name__} is not a model",
            hint="give a path, the bytes of an ONNX file or an onnx.ModelProto",
        )
    try:
        return cast("bytes", model.SerializeToString(deterministic=True))
    except Exception as error:  # protobuf's EncodeError has no stable place to import from
        raise ModelError(
            f"the model cannot be serialized: {error}",
            hint="save it with its weights as external data, and give the path",
        ) from error


def _cleaned(value: Any, folder: Path) -> Any:  # noqa: ANN401 - parts of any result
    """Return a value with the folder removed from the texts in its tuples, mappings and dataclasses.

    Objects of other types are returned unchanged: in results, named tuples, lists and ``Path`` objects do not
    name the folder. Of a plan, only the report is searched.
    """
    if isinstance(value, str):
        return value.replace(f"{folder}/", "").replace(str(folder), NO_FOLDER)
    if isinstance(value, Plan):
        return value.with_report(_cleaned(value.report, folder))
    if isinstance(value, Mapping):
        return {name: _cleaned(item, folder) for name, item in value.items()}
    if type(value) is tuple:
        return tuple(_cleaned(item, folder) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in fields(value) if field.init]
    return replace(value, **{name: _cleaned(getattr(value, name), folder) for name in names})
