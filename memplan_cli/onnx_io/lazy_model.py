"""A model that need not be in memory while nobody looks at it.

Parsed, a graph takes thirteen times the bytes of its file, and planning needs none of them
once the program is read. So a large one is released and parsed again for its writing, a
fiftieth of the whole time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_again

if TYPE_CHECKING:
    from pathlib import Path

    from onnx import ModelProto

LARGE = 20_000
"""Nodes from which on a graph is released: parsed, it takes seven megabytes."""

_Stamp = tuple[int, int, int]


class LazyModel:
    """A model, or the file that it can be parsed from again."""

    def __init__(self, model: ModelProto, path: Path | None = None) -> None:
        """Wrap a model; without the file that it came from, it stays in memory."""
        is_large = len(model.graph.node) >= LARGE
        self._path = path if is_large else None
        self._stamp = None if self._path is None else _stamp(self._path)
        self._model: ModelProto | None = model

    @property
    def model(self) -> ModelProto:
        """The model: whoever keeps it while it is released keeps its memory.

        Raises:
            ModelError: it was released, and its file is another one now.
        """
        if self._model is None and self._path is not None:
            found = load_again(self._path)
            if _stamp(self._path) != self._stamp:
                raise ModelError(f"{self._path} changed while it was planned")
            self._model = found
        assert self._model is not None  # noqa: S101 - only what has a file is released
        return self._model

    def release(self) -> None:
        """Release a large model until somebody reads it."""
        if self._path is not None and self._model is not None:
            self._model = None


def lazy(model: ModelProto | LazyModel) -> LazyModel:
    """Return a model as a lazy one; one without a file stays in memory."""
    return model if isinstance(model, LazyModel) else LazyModel(model)


def _stamp(path: Path) -> _Stamp:
    """Return what is another one where a file was written to or replaced."""
    try:
        found = path.stat()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_size, found.st_mtime_ns
