"""Weights stored in files beside the model."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import zlib
from copy import deepcopy
from mmap import ACCESS_READ, mmap
from os.path import realpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from memplan_cli.core.files import file_mode, same_bytes, temporary_beside
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_as_written
from memplan_cli.onnx_io.weights.sizes import bytes_of, check_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from onnx import ModelProto, TensorProto


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


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model whose data lies in another file.

    Raises:
        ModelError: the dims or the data of one, in the file or outside, cannot be right.
    """
    for tensor in tensors_of(model):
        check_tensor(tensor)
        if tensor.data_location == tensor.EXTERNAL:
            yield tensor


def external_copies(model: ModelProto) -> tuple[TensorProto, ...]:
    """Return copies of these tensors: a part of a message keeps all of it in memory.

    Raises:
        ModelError: as `external_tensors`.
    """
    return tuple(map(deepcopy, external_tensors(model)))


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors in a model's weights and attributes, each node looked at once."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            attributes = node.attribute
            if not attributes:
                continue
            for attribute in attributes:
                if attribute.HasField("t"):
                    yield attribute.t
                if attribute.HasField("g"):
                    waiting.append(attribute.g)
                yield from attribute.tensors
                waiting.extend(attribute.graphs)


def locations(tensors: Iterable[TensorProto]) -> tuple[str, ...]:
    """Return the files that tensors' data lies in, as the model names them, each once.

    Raises:
        ModelError: a name leads out of the model's folder.
    """
    found: dict[str, None] = {}
    for tensor in tensors:
        location = next((e.value for e in tensor.external_data if e.key == "location"), "")
        path = PurePosixPath(location.replace("\\", "/"))
        if not location or path.is_absolute() or ".." in path.parts or ":" in location[:2]:
            raise ModelError(
                f"tensor {tensor.name[:120]!r} keeps its data in {location[:200]!r}, which "
                "is not inside the model's folder",
                hint="runtimes refuse such a file; move the data beside the model",
            )
        found[location] = None
    return tuple(found)


def holds_data_of(model: Path, place: Path) -> bool:
    """Whether weights of a model lie in a file; what is no model has none.

    Runtimes take data from the model's own folder alone. Reading and parsing take their time:
    they are done where the file is in there, and where its name is somewhere in the model.
    """
    if not place.resolve().is_relative_to(model.parent.resolve()):
        return False
    try:
        with model.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            if text.find(place.name.encode()) < 0:
                return False
        named = locations(external_tensors(load_as_written(model)))
    except (OSError, ValueError, ModelError):  # an empty file cannot be mapped
        return False
    there = (model.parent / name for name in named)
    return any(path.exists() and path.samefile(place) for path in there)


def check_external(tensors: Sequence[TensorProto], model: Path) -> None:
    """Refuse data that no runtime takes from where it is, or that is shorter than it says.

    Data that is not there at all is no fault here: planning never needs it.

    Raises:
        ModelError: naming the tensor and the file.
    """
    names, folder = locations(tensors), model.parent
    refuse_links_away(names, model)
    sizes = {n: (folder / n).stat().st_size for n in names if (folder / n).is_file()}
    for tensor in tensors:
        entries = _entries(tensor)
        size = sizes.get(entries["location"])
        needed = _number(entries, "offset", tensor) + _number(entries, "length", tensor)
        if size is not None and size < needed:
            raise ModelError(
                f"tensor {tensor.name[:120]!r} needs {needed} bytes of "
                f"{folder / entries['location']}, which has {size}"
            )


def loaded(tensor: TensorProto, folder: Path) -> TensorProto:
    """Return a copy of a weight with its data in it; links are followed, as onnx does not."""
    held = deepcopy(tensor)
    if tensor.data_location == tensor.EXTERNAL:
        entries = _entries(tensor)
        with (folder / entries["location"]).open("rb") as file:
            file.seek(_number(entries, "offset", tensor))
            held.raw_data = file.read(_number(entries, "length", tensor) or bytes_of(tensor))
        held.ClearField("external_data")
        held.ClearField("data_location")
    return held


def _entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _number(entries: Mapping[str, str], key: str, tensor: TensorProto) -> int:
    text = entries.get(key, "0")
    if not text.isdecimal() or len(text) > 19:
        raise ModelError(f"tensor {tensor.name[:120]!r} has {text[:40]!r} as its data's {key}")
    return int(text)


def missing(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the data files that are not there."""
    return tuple(name for name in names if not (folder / name).is_file())


def copy_along(
    names: Sequence[str], source: Path, target: Path, own: Collection[str] = ()
) -> tuple[Path, ...]:
    """Bring data files from one folder to another; return what was created.

    Files that are missing at the source are left out: the caller says so. Those of ``own``
    belong to an earlier version of the same output and are put aside: `remove` puts them
    back, `forget` lets them go.

    Raises:
        ModelError: another file of the same name is in the way, a copy failed, or what is
            beside the output already is a link that no runtime follows.
    """
    if source.resolve() == target.resolve():
        refuse_links_out(names, source)
        return ()
    created: list[Path] = []
    try:
        for name in names:
            if not (source / name).is_file():
                continue
            place = target / name
            if name in own:
                _restore_left(place)
            if name in own and place.exists():
                place.replace(_aside(place))
                created.append(place)
            created.extend(p for p in _bring(source / name, place) if p not in created)
    except BaseException:
        remove(created)
        raise
    return tuple(created)


def create(
    place: Path, write: Callable[[BinaryIO], None], own: Collection[str] = ()
) -> tuple[Path, ...]:
    """Write a new data file; return what was created, for `remove` and `forget`.

    It has its name once it is whole. One of ``own`` that has the name is put aside.

    Raises:
        ModelError: it cannot be written.
    """
    partial = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        if place.name in own and place.exists():
            place.replace(_aside(place))
        partial.replace(place)
    except OSError as error:
        raise ModelError(f"{place} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return (place,)


def _aside(path: Path) -> Path:
    """Return where a file waits while it is not known whether another takes its place."""
    return path.with_name(f".{path.name}.{_machine()}-{os.getpid()}.old")


def _machine() -> str:
    """Return what tells one machine's process numbers from another's."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _restore_left(path: Path) -> None:
    """Put back what a run that was killed had put aside for a new version.

    It could not tell whether its version counts, and the one that is written now replaces
    either. What other machines' processes have put aside is left alone.
    """
    pattern = re.compile(rf"{re.escape(f'.{path.name}.{_machine()}-')}(\d+)\.old")
    for left in path.parent.iterdir() if path.parent.is_dir() else ():
        found = pattern.fullmatch(left.name)
        if found and left.is_file() and not left.is_symlink() and _is_gone(int(found[1])):
            left.replace(path)


def _is_gone(process: int) -> bool:
    """Whether there is no such process; where that cannot be told without harm, there is."""
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def forget(created: Sequence[Path]) -> None:
    """Let go what `copy_along` put aside: the new version of the output counts."""
    for path in created:
        _aside(path).unlink(missing_ok=True)


def remove(created: Sequence[Path]) -> None:
    """Take back what `copy_along` created, files and folders, and restore what was there."""
    for path in reversed(created):
        if path.is_dir():
            with contextlib.suppress(OSError):  # somebody else put a file there
                path.rmdir()
        else:
            path.unlink(missing_ok=True)
            if _aside(path).exists():
                _aside(path).replace(path)


def _bring(source: Path, target: Path) -> Iterator[Path]:
    if target.exists():
        if same_bytes(source, target):
            return
        raise ModelError(
            f"{target} is in the way: the model's weights have that name",
            hint="write the model into another folder, or beside its source",
        )
    fresh = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield from reversed(fresh)
        with temporary_beside(target) as partial:
            _clone(source, partial)
            partial.chmod(file_mode(target))
            partial.replace(target)
    except OSError as error:
        raise ModelError(f"{target} cannot be written: {error.strerror}") from error
    yield target


def _clone(source: Path, target: Path) -> None:
    """Copy a file, sharing its blocks where the file system can (Linux FICLONE)."""
    ficlone = 0x40049409
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        with source.open("rb") as old, target.open("wb") as new:
            fcntl.ioctl(new.fileno(), ficlone, old.fileno())
            return
    shutil.copyfile(source, target)
