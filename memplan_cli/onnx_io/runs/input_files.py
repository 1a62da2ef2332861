"""Readers of model inputs in ``.npz`` archives, folders of ``input_*.pb``, and JSON.

Files are untrusted. A reader yields an `InputEntry` for each input: names, dtypes and shapes are read
from headers, compared with the bytes that are there, and limited; arrays are loaded later, on
request. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.lib import format as npy
from onnx import OptionalProto, SequenceProto, TensorProto, helper, numpy_helper

from memplan_cli.errors import SettingsError, refuse_endless, unreadable
from memplan_cli.onnx_io.load import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from onnx import ValueInfoProto

    Draw = Callable[[np.random.Generator, tuple[int, ...]], NDArray[Any]]
    """Draws an array of a shape."""

LARGEST = 1 << 32
"""Most bytes of all inputs together: a larger archive was made to fill a disk, or is a mistake."""

_MAX_JSON_BYTES = 1 << 26

_MAX_PROTOBUF_BYTES = (1 << 31) - 1
"""A larger protobuf message cannot be parsed."""

_DRAWN_ITEM_BYTES = 8
"""Bytes of a drawn value before it is converted to the dtype of its input."""

_MAX_FLOAT = sys.float_info.max
"""The largest finite float. NaN and infinity are not between ``-_MAX_FLOAT`` and ``_MAX_FLOAT``."""

_IRREGULAR = "{}: its value is not a number, a text, or a regular list of them"

_FORMATS = "inputs come as .npz, as a folder of input_*.pb, or as .json"


@dataclass(frozen=True, slots=True)
class InputEntry:
    """One input as a file describes it.

    Attributes:
        name: name of the graph input.
        where: the entry and its file, for messages.
        shape: shape of the data; None if one value fills the input, or no shape is stated.
        dtype: numpy's name, ``str``, or empty if the values are Python numbers.
        load: loads the arrays, one for each tensor of a sequence; None if only the shape is given.
        is_sequence: whether the input is a sequence of tensors.
        is_literal: whether the values were typed by hand: a list is then the last axis of the input.
    """

    name: str
    where: str
    shape: tuple[int, ...] | None
    dtype: str
    load: Callable[[], Sequence[NDArray[Any]]] | None
    is_sequence: bool = False
    is_literal: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the data by shape and dtype; 0 if there is no data or numpy lacks the dtype."""
        if self.load is None or self.shape is None or self.dtype in ("", "str"):
            return 0
        try:
            return prod(self.shape) * np.dtype(self.dtype).itemsize
        except (TypeError, ValueError):
            return 0


def read_file(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[InputEntry]:
    """Yield the inputs that a file or folder describes; its suffix decides the format.

    ``wanted`` are the inputs that the model takes, in graph order.

    Raises:
        SettingsError: the file cannot be read, or its content is invalid.
    """
    # Inputs are limited to `LARGEST` when they are read; a file may be larger by headers, padding and text.
    refuse_endless(path, SettingsError, 2 * LARGEST)
    if not path.exists():
        raise SettingsError(f"there is no file {path}", hint=_FORMATS)
    read = _read_folder if path.is_dir() else _READERS.get(path.suffix.lower())
    if read is None:
        raise SettingsError(f"{path} is not a file of inputs", hint=_FORMATS)
    try:
        yield from read(path, wanted)
    except SettingsError:
        raise
    except Exception as error:
        raise _unreadable(str(path), error) from error


def _unreadable(where: str, error: Exception) -> SettingsError:
    return SettingsError(f"{where} cannot be read: {first_line(error)}")


def check_limit(where: str, size: int) -> int:
    """Return ``size``, a number of bytes.

    Raises:
        SettingsError: it exceeds `LARGEST`.
    """
    if size > LARGEST:
        raise SettingsError(f"{where}: {size} bytes are more than inputs may have ({LARGEST})")
    return size


def _read_at_most(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file; raise `SettingsError` if it is larger than ``max_bytes``."""
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise unreadable(path, error, SettingsError) from None
    if len(data) > max_bytes:
        raise SettingsError(f"{path} has more than {max_bytes} bytes")
    return data


# .npz archives


def _read_archive(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[InputEntry]:
    """Yield the arrays of an ``.npz``, by their names in it."""
    del wanted  # a parameter of all readers: an archive names its inputs itself
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            where = f"{member.filename[:100]!r} in {path}"
            with archive.open(member) as file:
                shape, dtype = _read_header(file, member.file_size, where)
            name = member.filename.removesuffix(".npy")
            load = partial(_load_member, path, member.filename, where)
            yield InputEntry(name, where, shape, dtype, load)


def _load_member(path: Path, member: str, where: str) -> Sequence[NDArray[Any]]:
    """Load an array of an ``.npz``, alone in a tuple; ``where`` names it in messages."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return (npy.read_array(file, allow_pickle=False),)
    except Exception as error:
        raise _unreadable(where, error) from error


def _read_header(file: Any, size: int, where: str) -> tuple[tuple[int, ...], str]:  # noqa: ANN401 - a member of an archive
    """Return shape and dtype of an ``.npy`` member of ``size`` bytes.

    Raises:
        SettingsError: the version is unknown, no input can have the dtype or dims, the data is too large, or its
            size is not that in the header.
    """
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise SettingsError(f"{where}: version {version} of the format is not known")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise SettingsError(
            f"{where} holds pickled Python objects, which are never unpickled",
            hint="save arrays of numbers, or of text as numpy.str_",
        )
    # Records, arrays as elements, bytes, dates and durations. A plain ``|V2`` may be bfloat16, which numpy lacks:
    # like all other dtypes, it is compared with that of the input later.
    if dtype.names is not None or dtype.subdtype is not None or dtype.kind in "SMm":
        raise SettingsError(f"{where} is {dtype}, which no input of a model can be")
    if any(dim < 0 for dim in shape):
        raise SettingsError(f"{where} has a negative dim")
    declared_bytes, data_bytes = prod(shape) * dtype.itemsize, size - file.tell()
    check_limit(where, max(declared_bytes, data_bytes))
    if declared_bytes != data_bytes:
        raise SettingsError(
            f"{where} declares {declared_bytes} bytes of data and has {data_bytes}"
        )
    name = "str" if dtype.kind == "U" else dtype.newbyteorder("=").name
    return tuple(int(dim) for dim in shape), name


# Folders of input_*.pb, the format of test data in ONNX's model zoo


def _read_folder(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[InputEntry]:
    """Yield the tensors of ``input_<n>.pb``.

    A tensor belongs to the input of its name if there is one, else to the n-th input. Sequences and
    optionals belong to the n-th.

    Raises:
        SettingsError: there is no such file, or one of them belongs to no input.
        DecodeError: a file is damaged; `read_file` makes a SettingsError of it.
    """
    numbered = sorted(
        (int(match[1]), file)
        for file in path.iterdir()
        if (match := re.fullmatch(r"input_(\d{1,9})\.pb", file.name))
    )
    if not numbered:
        inner = next((p.parent for p in sorted(path.glob("*/input_*.pb"))), None)
        raise SettingsError(
            f"there is no input_*.pb in {path}", hint=f"did you mean {inner}?" if inner else ""
        )
    by_name = {value.name: value for value in wanted}
    for number, file in numbered:
        refuse_endless(file, SettingsError, _MAX_PROTOBUF_BYTES)
        data = _read_at_most(file, _MAX_PROTOBUF_BYTES)
        by_position = wanted[number] if number < len(wanted) else None
        name = _tensor_name(data)
        value = by_name.get(name, by_position)
        if value is None:
            raise SettingsError(
                f"{file} is for no input: the model takes {len(wanted)}"
                + (f", and none is called {name[:100]!r}" if name else "")
            )
        yield _protobuf_entry(value, data, str(file))


def _tensor_name(data: bytes) -> str:
    """Return the name of a serialized TensorProto; ``""`` if it has none, or for a sequence or optional.

    A file does not say which message it has. Other messages either cannot be parsed as a TensorProto, or
    give one without a name: they have no field 8, which is a TensorProto's name.
    """
    try:
        name: str = TensorProto.FromString(data).name
    except Exception:  # noqa: BLE001 - protobuf's DecodeError has no stable place to import from
        return ""
    return name


def _protobuf_entry(value: ValueInfoProto, data: bytes, where: str) -> InputEntry:
    """Decode a serialized TensorProto, SequenceProto or OptionalProto, by the type of the input.

    Raises:
        SettingsError: it is an optional without a value, or a sequence whose elements are not tensors, or
            `_decoded_tensor` raises it.
    """
    value_type = value.type
    if value_type.HasField("optional_type"):
        value_type = value_type.optional_type.elem_type
        optional = OptionalProto.FromString(data)
        field = "sequence_value" if value_type.HasField("sequence_type") else "tensor_value"
        if not optional.HasField(field):
            raise SettingsError(f"{where} is no optional with a value, which the input takes")
        data = getattr(optional, field).SerializeToString()
    if value_type.HasField("sequence_type"):
        sequence = SequenceProto.FromString(data)
        fields = {field.name for field, _ in sequence.ListFields()}
        if not fields <= {"name", "elem_type", "tensor_values"}:
            raise SettingsError(f"{where} holds a sequence whose elements are not tensors")
        arrays = [_decoded_tensor(tensor, where) for tensor in sequence.tensor_values]
        dtype = _dtype_name(arrays[0]) if arrays else ""
        return InputEntry(value.name, where, (), dtype, lambda: arrays, is_sequence=True)
    array = _decoded_tensor(TensorProto.FromString(data), where)
    return InputEntry(value.name, where, array.shape, _dtype_name(array), lambda: (array,))


_TENSOR_DATA = (
    *("raw_data", "float_data", "int32_data", "int64_data"),
    *("double_data", "uint64_data", "string_data"),
)
"""The fields of a TensorProto of which one holds its values."""


def _decoded_tensor(tensor: TensorProto, where: str) -> NDArray[Any]:
    """Return the values of a tensor, which must be in the message itself.

    Raises:
        SettingsError: data is external, twice in the message or too large, or dims or dtype are invalid.
        ValueError: the dims do not fit the data; `read_file` makes a SettingsError of it.
    """
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        raise SettingsError(f"{where} keeps its data in another file, which is not read")
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError as error:
        raise SettingsError(f"{where} holds no tensor") from error
    if any(dim < 0 for dim in tensor.dims):
        raise SettingsError(f"{where} has a negative dim")
    check_limit(where, prod(tensor.dims) * dtype.itemsize)
    if sum(bool(getattr(tensor, field)) for field in _TENSOR_DATA) > 1:
        raise SettingsError(f"{where} has its data twice")
    return np.asarray(numpy_helper.to_array(tensor))


def _dtype_name(array: NDArray[Any]) -> str:
    return "str" if array.dtype.kind in "OUS" else array.dtype.name


# JSON: {name: {"shape": .., "dtype": .., and "value", "low" and "high", or "gen"}}

_KEYS = frozenset({"shape", "dtype", "value", "low", "high", "gen"})

_DTYPE_ALIASES = {"float": "float32", "double": "float64", "string": "str", "boolean": "bool"}


def _read_json(path: Path, wanted: Sequence[ValueInfoProto]) -> Iterator[InputEntry]:
    """Yield the inputs of ``{name: entry}`` or ``{"inputs": {name: entry}}``."""
    text = _read_at_most(path, _MAX_JSON_BYTES)
    document = json.loads(text, object_pairs_hook=_without_duplicates)
    entries = document.get("inputs", document) if isinstance(document, dict) else None
    names = {value.name for value in wanted}
    # The model may have an input called "inputs". ``{"inputs": ..}`` may then be the entry of this input.
    if "inputs" in names and isinstance(entries, dict):
        holds_entries = any(isinstance(value, dict) for value in entries.values())
        entries = entries if holds_entries else document
    if not isinstance(entries, dict):
        raise SettingsError(f'{path} is not {{name: {{"shape": .., "dtype": ..}}}}')
    for name, entry in entries.items():
        where = f"{name[:100]!r} in {path}"
        if not isinstance(entry, dict):
            raise SettingsError(f"{where} is not a table of shape, dtype and value")
        yield _json_entry(name, entry, where)


def _without_duplicates(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        SettingsError: a key occurs twice.
    """
    table = dict(pairs)
    if len(table) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise SettingsError(f"{twice[:100]!r} occurs twice in one JSON object")
    return table


def _json_entry(name: str, entry: Mapping[str, Any], where: str) -> InputEntry:
    """Return one input of a JSON file: literal values, a distribution, or only a shape.

    Raises:
        SettingsError: a key is unknown, the shape or a value is missing or invalid, or there are too many bytes.
    """
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise SettingsError(
            f"{where} has an unknown key {unknown[0][:60]!r}",
            hint=f"the keys are {', '.join(sorted(_KEYS))}",
        )
    dtype = str(entry.get("dtype", ""))
    dtype = _DTYPE_ALIASES.get(dtype, dtype)
    shape = _json_shape(entry.get("shape"), where)
    described = InputEntry(name, where, shape, dtype, None)
    if "value" in entry:
        return _with_values(described, array_of(entry["value"], where))
    draw = _distribution(entry, where)
    if draw is None:
        if shape is None:
            raise SettingsError(f"{where} has neither a shape nor a value")
        return described
    if shape is None:
        raise SettingsError(f"{where} has no shape to draw values for")
    check_limit(where, prod(shape) * _DRAWN_ITEM_BYTES)
    return replace(described, load=partial(_drawn_values, name, shape, draw))


def array_of(value: object, where: str) -> NDArray[Any]:
    """Return a number, a text, or (nested) lists of either as an array.

    Raises:
        SettingsError: nested lists differ in length, or numpy would change a text: it drops ``chr(0)``
            at its end, and turns numbers beside it into text.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SettingsError(_IRREGULAR.format(where)) from error
    if array.dtype.kind == "U" and not isinstance(value, np.ndarray | np.generic):
        unchanged = np.asarray(value, dtype=object)
        if not np.array_equal(array, unchanged):
            raise SettingsError(
                f"{where}: its value is not a text that a run can take",
                hint="texts do not end in a zero, and do not stand beside numbers",
            )
    return array


def _with_values(entry: InputEntry, data: NDArray[Any]) -> InputEntry:
    """Return an entry with literal values: all of them, or a scalar that fills the shape.

    Raises:
        SettingsError: the values are of another type, too many, or do not fill the shape.
    """
    where, shape = entry.where, entry.shape
    if data.dtype.kind not in "biufU":
        raise SettingsError(_IRREGULAR.format(where))
    literal = replace(entry, is_literal=True)
    if shape is None:  # a single number then fills the input, whatever its shape
        return replace(literal, shape=data.shape or None, load=lambda: (data,))
    count = prod(shape)
    if data.ndim and data.size != count:
        raise SettingsError(
            f"{where} has {data.size} values for shape {list(shape)}",
            hint="give all of them, or one without brackets",
        )
    check_limit(where, count * data.itemsize)
    if data.ndim:
        return replace(literal, load=lambda: (data.reshape(shape),))
    return replace(literal, load=lambda: (np.full(shape, data),))


def _json_shape(shape: object, where: str) -> tuple[int, ...] | None:
    """Return the ``shape`` of a JSON entry, whose dims must be from 0 to 2**63 - 1; None if there is none."""
    if shape is None:
        return None
    match shape:
        case list() if all(type(dim) is int and 0 <= dim < 2**63 for dim in shape):
            check_limit(where, prod(shape))  # an element has at least one byte
            return tuple(shape)
    raise SettingsError(
        f"{where}: a shape is a list of numbers from 0, as in [1, 3, 224, 224]"
    )


def _drawn_values(name: str, shape: tuple[int, ...], draw: Draw) -> Sequence[NDArray[Any]]:
    """Draw the values of an input; the seed is its name, so that each call gives the same."""
    generator = np.random.default_rng([0, crc32(name.encode(errors="replace"))])
    return (draw(generator, shape),)


def _distribution(entry: Mapping[str, Any], where: str) -> Draw | None:
    """Return the distribution of a JSON entry; None if it states none.

    It is ``low`` (or 0) and ``high`` (half-open), or ``gen``, which is ``normal [SCALE]``,
    ``randint LOW HIGH``, ``zeros``, ``ones`` or ``const VALUE``. Values are converted later to the dtype of
    the input.
    """
    if "low" in entry or "high" in entry:
        return _uniform(entry.get("low", 0), entry.get("high"), where)
    if "gen" not in entry:
        return None
    kind, *words = str(entry["gen"]).split() or [""]
    match kind, _parse_numbers(words):
        case "randint", [low, high]:
            return _uniform(low, high, where)
        case "normal", [] | [_] as numbers:
            scale = np.float32(numbers[0] if numbers else 1)
            return lambda generator, shape: (
                generator.standard_normal(shape, dtype=np.float32) * scale
            )
        case "const", [number]:
            return lambda _, shape: np.full(shape, number)
        case (("zeros" | "ones"), []):
            return lambda _, shape: np.full(shape, int(kind == "ones"))
    raise SettingsError(
        f"{where}: {str(entry['gen'])[:60]!r} is not a known generator",
        hint="the generators are normal [SCALE], randint LOW HIGH, zeros, ones and const VALUE",
    )


def _parse_numbers(words: Sequence[str]) -> list[int | float] | None:
    """Return words as numbers; None if one is no number.

    A float has a point or an exponent, or is ``nan`` or ``inf``.
    """
    try:
        return [float(word) if re.search(r"[.eEn]", word) else int(word) for word in words]
    except ValueError:
        return None


def _uniform(low: object, high: object, where: str) -> Draw:
    """Return a uniform distribution over ``[low, high)``.

    It draws integers if both ends are ints of 64 bits, else floats.
    """
    match low, high:
        case (int(), int()) if -(2**63) <= low < high <= 2**63:
            return lambda generator, shape: generator.integers(low, high, shape)
        case (int() | float(), int() | float()) if (
            -_MAX_FLOAT <= low < high <= _MAX_FLOAT and high - low <= _MAX_FLOAT
        ):
            return lambda generator, shape: generator.uniform(float(low), float(high), shape)
    raise SettingsError(f"{where}: values are drawn from low up to high, without high itself")


_READERS: Mapping[str, Callable[[Path, Sequence[ValueInfoProto]], Iterator[InputEntry]]] = {
    ".npz": _read_archive,
    ".json": _read_json,
}
"""The reader of each suffix."""
