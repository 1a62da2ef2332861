"""Output files: one guard for what must not be written over, one transaction for all."""

from __future__ import annotations

from contextlib import contextmanager
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from memplan_cli.core.files import Content


def refuse_targets(
    targets: Mapping[str, Path | None],
    read: Iterable[Path] = (),
    weights: Mapping[Path, str] | None = None,
) -> None:
    """Refuse files that cannot be written, that are needed, or that two things would go into.

    Args:
        targets: what is written -> its file, None where it is not asked for.
        read: what is read: models, whose weights are needed too, plans, a baseline.
        weights: files of weights that are needed, each with its model's name; None: what is
            read says it.

    Raises:
        ModelError: there is no such folder, a folder has the name, or the file is in use.
    """
    taken: dict[Path, str] = {}
    sources = {_followed(path) for path in read}
    data = None if weights is None else {_followed(p): name for p, name in weights.items()}
    for what, path in targets.items():
        if path is None or _is_special(path, what):
            continue
        if path.is_dir():
            raise ModelError(f"{what}: {path} is a folder", hint="name a file")
        if not path.parent.is_dir():
            raise ModelError(
                f"{what}: there is no folder {path.parent} to write into",
                hint="create it first",
            )
        place = _followed(path)
        if any(_is_same(place, source) for source in sources):
            raise ModelError(
                f"{what}: {path} is the model itself or its plan, or another file that is read",
                hint="name another file",
            )
        model = _model_with_weights(place, sources, data)
        if model is not None:
            raise ModelError(
                f"{what}: weights of {model} lie in {path}", hint="name another file"
            )
        if place in taken:
            raise ModelError(
                f"{what} and {taken[place]} would both go into {path}",
                hint="name another file for one of them",
            )
        taken[place] = what


def _model_with_weights(
    place: Path, sources: Iterable[Path], weights: Mapping[Path, str] | None
) -> str | None:
    """Return whose weights lie, or will lie, in a file; None where nobody's do."""
    if weights is not None:
        return weights.get(place)
    from memplan_cli.onnx_io.weights.external_data import holds_data_of

    models = (source for source in sources if place.exists() and holds_data_of(source, place))
    return next((source.name for source in models), None)


def _is_special(path: Path, what: str) -> bool:
    """Whether a path is a device or a pipe, which takes all that is written into it."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError as error:
        raise ModelError(f"{what}: {path} cannot be written: {error.strerror}") from error


def _followed(path: Path) -> Path:
    """Return where links lead; of a circle of them, which `Path.resolve` refuses, one."""
    return Path(realpath(path))


def _is_same(place: Path, other: Path) -> bool:
    """Whether two places, links followed, are one file."""
    return place == other or (place.exists() and other.exists() and place.samefile(other))


class OutputFiles:
    """Files that get their names together, their weights beside them: all of them, or none.

    Weights are brought at once, so that a trial finds them, and go again unless `write`
    succeeds.

    Args:
        weights: the files of the weights, as the model names them.
        source: the folder where they lie.
        target: the folder that they are brought to.
        own: those that belong to an earlier version of the output, and may be replaced.

    Raises:
        ModelError: a file is in the way or cannot be written.
    """

    def __init__(
        self, weights: Sequence[str], source: Path, target: Path, own: Collection[str] = ()
    ) -> None:
        from memplan_cli.onnx_io.weights.external_data import copy_along

        self._created: tuple[Path, ...] = copy_along(weights, source, target, own=own)
        self._done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        from memplan_cli.onnx_io.weights.external_data import remove

        if not self._done:
            remove(self._created)

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """Take back what was brought if the block fails, for one who has not entered yet."""
        try:
            yield
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def forget(self) -> None:
        """Let the weights of an earlier version go: it has been replaced."""
        from memplan_cli.onnx_io.weights.external_data import forget

        forget(self._created)

    def write(self, contents: Mapping[Path, Content]) -> tuple[Path, ...]:
        """Give the files their names; return the weights that were brought.

        Raises:
            ModelError: one cannot be written; everything is as before.
        """
        from memplan_cli.core.files import write_files

        write_files(contents)
        self._done = True
        return tuple(path for path in self._created if path.is_file())
