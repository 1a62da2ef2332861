"""Input files."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.lib import format as npy
from onnx import SequenceProto, TensorProto, helper, numpy_helper

from memplan_cli.core.untrusted_files import refuse_endless
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import ValueInfoProto

LARGEST = 1 << 32
"""Bytes of all inputs together: more is an archive made to fill a disk, or a mistake."""

Array = Any
"""An array of numpy's, of whatever type."""


@dataclass(frozen=True, slots=True)
class Found:
    """One input as a file has it.

    Attributes:
        name: of the graph input.
        where: for messages.
        shape: of the data; None: one value for all elements, or no data.
        dtype: numpy's name, ``str``, or empty: numbers as Python has them.
        load: the arrays, one for each tensor of a sequence; None: only the shape is given.
        is_sequence: whether there may be other than one.
        is_literal: whether numbers are as somebody typed them, and take the input's type.
    """

    name: str
    where: str
    shape: tuple[int, ...] | None
    dtype: str
    load: Callable[[], Sequence[Array]] | None
    is_sequence: bool = False
    is_literal: bool = False

    @property
    def bytes(self) -> int:
        """Return how many the data has by what is said of it, where its type is numpy's."""
        if self.load is None or self.shape is None or self.dtype in ("", "str"):
            return 0
        try:
            return count_of(self.shape) * np.dtype(self.dtype).itemsize
        except (TypeError, ValueError):
            return 0  # a type of another package, whose tensors are in memory, or none at all


def unreadable(where: str, error: Exception) -> SettingsError:
    """Return the one line that is said of a file which its reader gave up."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SettingsError(f"{where} cannot be read: {lines[0][:200]}")


def within_limit(where: str, size: int) -> int:
    """Return a number of bytes that inputs may have.

    Raises:
        SettingsError: it is more.
    """
    if size > LARGEST:
        raise SettingsError(f"{where}: {size} bytes are more than inputs may have ({LARGEST})")
    return size


def count_of(shape: Iterable[int]) -> int:
    """Return how many elements a shape has."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def bytes_of(path: Path, largest: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        SettingsError: it cannot be read, or has more than ``largest``.
    """
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > largest:
        raise SettingsError(f"{path} has more than {largest} bytes")
    return data


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


_LARGEST_TENSOR = (1 << 31) - 1
"""Bytes of a protobuf message; none that is larger can be parsed."""


def read_folder(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield the tensors of ``input_*.pb``, by name where an input has it, else by number."""
    numbered = sorted(
        (int(found[1]), file)
        for file in path.iterdir()
        if (found := re.fullmatch(r"input_(\d{1,9})\.pb", file.name))
    )
    if not numbered:
        inner = next((p.parent for p in sorted(path.glob("*/input_*.pb"))), None)
        raise SettingsError(
            f"there is no input_*.pb in {path}", hint=f"did you mean {inner}?" if inner else ""
        )
    by_name = {value.name: value for value in wanted}
    for number, file in numbered:
        refuse_endless(file, SettingsError, _LARGEST_TENSOR)
        data = bytes_of(file, _LARGEST_TENSOR)
        name = TensorProto.FromString(data).name
        at = wanted[number] if number < len(wanted) else None
        value = by_name.get(name, at)
        if value is None:
            raise SettingsError(
                f"{file} is for no input: the model takes {len(wanted)}"
                + (f", and none is called {name[:100]!r}" if name else "")
            )
        yield _from_pb(value, data, str(file))


def _from_pb(value: ValueInfoProto, data: bytes, where: str) -> Found:
    kind = value.type
    if kind.HasField("optional_type"):
        kind = kind.optional_type.elem_type
    if kind.HasField("sequence_type"):
        arrays = [_array(t, where) for t in SequenceProto.FromString(data).tensor_values]
        dtype = _name_of(arrays[0]) if arrays else ""
        return Found(value.name, where, (), dtype, lambda: arrays, is_sequence=True)
    tensor = TensorProto.FromString(data)
    array = _array(tensor, where)
    return Found(value.name, where, array.shape, _name_of(array), lambda: (array,))


def _array(tensor: TensorProto, where: str) -> NDArray[Any]:
    """Return the data of a tensor that has it with it."""
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise SettingsError(f"{where} keeps its data in another file, which is not read")
    try:
        element = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise SettingsError(f"{where} holds no tensor") from error
    if any(dim < 0 for dim in tensor.dims):
        raise SettingsError(f"{where} has a negative dim")
    within_limit(where, count_of(tensor.dims) * element.itemsize)
    if sum(bool(getattr(tensor, name)) for name in _DATA) > 1:
        raise SettingsError(f"{where} has its data twice")
    return np.asarray(numpy_helper.to_array(tensor))


_DATA = (
    *("raw_data", "float_data", "int32_data", "int64_data"),
    *("double_data", "uint64_data", "string_data"),
)
"""Where a tensor may have its values; in one of them."""


def _name_of(array: NDArray[Any]) -> str:
    return "str" if array.dtype.kind in "OUS" else array.dtype.name


@dataclass(frozen=True, slots=True)
class Draw:
    """The values of one input, the same in every call: the seed is its name.

    Attributes:
        name: of the input.
        shape: of the values.
        draw: what gives them.
    """

    name: str
    shape: tuple[int, ...]
    draw: Callable[[np.random.Generator, tuple[int, ...]], Array]

    def __call__(self) -> Sequence[Array]:
        """Return them, as the tensors of an input are."""
        generator = np.random.default_rng([0, crc32(self.name.encode(errors="replace"))])
        return (self.draw(generator, self.shape),)


def drawn(
    entry: Mapping[str, Any], where: str
) -> Callable[[np.random.Generator, tuple[int, ...]], Array] | None:
    """Return how to draw values between ``low`` and ``high``, or as ``gen`` says."""
    if "low" in entry or "high" in entry:
        return _between(entry.get("low", 0), entry.get("high"), where)
    if "gen" not in entry:
        return None
    kind, *words = str(entry["gen"]).split() or [""]
    numbers = [float(word) if re.search(r"[.eEn]", word) else int(word) for word in words]
    if kind == "randint" and len(numbers) == 2:
        return _between(numbers[0], numbers[1], where)
    if kind == "normal" and len(numbers) <= 1:
        scale = np.float32(numbers[0] if numbers else 1)
        return lambda g, shape: g.standard_normal(shape, dtype=np.float32) * scale
    said = numbers[0] if kind == "const" and len(numbers) == 1 else None
    constant = {"zeros": 0, "ones": 1}.get(kind, said)
    if constant is None:
        raise SettingsError(
            f"{where}: {str(entry['gen'])[:60]!r} draws nothing",
            hint="normal [SCALE], randint LOW HIGH, zeros, ones and const VALUE do",
        )
    return lambda _, shape: np.full(shape, constant)


def _between(
    low: object, high: object, where: str
) -> Callable[[np.random.Generator, tuple[int, ...]], Array]:
    match low, high:
        case (int(), int()) if -(2**63) <= low < high <= 2**63:
            return lambda generator, shape: generator.integers(low, high, shape)
        case (int() | float(), int() | float()) if low < high and np.isfinite(high - low):
            return lambda generator, shape: generator.uniform(low, high, shape)
    raise SettingsError(f"{where}: values are drawn from low up to high, without high itself")


_LARGEST_JSON = 1 << 26


def read_json(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[Found]:
    """Yield what a file says of each input that it names."""
    document = json.loads(bytes_of(path, _LARGEST_JSON), object_pairs_hook=_once)
    entries = document.get("inputs", document) if isinstance(document, dict) else None
    names = {value.name for value in wanted}
    if isinstance(document, dict) and "inputs" in names and "shape" in document["inputs"]:
        entries = document
    if not isinstance(entries, dict):
        raise SettingsError(f'{path} is not {{name: {{"shape": .., "dtype": ..}}}}')
    for name, entry in entries.items():
        where = f"{name[:100]!r} in {path}"
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} is no table of shape, dtype and value")
        yield _entry(name, entry, where)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON in which nothing is said twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SettingsError(f"{twice[:100]!r} is there twice in one object of JSON")
    return found


_KEYS = frozenset({"shape", "dtype", "value", "low", "high", "gen"})

_ALIASES = {"float": "float32", "double": "float64", "string": "str", "boolean": "bool"}


_DRAWN = 8
"""Bytes of a value as it is drawn, before it takes its input's type."""


def _entry(name: str, entry: Mapping[str, Any], where: str) -> Found:
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise SettingsError(
            f"{where} has an unknown key {unknown[0][:60]!r}",
            hint=f"the keys are {', '.join(sorted(_KEYS))}",
        )
    said = str(entry.get("dtype", ""))
    dtype = _ALIASES.get(said, said)
    shape = _shape(entry.get("shape"), where)
    if "value" in entry:
        literal = Found(name, where, shape, dtype, None, is_literal=True)
        return _valued(literal, array_of(entry["value"], where))
    draw = drawn(entry, where)
    if draw is None:
        if shape is None:
            raise SettingsError(f"{where} has neither a shape nor a value")
        return Found(name, where, shape, dtype, None)
    if shape is None:
        raise SettingsError(f"{where} has no shape to draw values for")
    within_limit(where, count_of(shape) * _DRAWN)
    return Found(name, where, shape, dtype, Draw(name, shape, draw))


def array_of(value: object, where: str) -> Array:
    """Return a number, a text, or lists of either, as an array of nothing else.

    Raises:
        SettingsError: numpy would change a text: it cuts off zeros at its end.
    """
    array = np.asarray(value)
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray | np.generic):
        said = value if isinstance(value, str) else list(value)  # type: ignore[call-overload]
        if array.tolist() != said:
            raise SettingsError(
                f"{where}: its value is no text that a run can be given",
                hint="texts do not end in a zero, and do not stand beside numbers",
            )
    return array


def _valued(said: Found, data: Array) -> Found:
    """Return an input of which all values, or one for all, are said."""
    where, shape = said.where, said.shape
    if data.dtype.kind not in "biufU":
        raise SettingsError(f"{where}: its value is no number, text, or even list of them")
    if shape is None:
        return replace(said, shape=data.shape or None, load=lambda: (data,))
    if data.ndim and data.size != count_of(shape):
        raise SettingsError(
            f"{where} has {data.size} values for shape {list(shape)}", hint="say all or one"
        )
    whole = shape
    within_limit(where, count_of(whole) * data.itemsize)
    return replace(
        said, load=lambda: (data.reshape(whole) if data.ndim else np.full(whole, data),)
    )


def _shape(said: object, where: str) -> tuple[int, ...] | None:
    if said is None:
        return None
    match said:
        case list() if all(type(dim) is int and 0 <= dim < 2**63 for dim in said):
            within_limit(where, count_of(said))
            return tuple(said)
    raise SettingsError(f"{where}: a shape is a list of numbers, as in [1, 3, 224, 224]")


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
