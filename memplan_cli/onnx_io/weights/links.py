"""Data files that are links: followed where the runtime follows them, refused elsewhere.

Within the model's folder it follows all (measured). Where the model is a link itself, as in the
caches that downloads share, it follows those into the folder of the file that this leads to.
"""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

from memplan_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable


def refuse_links_away(names: Iterable[str], model: Path) -> None:
    """Refuse data files of a model that no runtime takes from where they are.

    Raises:
        ModelError: naming the file.
    """
    folders = model.parent.resolve(), model.resolve().parent
    for path in (model.parent / name for name in names):
        if not any(_end(path).is_relative_to(folder) for folder in folders):
            raise ModelError(
                f"{path} is a link out of the model's folder",
                hint="runtimes refuse such a file; put the data itself beside the model",
            )


def refuse_links_out(names: Iterable[str], folder: Path) -> None:
    """Refuse data files that a model which is written into their folder could not have.

    Raises:
        ModelError: naming the file.
    """
    for path in (folder / name for name in names):
        if not _end(path).is_relative_to(folder.resolve()):
            raise ModelError(
                f"{path} is a link out of its folder: a model written beside it cannot load it",
                hint="-o FOLDER/NAME.onnx writes into another folder, and the weights with it",
            )


def _end(path: Path) -> Path:
    """Return where a path leads; links in a circle lead to themselves, where no file is."""
    return Path(realpath(path))
