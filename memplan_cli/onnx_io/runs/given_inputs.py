"""Given inputs."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from onnx import TensorProto, helper

from memplan_cli.core.bindings import Feed
from memplan_cli.core.selection import nearest
from memplan_cli.errors import SettingsError
from memplan_cli.onnx_io.interface import fed_inputs
from memplan_cli.onnx_io.runs.input_files import Found, array_of, read_file, within_limit
from memplan_cli.onnx_io.types import tensor_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray
    from onnx import ModelProto, TypeProto, ValueInfoProto

    from memplan_cli.core.bindings import Feeds, Inputs

Array = Any
"""An array of numpy's, of whatever type."""


class Storage:
    """A folder of arrays that is gone when nobody has it any more."""

    def __init__(self) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="memplan-inputs-"))
        except OSError as error:
            raise _no_room(error) from error
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.bytes = 0
        self.count = 0

    def save(self, array: NDArray[Any], where: str) -> str:
        """Write an array into a file and return its path.

        Raises:
            SettingsError: there is no room, or all together are more than inputs may be.
        """
        self.bytes = within_limit(where, self.bytes + array.nbytes)
        file = self.folder / f"{self.count}.npy"
        self.count += 1
        if array.dtype.isbuiltin != 1 and array.dtype.kind not in "US":
            # A type of another package, of which numpy cannot write the name.
            array = array.view(f"V{array.dtype.itemsize}")
        try:
            np.save(file, array, allow_pickle=False)
        except OSError as error:
            raise _no_room(error) from error
        return str(file)


def _no_room(error: OSError) -> SettingsError:
    return SettingsError(
        f"no room for the inputs in {tempfile.gettempdir()}: {error.strerror or error}",
        hint="set TMPDIR to a folder on a larger disk",
    )


@dataclass(slots=True)
class _Taken:
    """The inputs of one model, as they are found one by one."""

    wanted: Mapping[str, ValueInfoProto]
    storage: Storage
    others: Literal["refuse", "leave"] = "refuse"
    judged: dict[str, Found] = field(default_factory=dict)
    bytes: int = 0

    def judge(self, found: Found) -> None:
        """Hold what is said of an input against what the model takes; nothing is loaded."""
        value = self.wanted.get(found.name)
        if value is None:
            if self.others == "leave":
                return
            names = ", ".join(repr(name[:100]) for name in list(self.wanted)[:8])
            raise SettingsError(
                f"{found.where}: the model has no input {found.name[:100]!r}",
                hint=nearest(found.name[:100], self.wanted)
                or (f"its inputs are {names}" if names else "it takes no inputs"),
            )
        if found.name in self.judged:
            raise SettingsError(f"{found.where}: input {found.name[:100]!r} is given twice")
        self.bytes = within_limit(found.where, self.bytes + found.bytes)
        _refuse_other_type(found, value)
        self.judged[found.name] = found

    def load(self) -> Feeds:
        """Load all inputs, none before each was judged."""
        return {
            name: _fed(found, self.wanted[name], self.storage)
            for name, found in self.judged.items()
        }


def read_given(inputs: Inputs, model: ModelProto) -> Feeds:
    """Return the feeds that somebody gave for a model; they keep their files.

    Raises:
        SettingsError: an input is of a wrong name, type, rank or size, or cannot be read.
    """
    if not inputs.given:
        return {}
    wanted = fed_inputs(model)
    taken = _Taken({value.name: value for value in wanted}, Storage(), inputs.others)
    for path in inputs.files:
        for found in read_file(Path(path), wanted):
            taken.judge(found)
    for found in _values(inputs.values):
        taken.judge(found)
    return taken.load()


def not_taken(inputs: Inputs, model: ModelProto) -> tuple[str, ...]:
    """Return the names of inputs given that a model does not take, each once.

    Raises:
        SettingsError: a file of inputs cannot be read.
    """
    wanted = fed_inputs(model)
    names = {value.name for value in wanted}
    given = [found.name for path in inputs.files for found in read_file(Path(path), wanted)]
    return tuple(dict.fromkeys(name for name in (*given, *inputs.values) if name not in names))


def _values(values: Mapping[str, object]) -> Iterator[Found]:
    for name, value in values.items():
        where = f"input {name[:100]!r}"
        array = array_of(value, where)
        if array.dtype.hasobject and not all(isinstance(item, str) for item in array.flat):
            raise SettingsError(f"{where} is no number, text, or even list of them")
        dtype = array.dtype.name if isinstance(value, np.ndarray | np.generic) else ""
        if array.dtype.kind in "OU":
            dtype = "str"
        is_literal = not isinstance(value, np.ndarray)
        yield Found(
            name, where, array.shape or None, dtype, _Array(array), is_literal=is_literal
        )


@dataclass(frozen=True, slots=True)
class _Array:
    array: NDArray[Any]

    def __call__(self) -> tuple[Array]:
        return (self.array,)


def _refuse_other_type(found: Found, value: ValueInfoProto) -> None:
    container, tensor = tensor_type(value)
    wanted = _dtype(tensor.elem_type)
    if found.dtype and not _is_alike(found.dtype, _name(wanted)):
        raise SettingsError(
            f"{found.where} is {found.dtype}, and the input is {_name(wanted)}"
        )
    if container.startswith("map"):
        raise SettingsError(f"{found.where} is an array, and the input is a map: leave it out")
    if (container == "sequence") != found.is_sequence:
        raise SettingsError(f"{found.where} is a tensor, and the input is a sequence")
    if not found.is_sequence:
        _fitting(found, tensor)


def _fed(found: Found, value: ValueInfoProto, storage: Storage) -> Feed:
    _, tensor = tensor_type(value)
    wanted = _dtype(tensor.elem_type)
    if found.is_sequence:
        arrays = found.load() if found.load else ()
        files = tuple(
            storage.save(_typed(a, wanted, found.where), found.where) for a in arrays
        )
        return Feed((), files, "sequence", storage)
    shape = _fitting(found, tensor)
    if found.load is None:
        return Feed(shape)
    (array,) = found.load()
    array = _typed(array, wanted, found.where)
    if shape is not None:
        array = array.reshape(shape) if array.size != 1 else np.full(shape, array.reshape(()))
    return Feed(shape, (storage.save(array, found.where),), storage=storage)


def _dtype(element: int) -> np.dtype[Any]:
    """Return numpy's type for an element type, that of objects for text."""
    if element == TensorProto.STRING:
        return np.dtype(object)
    return cast("np.dtype[Any]", helper.tensor_dtype_to_np_dtype(element))


def _name(wanted: np.dtype[Any]) -> str:
    return "str" if wanted.kind == "O" else wanted.name


def _is_alike(found: str, wanted: str) -> bool:
    """Whether an array is of a type; numpy's files keep only the width of types it lacks."""
    if found.startswith("void"):
        native = wanted.startswith(("int", "uint", "float", "bool", "complex", "str"))
        small = wanted in ("int4", "uint4", "int2", "uint2") or wanted.startswith("float8")
        bits = 8 if small or wanted.startswith("float4") else 16
        return (not native or small) and found == f"void{bits}"
    return found == wanted


def _fitting(found: Found, tensor: TypeProto.Tensor) -> tuple[int, ...] | None:
    """Return the shape in which data is fed; None: one value, for whatever is bound."""
    if not tensor.HasField("shape"):
        return found.shape or ()
    declared = tuple(
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in tensor.shape.dim
    )
    fixed = tuple(dim for dim in declared if dim is not None)
    shape = found.shape
    if shape is None:
        return fixed if len(fixed) == len(declared) else None
    if found.is_literal and len(shape) == 1 < len(declared):
        shape = (*(1 for _ in declared[1:]), *shape)  # a short list, as the last axis
    if len(shape) != len(declared):
        raise SettingsError(
            f"{found.where} has {len(shape)} dims, and the input has {len(declared)}"
        )
    for position, (mine, theirs) in enumerate(zip(shape, declared, strict=True)):
        if theirs is not None and mine != theirs:
            raise SettingsError(
                f"{found.where} has {mine} where the input is fixed to {theirs} (dim {position})"
            )
    return shape


def _typed(array: NDArray[Any], wanted: np.dtype[Any], where: str) -> NDArray[Any]:
    """Return values in an input's type, which has them all.

    Raises:
        SettingsError: it has not.
    """
    if wanted.kind == "O":
        if array.dtype.kind not in "OUS":
            raise SettingsError(f"{where} is {array.dtype.name}, and the input is text")
        texts = [s.decode(errors="replace") if isinstance(s, bytes) else s for s in array.flat]
        for text in texts:
            _refuse_untextual(text, where)
        return np.array(texts, dtype=np.str_).reshape(array.shape)
    if array.dtype.kind == "V" or array.dtype == wanted:
        return array
    if array.dtype.kind not in "biuf":
        raise SettingsError(f"{where} is {array.dtype.name}, and the input is {wanted.name}")
    with np.errstate(all="ignore"):
        typed = array.astype(wanted)
    if wanted.kind in "biu" and not _is_whole_within(array, typed):
        raise SettingsError(f"{where} has a value that {wanted.name} cannot hold")
    return typed


def _refuse_untextual(text: str, where: str) -> None:
    """Refuse half a character, which no run could encode.

    Raises:
        SettingsError: naming the text.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise SettingsError(
            f"{where}: {text[:60]!r} is no text that a run can be given",
            hint="text is Unicode without surrogates",
        )


def _is_whole_within(array: NDArray[Any], typed: NDArray[Any]) -> bool:
    """Whether whole numbers are what they were: neither cut off nor beyond their type."""
    if not np.array_equal(typed.astype(array.dtype), array):
        return False
    return bool(((typed < 0) == (array < 0)).all())
