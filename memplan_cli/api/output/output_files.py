"""Output files that a command refuses to write: those that are needed, or cannot be written."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def refuse_targets(targets: Mapping[str, Path | None], sources: Iterable[Path] = ()) -> None:
    """Refuse output files that cannot be written, that are inputs, or that are named twice.

    Args:
        targets: the output file by option; None if it is not asked for.
        sources: the files that the command reads. The weight files of models among them are inputs too.

    Raises:
        ModelError: the folder does not exist, the file is a folder, or the file is in use.
    """
    options: dict[Path, str] = {}
    read = {_without_links(path) for path in sources}
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
        model = _model_with_weights(place, read)
        if model is not None:
            raise _contains_weights(path, option, model)
        if place in options:
            raise ModelError(
                f"{option} and {options[place]} name the same file, {path}",
                hint="name another file for one of them",
            )
        options[place] = option


def refuse_overwriting(
    weights: Iterable[Path], model: str, targets: Mapping[str, Path]
) -> None:
    """Refuse output files that would overwrite weight files of a model.

    Args:
        weights: the weight files.
        model: the name of the model, for the message.
        targets: the output file of each option, such as ``--output``.

    Raises:
        ModelError: an output file is one of the weight files.
    """
    places = {_without_links(path) for path in weights}
    for option, path in targets.items():
        if _without_links(path) in places:
            raise _contains_weights(path, option, model)


def _contains_weights(path: Path, option: str, model: str) -> ModelError:
    """Return the error for an output file that would overwrite the weights of a model."""
    return ModelError(
        f"{option}: {path} contains weights of {model}", hint="name another file"
    )


def _refuse_folder(path: Path, option: str) -> None:
    """Raise ModelError if a path is a folder, or names a file in a folder that does not exist."""
    if path.is_dir():
        raise ModelError(f"{option}: {path} is a folder", hint="name a file")
    if not path.parent.is_dir():
        raise ModelError(
            f"{option}: there is no folder {path.parent} to write into", hint="create it first"
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
