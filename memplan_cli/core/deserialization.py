"""Records from untrusted JSON: `from_json` reads what `to_json` writes.

It refuses missing and unknown keys, values of another type, infinite numbers and NaN, and booleans
in place of numbers. The error message has the path to the value, and what was expected there.

For each class, a tree of `_KeyReader` is derived once from the type hints of its fields. Reading
then follows this tree, so that a plan with 100,000 tensors is read quickly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial, reduce
from math import inf
from operator import getitem
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from memplan_cli.core.json_types import Json, Range, TypeHint
from memplan_cli.core.serialization import (
    Key,
    KeyTree,
    Presence,
    field_names,
    key_tree,
    keys_of,
    schema_name,
)

Record = TypeVar("Record")

Reader = Callable[[Any], Any]
"""Converts a JSON value to the value of a field, or raises `MisfitError`."""


class MisfitError(ValueError):
    """A JSON value does not have the expected format.

    Attributes:
        reason: what is wrong.
        path: keys and list indices that lead to the value. Readers of outer values prepend theirs.
    """

    def __init__(self, reason: str, *path: str | int) -> None:
        super().__init__(reason)
        self.reason, self.path = reason, list(path)

    def __str__(self) -> str:
        """Return ``tensors[3].bytes: ...``: the path and the reason."""
        path = "".join(map(_path_step, self.path)).removeprefix(".")
        return f"{path}: {self.reason}" if path else self.reason


def _path_step(step: str | int) -> str:
    """Return a key or an index as it is written in a path: ``.bytes``, ``[3]``, ``['a b']``."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step[:80]}" if step.isidentifier() else f"[{step[:80]!r}]"


def _misfit(value: object, expected: str) -> MisfitError:
    """Return the error for a value in place of an expected one, such as ``a list``."""
    return MisfitError(f"expected {expected}, got {str(value)[:80]!r}")


def from_json(
    record_class: type[Record], data: object, where: str, **other_fields: object
) -> Record:
    """Read a dataclass or a named tuple.

    Args:
        record_class: the class.
        data: parsed JSON.
        where: what is read, for error messages: ``the plan``.
        other_fields: values of fields that have no key.

    Raises:
        MisfitError: the data does not have the format of the class.
    """
    expected = schema_name(record_class)
    actual = data.get("schema") if isinstance(data, dict) else None
    # Checked first, because the keys of another format would be reported as unknown.
    if expected is not None and actual != expected:
        raise MisfitError(
            f"{where} is not of schema {expected}, but {str(actual or data)[:80]!r}"
        )
    try:
        record: Record = _read_record(record_class, data, **other_fields)
    except MisfitError as error:
        raise MisfitError(f"{where}: {error}") from error
    return record


def type_hints(function_or_class: object) -> dict[str, TypeHint]:
    """Return the type hints of a function or class, conditions in ``Annotated`` included.

    ``Mapping`` and ``Sequence`` are resolved even if the module imports them for type checking only.
    """
    names = {"Mapping": Mapping, "Sequence": Sequence}
    return get_type_hints(function_or_class, localns=names, include_extras=True)


def _read_record(record_class: TypeHint, data: object, **other_fields: object) -> Any:  # noqa: ANN401 - of that class
    """Read a record, whose computed keys must have the values that follow from its fields.

    ``other_fields`` has the values of fields without a key in the data.
    """
    values = dict(other_fields)
    _read_keys(values, data, _key_readers(record_class))  # adds the fields with a key
    record = record_class(**values)
    for key in _computed_keys(record_class):
        _refuse_other_value(key, record, data)
    return record


def _read_keys(values: Json, data: object, readers: _KeyReaders) -> None:
    """Read a JSON object, and add the values of a record's fields to ``values``.

    Fields whose keys are missing get no value: the record has defaults for them. The values of computed
    keys, which have no reader, are skipped.

    Args:
        values: the values by field.
        data: the object.
        readers: the keys that it may have.

    Raises:
        MisfitError: a required key is missing, a key is unknown, or a value has another format.
    """
    if not isinstance(data, dict):
        raise _misfit(data, "an object")
    name, missing_count = "", 0
    try:
        for name, key in readers.items():
            if name not in data:
                missing_count += 1
                _refuse_if_required(key)
            elif not isinstance(key, _KeyReader):  # the keys of a nested object
                _read_keys(values, data[name], key)
            elif key.reader:
                values[key.field] = key.reader(data[name])
        if len(data) + missing_count != len(readers):  # the data has keys without an entry
            name = min(data.keys() - readers.keys())
            raise MisfitError("is unknown")  # noqa: TRY301 - the path is completed below
    except MisfitError as error:
        error.path.insert(0, name)
        raise


def _refuse_if_required(missing: _KeyReader | _KeyReaders) -> None:
    """Raise an error if a missing key is required, or if a missing object has a required key."""
    if not isinstance(missing, _KeyReader):
        _read_keys({}, {}, missing)  # of an empty object: only a required key matters
    elif missing.required:
        raise MisfitError("is missing")


def _refuse_other_value(key: Key, record: object, data: Any) -> None:  # noqa: ANN401 - JSON
    """Raise an error if the value of a computed key in the file is not the computed value."""
    path = key.name.split(".")
    actual, expected = reduce(getitem, path, data), key.value(record)
    if actual != expected or type(actual) is not type(expected):
        reason = f"{str(actual)[:80]!r}, but the rest says {str(expected)[:80]!r}"
        raise MisfitError(reason, *path)


class _KeyReader(NamedTuple):
    """How one key is read.

    Attributes:
        field: the field that gets the value. Empty if no field does: the value of a property or
            constant follows from the fields.
        reader: reads the value of the field; None if there is no field.
        required: whether a file without the key is refused.
    """

    field: str
    reader: Reader | None
    required: bool


_KeyReaders = Mapping[str, "_KeyReader | _KeyReaders"]
"""How each key of an object is read; for a nested object, how its keys are read."""


@cache
def _key_readers(record_class: TypeHint) -> _KeyReaders:
    """Return how each key of a class is read."""
    hints = type_hints(record_class)
    field_hints = {name: hints[name] for name in field_names(record_class)}
    return _readers_of_tree(key_tree(record_class), field_hints)


def _readers_of_tree(tree: KeyTree, hints: Mapping[str, TypeHint]) -> _KeyReaders:
    """Return how each key of a tree is read; ``hints`` are the type hints of the fields of its class."""
    return {
        name: _readers_of_tree(key_or_subtree, hints)
        if isinstance(key_or_subtree, dict)
        else _key_reader(key_or_subtree, hints)
        for name, key_or_subtree in tree.items()
    }


def _key_reader(key: Key, hints: Mapping[str, TypeHint]) -> _KeyReader:
    """Return how a key is read, by the type hints of the fields of its class."""
    required = key.presence is Presence.REQUIRED
    is_computed = key.attribute not in hints  # a property or a constant: see `_computed_keys`
    if is_computed:
        return _KeyReader(field="", reader=None, required=required)
    reader, convert = _reader(key.form.type_hint or hints[key.attribute]), key.form.read
    if convert is None:
        return _KeyReader(key.attribute, reader, required)
    return _KeyReader(key.attribute, lambda value: convert(reader(value)), required)


@cache
def _computed_keys(record_class: TypeHint) -> tuple[Key, ...]:
    """Return the keys of properties and constants, whose values follow from the fields."""
    stored = field_names(record_class)
    return tuple(key for key in keys_of(record_class) if key.attribute not in stored)


@cache
def _reader(type_hint: TypeHint) -> Reader:
    """Return the function that checks a JSON value of a type and converts it."""
    generic = _GENERIC_READERS.get(get_origin(type_hint))
    if generic is not None:
        return generic(get_args(type_hint))
    if type_hint in _SCALAR_READERS:
        return _SCALAR_READERS[type_hint]
    return partial(_read_record, type_hint)


def _union_reader(args: tuple[Any, ...]) -> Reader:
    """Return the reader of a union, which chooses by the type of the JSON value."""
    readers = {_without_condition(arg): _reader(arg) for arg in args if arg is not NoneType}
    reader = (
        next(iter(readers.values())) if len(readers) == 1 else partial(_read_by_type, readers)
    )
    return partial(_read_optional, reader) if NoneType in args else reader


def _without_condition(type_hint: TypeHint) -> TypeHint:
    origin: TypeHint = get_origin(type_hint)
    return get_args(type_hint)[0] if origin is Annotated else type_hint


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    """Return the reader of a sequence or of ``tuple[T, ...]``, or of a tuple of fixed length."""
    if len(args) == 1 or args[1] is Ellipsis:
        return partial(_read_list, _reader(args[0]))
    return partial(_read_fixed_list, tuple(map(_reader, args)))


def _mapping_reader(args: tuple[Any, ...]) -> Reader:
    return partial(_read_table, *map(_reader, args))


def _annotated_reader(args: tuple[Any, ...]) -> Reader:
    """Return the reader of a type with a condition, a `Range` or a `Condition`."""
    type_hint, condition = args
    if isinstance(condition, Range):
        high = inf if condition.high is None else condition.high
        return partial(_read_integer, condition.low, high, condition.description)
    return partial(_read_checked, _reader(type_hint), condition.holds, condition.description)


_GENERIC_READERS: Mapping[Any, Callable[[tuple[Any, ...]], Reader]] = {
    Annotated: _annotated_reader,
    Mapping: _mapping_reader,
    Sequence: _tuple_reader,
    Union: _union_reader,
    UnionType: _union_reader,
    dict: _mapping_reader,
    tuple: _tuple_reader,
}
"""The origin of a generic type -> the function that makes its reader from the type arguments."""


def _read_anything(value: object) -> object:
    return value


def _read_exactly(value_type: type, expected: str, value: object) -> object:
    """Return a value of exactly this type: a bool is not accepted as an int."""
    if type(value) is not value_type:
        raise _misfit(value, expected)
    return value


def _read_number(value: Any) -> object:  # noqa: ANN401 - JSON
    # The comparison refuses NaN, infinity, and integers that no float holds.
    if type(value) not in (int, float) or not -_MAX_FLOAT <= value <= _MAX_FLOAT:
        raise _misfit(value, "a finite number")
    return value


def _read_path(value: object) -> object:
    return Path(str(_SCALAR_READERS[str](value)))


_MAX_FLOAT = sys.float_info.max


_SCALAR_READERS: Mapping[Any, Reader] = {
    Any: _read_anything,
    bool: partial(_read_exactly, bool, "true or false"),
    int: partial(_read_exactly, int, "a whole number"),
    str: partial(_read_exactly, str, "a text"),
    float: _read_number,
    Path: _read_path,
}


def _read_integer(low: int, high: float, expected: str, value: Any) -> object:  # noqa: ANN401 - JSON
    """Return an integer between ``low`` and ``high``, both included."""
    if type(value) is not int or not low <= value <= high:
        raise _misfit(value, expected)
    return value


def _read_checked(
    reader: Reader, holds: Callable[[Any], bool], expected: str, value: object
) -> object:
    """Return a value that meets a condition."""
    converted = reader(value)
    if not holds(converted):
        raise _misfit(value, expected)
    return converted


def _read_optional(reader: Reader, value: object) -> object:
    return None if value is None else reader(value)


def _read_by_type(readers: Mapping[TypeHint, Reader], value: object) -> object:
    """Read a value of a union by the reader of its type."""
    reader = readers.get(type(value))
    if reader is None:
        raise MisfitError(f"{str(value)[:80]!r} has a wrong type")
    return reader(value)


def _read_list(reader: Reader, value: object) -> tuple[object, ...]:
    """Read a list of any length, whose items are all of one type."""
    if not isinstance(value, list):
        raise _misfit(value, "a list")
    items: list[object] = []
    try:
        items.extend(map(reader, value))
    except MisfitError as error:
        # The items before the faulty one have been added: their number is its index.
        error.path.insert(0, len(items))
        raise
    return tuple(items)


def _read_fixed_list(readers: tuple[Reader, ...], value: object) -> tuple[object, ...]:
    """Read a list with one reader for each item."""
    if not isinstance(value, list) or len(value) != len(readers):
        raise _misfit(value, f"a list of {len(readers)} items")
    return tuple(reader(item) for reader, item in zip(readers, value, strict=True))


def _read_table(name_reader: Reader, reader: Reader, value: object) -> Json:
    """Read an object whose keys are data: names of tensors, dims or options."""
    if not isinstance(value, dict):
        raise _misfit(value, "a table")
    table, name = {}, ""
    try:
        for name, item in value.items():
            table[name_reader(name)] = reader(item)
    except MisfitError as error:
        error.path.insert(0, name)
        raise
    return table
