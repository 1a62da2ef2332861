"""Inputs that a user gave: checked against the model's inputs, and stored for its runs.

Each array is written once to a file of memplan's own. Every process that runs the model reads that
file, and the untrusted input files are read once.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnx import TensorProto, helper

from memplan_cli.core.bindings import Feed
from memplan_cli.core.selection import nearest
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import fed_inputs
from memplan_cli.onnx_io.runs.input_files import InputEntry, array_of, check_limit, read_file
from memplan_cli.onnx_io.types import container_and_tensor_type, is_extension_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from onnx import ModelProto, TypeProto, ValueInfoProto

    from memplan_cli.core.bindings import Feeds, Inputs


class Storage:
    """A temporary folder of arrays, one file each, deleted when the last feed that refers to it is gone."""

    def __init__(self) -> None:
        """Create the folder, empty.

        Raises:
            SettingsError: it cannot be created.
        """
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="memplan-inputs-"))
        except OSError as error:
            raise _no_room(error) from error
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.stored_bytes = 0
        self.file_count = 0

    def save(self, array: NDArray[Any], where: str) -> str:
        """Write an array into a new ``.npy`` file and return its path.

        Raises:
            SettingsError: the disk is full, or all arrays together exceed the limit; ``where`` names the array.
        """
        self.stored_bytes = check_limit(where, self.stored_bytes + array.nbytes)
        file = self.folder / f"{self.file_count}.npy"
        self.file_count += 1
        if is_extension_dtype(array.dtype):  # numpy cannot write the name of such a dtype
            array = array.view(f"V{array.dtype.itemsize}")
        try:
            np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise _no_room(error) from error
        return str(file)


def _no_room(error: OSError) -> SettingsError:
    """Return the error for a temporary folder that cannot be written."""
    return SettingsError(
        f"no room for the inputs in {tempfile.gettempdir()}: {error.strerror or error}",
        hint="set TMPDIR to a folder on a larger disk",
    )


def read_given(inputs: Inputs, model: ModelProto) -> Feeds:
    """Return the given inputs of a model as feeds.

    All are checked before the data of any is loaded. The data is then kept in a temporary folder, which is
    deleted when no feed refers to it any more. An input that the model does not take is an error, or ignored
    if ``inputs.others`` is ``leave``.

    Raises:
        SettingsError: an input has a wrong name, type, rank or size, is given twice, or cannot be read.
    """
    if not inputs.given:
        return {}
    wanted = {value.name: value for value in fed_inputs(model)}
    entries: dict[str, InputEntry] = {}
    total_bytes = 0
    for entry in _given_entries(inputs, tuple(wanted.values())):
        value = wanted.get(entry.name)
        if value is None and inputs.others == "leave":
            continue
        if value is None:
            names = ", ".join(repr(name[:100]) for name in list(wanted)[:8])
            all_names = f"its inputs are {names}" if names else "it takes no inputs"
            raise SettingsError(
                f"{entry.where}: the model has no input {entry.name[:100]!r}",
                hint=nearest(entry.name[:100], wanted) or all_names,
            )
        if entry.name in entries:
            raise SettingsError(f"{entry.where}: input {entry.name[:100]!r} is given twice")
        total_bytes = check_limit(entry.where, total_bytes + entry.bytes)
        _check_type(entry, value)
        entries[entry.name] = entry
    storage = Storage()
    return {
        name: _stored_feed(entry, wanted[name], storage) for name, entry in entries.items()
    }


def not_taken(inputs: Inputs, model: ModelProto) -> tuple[str, ...]:
    """Return the names of given inputs that a model does not take, each once.

    Raises:
        SettingsError: a file of inputs cannot be read.
    """
    wanted = fed_inputs(model)
    names = {value.name for value in wanted}
    in_files = [entry.name for path in inputs.files for entry in read_file(Path(path), wanted)]
    return tuple(
        dict.fromkeys(name for name in (*in_files, *inputs.values) if name not in names)
    )


def _given_entries(inputs: Inputs, wanted: Sequence[ValueInfoProto]) -> Iterator[InputEntry]:
    """Yield the inputs in files, then those given as values.

    Raises:
        SettingsError: a file cannot be read, or a value is not regular.
    """
    for path in inputs.files:
        yield from read_file(Path(path), wanted)
    for name, value in inputs.values.items():
        yield _entry_of_value(name, value)


def _entry_of_value(name: str, value: object) -> InputEntry:
    """Return an input that was given as an array, or typed by hand as a number, a text or lists of them."""
    where = f"input {name[:100]!r}"
    array = array_of(value, where)
    if array.dtype.hasobject and not all(isinstance(item, str) for item in array.flat):
        raise SettingsError(f"{where} is not a number, a text, or a regular list of them")
    is_literal = not isinstance(value, np.ndarray | np.generic)
    dtype = "str" if array.dtype.kind in "OU" else array.dtype.name
    if is_literal and dtype != "str":
        dtype = ""  # numbers typed by hand get the dtype of the input
    shape = array.shape or None  # a single value fills the input
    return InputEntry(name, where, shape, dtype, lambda: (array,), is_literal=is_literal)


def _check_type(entry: InputEntry, value: ValueInfoProto) -> None:
    """Refuse an entry whose dtype, container or shape is not that of the model's input.

    Raises:
        SettingsError: naming the entry and what it should be.
    """
    container, tensor = container_and_tensor_type(value)
    wanted = _numpy_dtype(tensor.elem_type)
    if entry.dtype and not _is_same_dtype(entry.dtype, wanted):
        raise SettingsError(
            f"{entry.where} is {entry.dtype}, and the input is {_dtype_name(wanted)}"
        )
    if container in {"map of numbers", "map of text"}:
        raise SettingsError(f"{entry.where} is an array, and the input is a map: leave it out")
    if container != "sequence":
        _fed_shape(entry, tensor)  # only for its errors
    # An entry is a sequence only if it was read for an input that is one.
    elif not entry.is_sequence:
        raise SettingsError(f"{entry.where} is a tensor, and the input is a sequence")


def _stored_feed(entry: InputEntry, value: ValueInfoProto, storage: Storage) -> Feed:
    """Load the data of an entry, convert it to the input's dtype and shape, and store it.

    A single value is repeated to fill the shape. If the input has free dims, it is stored alone, and is repeated
    in each run. A tensor without data gives a feed that only has a shape, a sequence without data an empty one.
    """
    _, tensor = container_and_tensor_type(value)
    dtype = _numpy_dtype(tensor.elem_type)
    if entry.is_sequence:
        arrays = entry.load() if entry.load else ()
        files = tuple(
            storage.save(_converted(array, dtype, entry.where), entry.where)
            for array in arrays
        )
        return Feed((), files, "sequence", storage)
    shape = _fed_shape(entry, tensor)  # None: a single value for an input with free dims
    if entry.load is None:
        return Feed(shape)
    (array,) = entry.load()
    array = _converted(array, dtype, entry.where)
    if shape is not None:
        array = array.reshape(shape) if array.size != 1 else np.full(shape, array.reshape(()))
    return Feed(shape, (storage.save(array, entry.where),), storage=storage)


def _numpy_dtype(element_type: int) -> np.dtype[Any]:
    """Return numpy's dtype of a TensorProto.DataType; ``object`` for strings."""
    if element_type == TensorProto.STRING:
        return np.dtype(object)
    return cast("np.dtype[Any]", helper.tensor_dtype_to_np_dtype(element_type))


def _dtype_name(dtype: np.dtype[Any]) -> str:
    return "str" if dtype.kind == "O" else dtype.name


def _is_same_dtype(given: str, wanted: np.dtype[Any]) -> bool:
    """Whether data of dtype ``given`` may have been saved from dtype ``wanted``.

    numpy's files keep only the width of a dtype that numpy lacks: bfloat16 is saved as ``void16``,
    float8 and int4 as ``void8``, one byte an element.
    """
    is_width = is_extension_dtype(wanted) and given == f"void{8 * wanted.itemsize}"
    return is_width or given == _dtype_name(wanted)


def _fed_shape(entry: InputEntry, tensor: TypeProto.Tensor) -> tuple[int, ...] | None:
    """Return the shape in which an entry is fed: its own, if it fits the declared one.

    An entry without a shape is one value, which fills the declared shape. If that has free dims, None is
    returned: the value is then repeated when they are bound. If the model declares no shape, such an entry is
    a scalar.

    Raises:
        SettingsError: the rank or a fixed dim differs from the declared one.
    """
    if not tensor.HasField("shape"):
        return entry.shape or ()
    declared = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    )
    shape = entry.shape
    if shape is None:
        fixed = tuple(dim for dim in declared if dim is not None)
        has_free_dims = len(fixed) < len(declared)
        return None if has_free_dims else fixed
    if entry.is_literal and len(shape) == 1 < len(declared):
        shape = (*(1 for _ in declared[1:]), *shape)  # a typed list is the last axis
    if len(shape) != len(declared):
        raise SettingsError(
            f"{entry.where} has {len(shape)} dims, and the input has {len(declared)}"
        )
    for axis, (dim, declared_dim) in enumerate(zip(shape, declared, strict=True)):
        if declared_dim is not None and dim != declared_dim:
            raise SettingsError(
                f"{entry.where} has {dim} where the input is fixed to {declared_dim} (dim {axis})"
            )
    return shape


def _converted(array: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return an array in the dtype of the input that it is given for.

    A float input may get rounded values, an input of integers or bools gets exact ones only.

    Args:
        array: The given values. `_check_type` has accepted their dtype, if it was stated.
        dtype: The dtype of the input; ``object`` if the input is text.
        where: The given values in words, for messages.

    Raises:
        SettingsError: a value cannot be converted to that dtype.
    """
    is_text = dtype.kind == "O"
    if is_text:
        return _converted_text(array, where)
    if array.dtype == dtype:
        return array
    # bfloat16 and the like come out of .npy files as raw bytes (kind V), of this width (`_is_same_dtype`).
    if array.dtype.kind == "V":
        return array.view(dtype)
    if array.dtype.kind not in "biuf":
        raise SettingsError(f"{where} is {array.dtype.name}, and the input is {dtype.name}")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
    # By name: for int4, which numpy lacks, the kind is "V".
    is_integer = dtype.name.startswith(("bool", "int", "uint"))
    if is_integer and not _is_exact(array, converted):
        raise SettingsError(f"{where} has a value that {dtype.name} cannot hold")
    return converted


def _converted_text(array: NDArray[Any], where: str) -> NDArray[np.str_]:
    """Return an array of texts, as str or as UTF-8 bytes, in numpy's dtype for text.

    Raises:
        SettingsError: the array has another dtype, or a text with a lone surrogate, which UTF-8 cannot encode.
    """
    if array.dtype.kind not in "OUS":
        raise SettingsError(f"{where} is {array.dtype.name}, and the input is text")
    # What reads the inputs puts only str and bytes in arrays of objects.
    texts = [s.decode(errors="replace") if isinstance(s, bytes) else s for s in array.flat]
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise SettingsError(
                f"{where}: {text[:60]!r} is not a text that a run can take",
                hint="text is Unicode without surrogates",
            )
    return np.array(texts, dtype=np.str_).reshape(array.shape)


def _is_exact(array: NDArray[Any], converted: NDArray[Any]) -> bool:
    """Whether conversion to integers neither truncated nor wrapped a value.

    A wrapped value may be equal after converting back, but its sign differs.
    """
    if not np.array_equal(converted.astype(array.dtype), array):
        return False
    return bool(((converted < 0) == (array < 0)).all())
