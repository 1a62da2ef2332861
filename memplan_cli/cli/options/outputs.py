"""Where may a result go? Looked at before any work is done, and written there after it.

``-`` is standard output where the result is text, and no file anywhere: nobody who types it
wants a file of that name (``./-`` is one).
"""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memplan_cli.cli.common import say
from memplan_cli.errors import ModelError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.cli.common import Output

_STDOUT = "-"


class TargetFile(click.Path):
    """A file to write beside what goes to standard output, so ``-`` is none."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, or fail as click does."""
        text = str(value)
        if not text:
            self.fail("a file needs a name.", param, ctx)
        if text == _STDOUT:
            self.fail(
                "this goes into a file, and '-' is none (./- is a file of that name).",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class ResultFile(TargetFile):
    """Where the result itself goes: ``-`` is standard output, which None means too."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - as click's own
        """Return the path, None for standard output, or fail as click does."""
        return None if str(value) == _STDOUT else super().convert(value, param, ctx)


result_option = click.option(
    "-o", "--output", "out", type=ResultFile(), help="File to write; - is standard output."
)


def deliver(text: str, out: Path | None, output: Output) -> None:
    """Print a result, or write it into the file that was asked for and name that.

    Raises:
        ModelError: it cannot be written.
    """
    if out is None:
        say(text)
        return
    from memplan_cli.core.files import write_files

    write_files({out: text.encode()})
    output.note(f"memplan: wrote {out}")


def refuse_targets(targets: Mapping[str, Path | None], read: Iterable[Path] = ()) -> None:
    """Refuse files that cannot be written, that are needed, or that two things would go into.

    Args:
        targets: what is written -> its file, None where it is not asked for.
        read: what the command reads: models, whose weights are needed too, plans, a baseline.

    Raises:
        ModelError: there is no such folder, a folder has the name, or no file can have it.
        SettingsError: the file is in use.
    """
    taken: dict[Path, str] = {}
    sources = {_followed(path) for path in read}
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
            raise SettingsError(
                f"{what}: {path} is the model itself or its plan, or another file that is read",
                hint="name another file",
            )
        for source in sources:
            if place.exists() and _holds_weights(source, place):
                raise SettingsError(
                    f"{what}: weights of {source.name} lie in {path}", hint="name another file"
                )
        if place in taken:
            raise SettingsError(
                f"{what} and {taken[place]} would both go into {path}",
                hint="name another file for one of them",
            )
        taken[place] = what


def _holds_weights(model: Path, place: Path) -> bool:
    from memplan_cli.onnx_io.weights.external_data import holds_data_of

    return holds_data_of(model, place)


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
