"""Weights that a model keeps in files beside it: found, checked, copied.

ONNX Runtime refuses data outside the model's own folder: a path with ``..``, an absolute path, a link
that leads out. Links inside the folder are followed. If the model itself is a link, as in download
caches, links into the folder of the linked file are followed too (measured). ``onnx.checker`` refuses
hard links as well.

So a model that is written into another folder needs a copy of its data there; a clone of the same
blocks, if the file system supports it. A model written beside its source refers to the same file.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from copy import deepcopy
from mmap import ACCESS_READ, mmap
from os.path import realpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from memplan_cli.core.files import file_mode
from memplan_cli.core.temporary import temporary_beside
from memplan_cli.errors import ModelError
from memplan_cli.onnx_io.load import load_as_written
from memplan_cli.onnx_io.traversal import graphs
from memplan_cli.onnx_io.weights.sizes import check_tensor, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from onnx import ModelProto, TensorProto

Result = TypeVar("Result")


def external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield the tensors of a model whose data is external.

    Raises:
        ModelError: dims and data of a tensor (external or not) disagree.
    """
    for tensor in tensors_of(model):
        check_tensor(tensor)
        if tensor.data_location == tensor.EXTERNAL:
            yield tensor


def external_copies(model: ModelProto) -> tuple[TensorProto, ...]:
    """Return copies of the external tensors: a reference to one would keep the whole model in memory.

    Raises:
        ModelError: as `external_tensors`.
    """
    return tuple(map(deepcopy, external_tensors(model)))


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all tensors of a model's graphs, those in node attributes and subgraphs included.

    A sparse tensor yields the tensors of its values and indices. Tensors in functions of the model are left out.
    """
    for graph in graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for attribute in (a for node in graph.node for a in node.attribute):
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            sparse_tensors = [*attribute.sparse_tensors]
            if attribute.HasField("sparse_tensor"):
                sparse_tensors.append(attribute.sparse_tensor)
            for sparse in sparse_tensors:
                yield from (sparse.values, sparse.indices)


def locations(tensors: Iterable[TensorProto]) -> tuple[str, ...]:
    """Return the locations of external tensors as the model names them, each once.

    Raises:
        ModelError: a location leads out of the model's folder.
    """
    names: dict[str, None] = {}
    for tensor in tensors:
        location = entries_of(tensor).get("location", "")
        # A colon among the first two characters: a drive of Windows.
        path = PurePosixPath(location.replace("\\", "/"))
        if not location or path.is_absolute() or ".." in path.parts or ":" in location[:2]:
            raise ModelError(
                f"tensor {tensor.name[:120]!r} keeps its data in {location[:200]!r}, which "
                "is not inside the model's folder",
                hint="runtimes refuse such a file; move the data beside the model",
            )
        names[location] = None
    return tuple(names)


def holds_data_of(model: Path, place: Path) -> bool:
    """Whether the file ``place`` holds weights of a model; False if it does not exist, or ``model`` is no model.

    The model is parsed only if the file is in the model's folder and the model seems to have external data.
    """
    if not place.exists() or not place.resolve().is_relative_to(model.parent.resolve()):
        return False
    try:
        with model.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as text:
            if text.find(b"location") < 0:  # the key of the name of a data file
                return False
        named = locations(external_tensors(load_as_written(model)))
    except (OSError, ValueError, ModelError):  # an empty file cannot be mapped
        return False
    paths = (model.parent / name for name in named)
    return any(path.exists() and path.samefile(place) for path in paths)


def check_external(tensors: Sequence[TensorProto], model: Path) -> None:
    """Refuse external data behind links that runtimes do not follow, and files that are too short.

    A missing file is no error: planning does not need the data.

    Raises:
        ModelError: naming the tensor and the file.
    """
    names, folder = locations(tensors), model.parent
    # If the model is a link, runtimes also follow links into the folder of the linked file.
    folders = folder.resolve(), model.resolve().parent
    for path in (folder / name for name in names):
        if not any(_link_target(path).is_relative_to(allowed) for allowed in folders):
            raise ModelError(
                f"{path} is a link out of the model's folder",
                hint="runtimes refuse such a file; put the data itself beside the model",
            )
    sizes = {n: (folder / n).stat().st_size for n in names if (folder / n).is_file()}
    for tensor in tensors:
        location = entries_of(tensor)["location"]
        offset, length = data_range(tensor)
        size, end = sizes.get(location), offset + length
        if size is not None and size < end:
            raise ModelError(
                f"tensor {tensor.name[:120]!r} needs {end} bytes of "
                f"{folder / location}, which has {size}"
            )


def loaded(tensor: TensorProto, folder: Path) -> TensorProto:
    """Return a copy of a tensor that holds its data; links are followed, unlike in onnx.

    If the tensor does not state the length of its data, its dims and dtype give it.
    """
    copy = deepcopy(tensor)
    if tensor.data_location == tensor.EXTERNAL:
        offset, length = data_range(tensor)
        with (folder / entries_of(tensor)["location"]).open("rb") as file:
            file.seek(offset)
            copy.raw_data = file.read(length or tensor_bytes(tensor))
        copy.ClearField("external_data")
        copy.ClearField("data_location")
    return copy


def entries_of(tensor: TensorProto) -> dict[str, str]:
    """Return the entries of an external tensor: ``location``, ``offset``, ``length`` and others."""
    return {entry.key: entry.value for entry in tensor.external_data}


def parse_number(text: str, tensor: TensorProto) -> int:
    """Parse a number in an entry of an external tensor.

    Raises:
        ModelError: it is no number of at most 19 digits, which are enough for 63 bits.
    """
    if not text.isdecimal() or len(text) > 19:
        raise ModelError(
            f"tensor {tensor.name[:120]!r} has {text[:40]!r} where a number is expected"
        )
    return int(text)


def data_range(tensor: TensorProto) -> tuple[int, int]:
    """Return offset and length of an external tensor's data in its file; each is 0 if it is not stated.

    Raises:
        ModelError: one is no number.
    """
    entries = entries_of(tensor)
    return (
        parse_number(entries.get("offset", "0"), tensor),
        parse_number(entries.get("length", "0"), tensor),
    )


def _link_target(path: Path) -> Path:
    """Return the file that a path leads to; a circle of links leads to itself, where there is no file."""
    return Path(realpath(path))


def missing(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Return the data files that do not exist."""
    return tuple(name for name in names if not (folder / name).is_file())


def copy_along(
    names: Sequence[str], source: Path, target: Path, own: Collection[str] = ()
) -> tuple[Path, ...]:
    """Copy data files to another folder; return the created files and folders.

    `remove` undoes the copy, `delete_replaced` makes it final.

    Args:
        names: Locations of the files; those that are missing in ``source`` are skipped.
        source: The folder to copy from.
        target: The folder to copy to. If it is ``source``, nothing is copied.
        own: Names of files in ``target`` that belong to an earlier version of the same output. They are
            set aside until `remove` restores or `delete_replaced` deletes them.

    Raises:
        ModelError: another file has the name, a copy failed, or the folders are one and a file in it is a link
            out of it, to which a model written there could not refer.
    """
    if source.resolve() == target.resolve():
        _refuse_links_out(names, source)
        return ()
    created: list[Path] = []
    try:
        for name in names:
            if not (source / name).is_file():
                continue
            place = target / name
            if name in own and place.exists():
                place.replace(_aside(place))
                # Before the copy: if that fails, `remove` restores the file.
                created.append(place)
            created.extend(p for p in _copy_file(source / name, place) if p not in created)
    except BaseException:
        remove(created)
        raise
    return tuple(created)


def _refuse_links_out(names: Sequence[str], folder: Path) -> None:
    """Raise a ModelError if a data file is a link out of its folder."""
    for path in (folder / name for name in names):
        if not _link_target(path).is_relative_to(folder.resolve()):
            raise ModelError(
                f"{path} is a link out of its folder: a model written beside it cannot load it",
                hint="-o FOLDER/NAME.onnx writes into another folder, and the weights with it",
            )


def create(
    place: Path, write: Callable[[BinaryIO], Result], own: Collection[str] = ()
) -> Result:
    """Write a new data file; return the result of ``write``.

    The file gets its name once it is complete. If it cannot be written, all files are as before. Afterwards
    `remove` deletes the file again, and `delete_replaced` makes it final.

    Args:
        place: The file. The caller has refused a file of that name that is not in ``own``.
        write: Writes the content. It is called once.
        own: Names of files that belong to an earlier version of the same output. One of them at ``place`` is
            set aside until `remove` restores or `delete_replaced` deletes it.

    Raises:
        ModelError: it cannot be written.
    """
    partial = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    try:
        with partial.open("wb") as file:
            result = write(file)
            file.flush()
            os.fsync(file.fileno())
        if place.name in own and place.exists():
            place.replace(_aside(place))
        try:
            partial.replace(place)
        except OSError:
            _restore(place)
            raise
    except OSError as error:
        raise ModelError(f"{place} cannot be written: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)
    return result


def _aside(path: Path) -> Path:
    """Return the name of a file while it is set aside by this process."""
    return path.with_name(f".{path.name}.{os.getpid()}.old")


def delete_replaced(created: Sequence[Path]) -> None:
    """Delete what `copy_along` or `create` set aside: the new files are final."""
    for path in created:
        _aside(path).unlink(missing_ok=True)


def remove(created: Sequence[Path]) -> None:
    """Delete the files and folders that `copy_along` or `create` made; restore what was set aside."""
    for path in reversed(created):
        if path.is_dir():
            with contextlib.suppress(OSError):  # another process put a file there
                path.rmdir()
        else:
            path.unlink(missing_ok=True)
            _restore(path)


def _restore(path: Path) -> None:
    """Give a file that this process set aside its name back."""
    if _aside(path).exists():
        _aside(path).replace(path)


def _copy_file(source: Path, target: Path) -> Iterator[Path]:
    """Copy a file unless the target is equal; yield the folders created for it, then the file.

    The folders are yielded before the file is copied, so that the caller can remove them if that fails.

    Raises:
        ModelError: another file is at the target, or a file cannot be read or written.
    """
    try:
        if target.exists():
            if filecmp.cmp(source, target, shallow=False):
                return
            raise ModelError(
                f"{target} is in the way: the model's weights have that name",
                hint="write the model into another folder, or beside its source",
            )
        fresh = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(fresh):
            folder.mkdir(exist_ok=True)
            yield folder
        with temporary_beside(target) as partial:
            _clone(source, partial)
            partial.chmod(file_mode(target))  # as of any new file there
            partial.replace(target)
    except OSError as error:
        raise ModelError(f"{source} cannot be copied to {target}: {error.strerror}") from error
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
