"""The reader of a file of inputs, by its suffix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.runs.input_files.archive import read_archive
from memplan_cli.onnx_io.runs.input_files.found import LARGEST, Found, unreadable
from memplan_cli.onnx_io.runs.input_files.said import read_json
from memplan_cli.onnx_io.runs.input_files.tensors import read_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from onnx import ValueInfoProto

_FORMATS = "inputs come as .npz, as a folder of input_*.pb, or as .json"

_READERS: Mapping[str, Callable[[Path, Sequence[ValueInfoProto]], Iterator[Found]]] = {
    ".npz": read_archive,
    ".json": read_json,
}


def read_file(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield what a file or folder says of inputs.

    Args:
        path: its suffix says what it is.
        wanted: the inputs that a model takes, in order.

    Raises:
        SettingsError: it cannot be read, or is not what it should be.
    """
    refuse_endless(path, SettingsError, 2 * LARGEST)
    if not path.exists():
        raise SettingsError(f"there is no file {path}", hint=_FORMATS)
    read = read_folder if path.is_dir() else _READERS.get(path.suffix.lower())
    if read is None:
        raise SettingsError(f"{path} is no file of inputs", hint=_FORMATS)
    try:
        yield from read(path, wanted)
    except SettingsError:
        raise
    except Exception as error:
        raise unreadable(str(path), error) from error
