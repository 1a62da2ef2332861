"""Inputs in an ``.npz``: headers are judged before any data is read, and nothing is unpickled."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.lib import format as npy

from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.runs.input_files.found import (
    Array,
    Found,
    count_of,
    unreadable,
    within_limit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from onnx import ValueInfoProto


def read_archive(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield the arrays of an archive, by their names in it."""
    del wanted
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            where = f"{member.filename[:100]!r} in {path}"
            with archive.open(member) as file:
                shape, dtype = _header(file, member.file_size, where)
            name = member.filename.removesuffix(".npy")
            yield Found(name, where, shape, dtype, _Member(path, member.filename, where))


@dataclass(frozen=True, slots=True)
class _Member:
    path: Path
    name: str
    where: str

    def __call__(self) -> Sequence[Array]:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.name) as file:
                return (npy.read_array(file, allow_pickle=False),)
        except Exception as error:
            raise unreadable(self.where, error) from error


def _header(file: Any, size: int, where: str) -> tuple[tuple[int, ...], str]:  # noqa: ANN401 - a member of an archive
    """Return the shape and type of an array whose bytes are as many as it says."""
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise SettingsError(f"{where}: version {version} of the format is not known")
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise SettingsError(
            f"{where} holds pickled Python objects, which are never unpickled",
            hint="save arrays of numbers, or of text as numpy.str_",
        )
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind in "SMm":
        raise SettingsError(f"{where} is {dtype}, which no input of a model can be")
    if any(dim < 0 for dim in shape):
        raise SettingsError(f"{where} has a negative dim")
    said, there = count_of(shape) * dtype.itemsize, size - file.tell()
    within_limit(where, max(said, there))
    if said != there:
        raise SettingsError(f"{where} says {said} bytes of data and has {there}")
    kind = "str" if dtype.kind == "U" else dtype.newbyteorder("=").name
    return tuple(int(dim) for dim in shape), kind
