"""Models as callers have them, a path, bytes or a `ModelProto`, as files that workflows read.

What is in memory gets a temporary file for as long as it is read, for the digest, the runtime's
processes and the weights are all those of a file. Where it was is in no result and no message.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from memplan_cli.api.files.file_names import NO_PLACE
from memplan_cli.core.results.plan import Plan
from memplan_cli.errors import MemplanError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    ModelSource: TypeAlias = Path | str | bytes | ModelProto

Found = TypeVar("Found")

IN_MEMORY = "in-memory.onnx"
"""What a model without a file is called."""

NO_FOLDER = "its folder, of which a model in memory has none"
"""What is said of the folder beside a model that has none."""


def is_path(model: ModelSource) -> bool:
    """Whether a model is a file already."""
    return isinstance(model, str | Path)


def on_files(models: tuple[ModelSource, ...], work: Callable[..., Found]) -> Found:
    """Return what work on the files of models gives, one argument a model.

    Raises:
        ModelError: a model in memory is none, or larger than a protobuf may be.
        MemplanError: as the work.
    """
    if all(map(is_path, models)):
        return work(*map(_path, models))
    with tempfile.TemporaryDirectory(prefix=NO_PLACE) as name:
        folder = Path(name)
        files = [_file(model, at, folder) for at, model in enumerate(models, start=1)]
        with _unnamed(folder):
            return without_folder(work(*files), f"{folder}/")


def _path(model: ModelSource) -> Path:
    return Path(cast("str | Path", model))


def _file(model: ModelSource, at: int, folder: Path) -> Path:
    """Return the file of a model, which is written if it has none."""
    if is_path(model):
        return _path(model)
    path = folder / (IN_MEMORY if at == 1 else f"in-memory{at}.onnx")
    path.write_bytes(_serialized(model))
    return path


def _serialized(model: Any) -> bytes:  # noqa: ANN401 - whatever a caller gives
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    if not hasattr(model, "SerializeToString"):
        raise ModelError(
            f"a {type(model).__name__} is no model",
            hint="give a path, the bytes of an ONNX file or an onnx.ModelProto",
        )
    try:
        return cast("bytes", model.SerializeToString(deterministic=True))
    except Exception as error:  # protobuf's EncodeError has no stable place to import from
        raise ModelError(
            f"the model cannot be serialized: {error}",
            hint="save it with its weights as external data, and give the path",
        ) from error


@contextmanager
def _unnamed(folder: Path) -> Iterator[None]:
    """Leave a folder's name out of errors: it is gone when they are read."""
    try:
        yield
    except MemplanError as error:
        text = str(error)
        if str(folder) not in text + error.hint:
            raise
        told = without_folder(text, f"{folder}/")
        raise type(error)(told, hint=without_folder(error.hint, f"{folder}/")) from error


def without_folder(found: Found, folder: str) -> Found:
    """Return a result that does not say in which folder a model was read.

    Of a plan that is its report: what was decided knows no paths.
    """
    return cast("Found", _cleaned(found, folder))


def _cleaned(value: Any, folder: str) -> Any:  # noqa: ANN401 - parts of any result
    if isinstance(value, str):
        return value.replace(folder, "").replace(folder[:-1], NO_FOLDER)
    if isinstance(value, Plan):
        return value.with_report(_cleaned(value.report, folder))
    if isinstance(value, Mapping):
        return {name: _cleaned(item, folder) for name, item in value.items()}
    if type(value) is tuple:
        return tuple(_cleaned(item, folder) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
    new = {name: _cleaned(item, folder) for name, item in old.items()}
    changed = {name: item for name, item in new.items() if item != old[name]}
    return replace(value, **changed) if changed else value
