"""Output files: refuse to overwrite what is needed, and write all files of a command or none."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Self

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memplan_cli.core.files import Content


def refuse_targets(
    targets: Mapping[str, Path | None],
    sources: Iterable[Path] = (),
    source_weights: Mapping[Path, str] | None = None,
) -> None:
    """Refuse output files that cannot be written, that are inputs, or that are named twice.

    Args:
        targets: the output file by option; None if it is not asked for.
        sources: the files that the command reads, models among them.
        source_weights: the weight files that must not be overwritten, with the name of their model.
            None: those of the sources, each of which is parsed for them. Empty: none.

    Raises:
        ModelError: the folder does not exist, the file is a folder, or the file is in use.
    """
    options: dict[Path, str] = {}
    read = {_without_links(path) for path in sources}
    if source_weights is not None:
        source_weights = {_without_links(path): name for path, name in source_weights.items()}
    for option, path in targets.items():
        if path is None or _is_device_or_pipe(path, option):  # nothing is overwritten in these
            continue
        _refuse_folder(path, option)
        place = _without_links(path)
        if any(_is_same(place, source) for source in read):
            raise ModelError(
                f"{option}: {path} would overwrite a file that this command reads",
                hint="name another file",
            )
        if source_weights is not None:
            model = source_weights.get(place)
        else:
            model = _model_with_weights(place, read)
        if model is not None:
            raise ModelError(
                f"{option}: {path} contains weights of {model}", hint="name another file"
            )
        if place in options:
            raise ModelError(
                f"{option} and {options[place]} name the same file, {path}",
                hint="name another file for one of them",
            )
        options[place] = option


def _refuse_folder(path: Path, option: str) -> None:
    """Raise ModelError if a path is a folder, or names a file in a folder that does not exist."""
    if path.is_dir():
        raise ModelError(f"{option}: {path} is a folder", hint="name a file")
    if not path.parent.is_dir():
        raise ModelError(
            f"{option}: there is no folder {path.parent} to write into",
            hint="create it first",
        )


def _model_with_weights(path: Path, sources: Iterable[Path]) -> str | None:
    """Return the name of the source whose weights are in a file; None if there is none."""
    from memplan_cli.onnx_io.weights.external_data import holds_data_of

    for source in sources:
        if holds_data_of(source, path):
            return source.name
    return None


def _is_device_or_pipe(path: Path, option: str) -> bool:
    """Return whether a path is a device or a pipe, which can be written at any time."""
    try:
        return path.exists() and not path.is_file() and not path.is_dir()
    except OSError as error:
        raise ModelError(f"{option}: {path} cannot be written: {error.strerror}") from error


def _without_links(path: Path) -> Path:
    """Return the path that symbolic links lead to; a circle of links is no error here."""
    return Path(realpath(path))


def _is_same(place: Path, other: Path) -> bool:
    """Return whether two paths without links are one file."""
    return place == other or (place.exists() and other.exists() and place.samefile(other))


class OutputFiles:
    """The output files of a model, written together with its weights.

    The constructor creates files: the weights are copied (or linked) to the output's folder, so that
    the model can be run under a temporary name. The block that uses the object removes them again
    at its end unless `write` was called.

    Args:
        weights: the weight files, as the model names them.
        source: the folder that they are in.
        target: the output's folder.
        replaceable: names of weight files in the output's folder that may be replaced, because they
            belong to an earlier version of the output.

    Raises:
        ModelError: another file is in the way, or one cannot be written.
    """

    def __init__(
        self,
        weights: Sequence[str],
        source: Path,
        target: Path,
        replaceable: Collection[str] = (),
    ) -> None:
        from memplan_cli.onnx_io.weights.external_data import copy_along

        self._created: tuple[Path, ...] = copy_along(weights, source, target, replaceable)
        self._is_written = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._is_written:
            self.remove_weights()

    def remove_weights(self) -> None:
        """Remove the copied weights, and restore those of an earlier version."""
        from memplan_cli.onnx_io.weights.external_data import remove

        remove(self._created)

    def discard_earlier_weights(self) -> None:
        """Delete the weights of an earlier version, which were set aside: the new version is final.

        `remove_weights` no longer restores them then.
        """
        from memplan_cli.onnx_io.weights.external_data import forget

        forget(self._created)

    def write(self, contents: Mapping[Path, Content]) -> tuple[Path, ...]:
        """Write all files under their names; return the weight files that were copied.

        From then on, the end of the block leaves the weights where they are.

        Raises:
            ModelError: one cannot be written, see `write_files`.
        """
        from memplan_cli.core.files import write_files

        write_files(contents)
        self._is_written = True
        return tuple(path for path in self._created if path.is_file())
