"""Frozen records from JSON that is not trusted: `from_json` reads what `to_json` writes.

Missing and unknown keys, values of another type, numbers that are not finite and booleans in
place of numbers are refused. The error names the path to the value and what belongs there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
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

from memplan_cli.core.json_types import Json, Kind, Range
from memplan_cli.core.serialization import (
    Key,
    KeyTree,
    Presence,
    field_names,
    key_tree,
    keys_of,
    schema_name,
)

Value = TypeVar("Value")

Reader = Callable[[Any], Any]
"""From a value of JSON to the value of a field, or a `MisfitError`."""


class MisfitError(ValueError):
    """A value that does not belong where it is; the text begins with the path to it."""

    def __init__(self, words: str, *path: str | int) -> None:
        super().__init__(words)
        self.words, self.path = words, list(path)

    def __str__(self) -> str:
        """Return the path to the value, and what is wrong with it."""
        path = "".join(map(_step, self.path)).removeprefix(".")
        return f"{path}: {self.words}" if path else self.words


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step[:80]}" if step.isidentifier() else f"[{step[:80]!r}]"


def _misfit(value: object, words: str) -> MisfitError:
    """Return the error of a value in place of what ``words`` describe."""
    return MisfitError(f"{str(value)[:80]!r} where {words} belongs")


def from_json(kind: type[Value], data: object, where: str, **more: object) -> Value:
    """Read a dataclass or a named tuple.

    Args:
        kind: the class.
        data: parsed JSON.
        where: what is read, for the message: ``the plan``.
        more: values of fields that have no key.

    Raises:
        MisfitError: the data does not have the format of the class.
    """
    expected = schema_name(kind)
    actual = data.get("schema") if isinstance(data, dict) else None
    # Checked first: the keys of another format are not known here.
    if expected is not None and actual != expected:
        raise MisfitError(
            f"{where} is not of schema {expected}, but {str(actual or data)[:80]!r}"
        )
    try:
        record: Value = _record(kind, data, **more)
    except MisfitError as error:
        raise MisfitError(f"{where}: {error}") from error
    return record


def type_hints(function_or_class: object) -> dict[str, Kind]:
    """Return annotations with their conditions; ``Mapping`` and ``Sequence`` need no import."""
    tables = {"Mapping": Mapping, "Sequence": Sequence}
    return get_type_hints(function_or_class, localns=tables, include_extras=True)


def _record(kind: Kind, data: object, **more: object) -> Any:  # noqa: ANN401 - of that class
    values = dict(more)
    _read_keys(values, data, _slots(kind))
    record = kind(**values)
    for key in _computed_keys(kind):
        _check_agreement(key, record, data)
    return record


def _named_tuple(kind: Kind, data: Any) -> Any:  # noqa: ANN401 - JSON, and of that class
    """Read a named tuple. This is the fast path: a plan may have a hundred thousand of them."""
    slots = _slots(kind)
    try:
        if len(data) == len(slots):
            cells = [slot.reader(data[name]) for name, slot in slots.items()]
            return tuple.__new__(kind, cells)
    except (KeyError, TypeError, MisfitError):
        pass  # `_record` finds the same fault again, with the path to it.
    return _record(kind, data)


def _read_keys(values: Json, data: Any, slots: Mapping[str, Any]) -> None:  # noqa: ANN401 - JSON
    """Add to ``values`` the fields that an object holds."""
    if not isinstance(data, dict):
        raise _misfit(data, "an object")
    name, missing = "", 0
    try:
        for name, slot in slots.items():
            if name not in data:
                missing += 1
                _skip_missing(values, slot)
            elif type(slot) is not _Slot:
                _read_keys(values, data[name], slot)
            elif slot.reader:
                values[slot.field] = slot.reader(data[name])
        if len(data) + missing != len(slots):
            name = min(data.keys() - slots.keys())
            raise MisfitError("is unknown")  # noqa: TRY301 - the path is completed below
    except MisfitError as error:
        error.path.insert(0, name)
        raise


def _skip_missing(values: Json, slot: Any) -> None:  # noqa: ANN401 - a slot, or a tree of slots
    """Refuse a missing key that is required; a missing object is read as an empty one."""
    if not isinstance(slot, _Slot):
        _read_keys(values, {}, slot)
    elif slot.required:
        raise MisfitError("is missing")


def _check_agreement(key: Key, record: object, data: Any) -> None:  # noqa: ANN401 - JSON
    """Refuse a computed key whose value in the file is not the computed one."""
    path = key.name.split(".")
    actual, expected = reduce(getitem, path, data), key.value(record)
    if actual != expected or type(actual) is not type(expected):
        words = f"{str(actual)[:80]!r}, but the rest says {str(expected)[:80]!r}"
        raise MisfitError(words, *path)


class _Slot(NamedTuple):
    """How one key is read.

    Attributes:
        field: the field that gets the value.
        reader: reads the value; None for computed keys and keys of the past.
        required: whether a file without the key is refused.
    """

    field: str
    reader: Reader | None
    required: bool


@cache
def _slots(kind: Kind) -> Mapping[str, Any]:
    """Return the slot of each key of a class, nested as the keys are."""
    hints = type_hints(kind)
    return _slots_of(key_tree(kind), {name: hints[name] for name in field_names(kind)})


def _slots_of(tree: KeyTree, hints: Mapping[str, Kind]) -> Mapping[str, Any]:
    return {
        name: _slots_of(key, hints) if isinstance(key, dict) else _slot(key, hints)
        for name, key in tree.items()
    }


def _slot(key: Key, hints: Mapping[str, Kind]) -> _Slot:
    required = key.presence is Presence.REQUIRED
    if key.attribute not in hints or key.presence is Presence.PAST:
        return _Slot("", None, required)
    reader, convert = _reader(key.form.kind or hints[key.attribute]), key.form.read
    if convert is None:
        return _Slot(key.attribute, reader, required)
    return _Slot(key.attribute, lambda value: convert(reader(value)), required)


@cache
def _computed_keys(kind: Kind) -> tuple[Key, ...]:
    """Return the keys whose values follow from the fields."""
    stored = field_names(kind)
    current = (key for key in keys_of(kind) if key.presence is not Presence.PAST)
    return tuple(key for key in current if key.attribute not in stored)


@cache
def _reader(kind: Kind) -> Reader:
    """Return the reader of values of a type."""
    generic = _GENERIC.get(get_origin(kind))
    if generic is not None:
        return generic(get_args(kind))
    if kind in _SCALARS:
        return _SCALARS[kind]
    return partial(_record if is_dataclass(kind) else _named_tuple, kind)


def _union_reader(args: tuple[Any, ...]) -> Reader:
    readers = {_without_conditions(arg): _reader(arg) for arg in args if arg is not NoneType}
    one = next(iter(readers.values())) if len(readers) == 1 else partial(_by_type, readers)
    return partial(_or_none, one) if NoneType in args else one


def _without_conditions(kind: Kind) -> Kind:
    origin: Kind = get_origin(kind)
    return get_args(kind)[0] if origin is Annotated else kind


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 1 or args[1] is Ellipsis:
        return partial(_list, _reader(args[0]))
    return partial(_row, tuple(map(_reader, args)))


def _mapping_reader(args: tuple[Any, ...]) -> Reader:
    return partial(_table, *map(_reader, args))


def _annotated_reader(args: tuple[Any, ...]) -> Reader:
    kind, condition = args
    if isinstance(condition, Range):
        high = inf if condition.high is None else condition.high
        return partial(_whole_number, condition.low, high, condition.words)
    return partial(_checked, _reader(kind), condition.holds, condition.words)


_GENERIC: Mapping[Any, Callable[[tuple[Any, ...]], Reader]] = {
    Annotated: _annotated_reader,
    Mapping: _mapping_reader,
    Sequence: _tuple_reader,
    Union: _union_reader,
    UnionType: _union_reader,
    dict: _mapping_reader,
    tuple: _tuple_reader,
}
"""The origin of a type with arguments -> what makes its reader from these."""


def _anything(value: object) -> object:
    return value


def _exactly(kind: type, words: str, value: object) -> object:
    if type(value) is not kind:
        raise _misfit(value, words)
    return value


def _number(value: Any) -> object:  # noqa: ANN401 - JSON
    # The comparison refuses NaN, infinity, and integers that no float holds.
    if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
        raise _misfit(value, "a finite number")
    return value


def _path(value: object) -> object:
    return Path(str(_SCALARS[str](value)))


_LARGEST = sys.float_info.max


_SCALARS: Mapping[Any, Reader] = {
    Any: _anything,
    bool: partial(_exactly, bool, "true or false"),
    int: partial(_exactly, int, "a whole number"),
    str: partial(_exactly, str, "a text"),
    float: _number,
    Path: _path,
}


def _whole_number(low: int, high: float, words: str, value: Any) -> object:  # noqa: ANN401 - JSON
    if type(value) is not int or not low <= value <= high:
        raise _misfit(value, words)
    return value


def _checked(
    reader: Reader, holds: Callable[[Any], bool], words: str, value: object
) -> object:
    converted = reader(value)
    if not holds(converted):
        raise _misfit(value, words)
    return converted


def _or_none(reader: Reader, value: object) -> object:
    return None if value is None else reader(value)


def _by_type(readers: Mapping[Kind, Reader], value: object) -> object:
    reader = readers.get(type(value))
    if reader is None:
        raise MisfitError(f"{str(value)[:80]!r} does not belong there")
    return reader(value)


def _list(reader: Reader, value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _misfit(value, "a list")
    items: list[object] = []
    # The number of items read before an error is the index of the wrong one.
    try:
        items.extend(map(reader, value))
    except MisfitError as error:
        error.path.insert(0, len(items))
        raise
    return tuple(items)


def _row(readers: tuple[Reader, ...], value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or len(value) != len(readers):
        raise _misfit(value, f"a list of {len(readers)}")
    return tuple(reader(item) for reader, item in zip(readers, value, strict=True))


def _table(name_reader: Reader, reader: Reader, value: object) -> Json:
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
