"""JSON from outside as frozen data, every type in it checked against what a class declares.

What is read is not trusted: a key that is missing or unknown, a value of another type, a number
that is not finite and a flag in a number's place are refused with the way to them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache, partial, reduce
from operator import attrgetter, getitem
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

from memplan_cli.core.serialization import (
    Json,
    Key,
    KeyTree,
    Kind,
    Presence,
    Reader,
    field_names,
    key_tree,
    keys_of,
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest value of a number: ``Annotated[int, Range(0, 9)]``."""

    low: int
    high: int

    @property
    def words(self) -> str:
        """Return what belongs there."""
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class Check:
    """What a value has to be beyond its type: ``Annotated[int, Check(...)]``."""

    words: str
    holds: Callable[[Any], bool]


def one_of(*values: object) -> Check:
    """Check that a value is one of a few."""
    return Check(f"one of {', '.join(map(str, values))}", values.__contains__)


class MisfitError(ValueError):
    """What was read is not of the type declared; the text begins with the way to it."""

    def __init__(self, words: str, *path: str | int) -> None:
        super().__init__(words)
        self.words, self.path = words, list(path)

    def __str__(self) -> str:
        """Return the way to the value, and what is wrong with it."""
        way = "".join(map(_step, self.path)).removeprefix(".")
        return f"{way}: {self.words}" if way else self.words


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step[:80]}" if step.isidentifier() else f"[{step[:80]!r}]"


def _odd(value: object, words: str) -> MisfitError:
    return MisfitError(f"{str(value)[:80]!r} where {words} belongs")


def from_json(kind: type[Value], data: object, where: str, **given: object) -> Value:
    """Return what was written of a dataclass or a named tuple, every type in it checked.

    Args:
        kind: the class.
        data: JSON from outside.
        where: what it is, for the message.
        given: fields that the file does not hold.

    Raises:
        MisfitError: something in it is not as the class declares it.
    """
    wanted = getattr(kind, "schema", None)
    said = data.get("schema") if isinstance(data, dict) else None
    # First of all: what a file of another schema holds, nobody here knows.
    if wanted is not None and said != wanted:
        raise MisfitError(f"{where} is not of schema {wanted}, but {str(said or data)[:80]!r}")
    try:
        made: Value = _object(kind, data, **given)
    except MisfitError as error:
        raise MisfitError(f"{where}: {error}") from error
    return made


def _object(kind: Kind, data: object, **given: object) -> Any:  # noqa: ANN401 - of that kind
    found = dict(given)
    _fill(found, data, _slots(kind))
    made = kind(**found)
    for key in _repeating(kind):
        _check_repeated(key, made, data)
    return made


def _named_tuple(kind: Kind, data: Any) -> Any:  # noqa: ANN401 - untrusted JSON, and of that kind
    """Read a row of a long table: a plan has a hundred thousand."""
    slots = _slots(kind)
    try:
        if len(data) == len(slots):
            cells = [slot.reader(data[name]) for name, slot in slots.items()]
            return tuple.__new__(kind, cells)
    except (KeyError, TypeError, MisfitError):
        pass  # What is wrong, and where, is said below.
    return _object(kind, data)


def _fill(found: Json, data: Any, slots: Mapping[str, Any]) -> None:  # noqa: ANN401 - untrusted JSON
    if not isinstance(data, dict):
        raise _odd(data, "an object")
    name, missing = "", 0
    try:
        for name, slot in slots.items():
            if name not in data:
                missing += 1
                _leave_out(found, slot)
            elif type(slot) is not _Slot:
                _fill(found, data[name], slot)
            elif slot.reader:
                found[slot.field] = slot.reader(data[name])
        if len(data) + missing != len(slots):
            name = min(data.keys() - slots.keys())
            raise MisfitError("is unknown")  # noqa: TRY301 - its place is added below
    except MisfitError as error:
        error.path.insert(0, name)
        raise


def _leave_out(found: Json, slot: Any) -> None:  # noqa: ANN401 - a slot, or some under their names
    if not isinstance(slot, _Slot):
        _fill(found, {}, slot)
    elif slot.required:
        raise MisfitError("is missing")


def _check_repeated(key: Key, made: object, data: Any) -> None:  # noqa: ANN401 - untrusted JSON
    """Refuse an object that says one thing in two ways that do not agree."""
    way = key.name.split(".")
    said, wanted = reduce(getitem, way, data), key.written(attrgetter(key.field)(made))
    if said != wanted or type(said) is not type(wanted):
        words = f"{str(said)[:80]!r}, but the rest says {str(wanted)[:80]!r}"
        raise MisfitError(words, *way)


class _Slot(NamedTuple):
    """What is done with one key that is read; nothing reads what others say too."""

    field: str
    reader: Reader | None
    required: bool


@cache
def _slots(kind: Kind) -> Mapping[str, Any]:
    """Return the slot of each key, nested as they are written."""
    tables = {"Mapping": Mapping, "Sequence": Sequence}
    hints = get_type_hints(kind, localns=tables, include_extras=True)
    return _slots_of(key_tree(kind), {name: hints[name] for name in field_names(kind)})


def _slots_of(tree: KeyTree, hints: Mapping[str, Kind]) -> Mapping[str, Any]:
    return {
        name: _slots_of(key, hints) if isinstance(key, dict) else _slot(key, hints)
        for name, key in tree.items()
    }


def _slot(key: Key, hints: Mapping[str, Kind]) -> _Slot:
    required = key.presence is Presence.REQUIRED
    if key.field not in hints or key.presence is Presence.PAST:
        return _Slot("", None, required)
    reader = _reader(key.form.kind or hints[key.field])
    return _Slot(key.field, _formed(reader, key.form.read), required)


@cache
def _repeating(kind: Kind) -> tuple[Key, ...]:
    """Return the keys that say what others say too."""
    given = field_names(kind)
    keys = (key for key in keys_of(kind) if key.presence is not Presence.PAST)
    return tuple(key for key in keys if key.field not in given)


def _formed(reader: Reader, read: Reader | None) -> Reader:
    return reader if read is None else lambda value: read(reader(value))


@cache
def _reader(kind: Kind) -> Reader:
    """Return the function that reads a value of a type, or refuses it."""
    generic = _GENERIC.get(get_origin(kind))
    if generic is not None:
        return generic(get_args(kind))
    if kind in _PLAIN:
        return _PLAIN[kind]
    return partial(_object if is_dataclass(kind) else _named_tuple, kind)


def _union(args: tuple[Any, ...]) -> Reader:
    readers = {_plain_type(arg): _reader(arg) for arg in args if arg is not NoneType}
    one = next(iter(readers.values())) if len(readers) == 1 else partial(_either, readers)
    return partial(_optional, one) if NoneType in args else one


def _plain_type(kind: Kind) -> Kind:
    origin: Kind = get_origin(kind)
    return get_args(kind)[0] if origin is Annotated else kind


def _sequence(args: tuple[Any, ...]) -> Reader:
    if len(args) == 1 or args[1] is Ellipsis:
        return partial(_list, _reader(args[0]))
    return partial(_row, tuple(map(_reader, args)))


def _mapping(args: tuple[Any, ...]) -> Reader:
    return partial(_table, *map(_reader, args))


def _annotated(args: tuple[Any, ...]) -> Reader:
    kind, check = args
    if isinstance(check, Range):
        return partial(_ranged, check.low, check.high, check.words)
    return partial(_checked, _reader(kind), check)


_GENERIC: Mapping[Any, Callable[[tuple[Any, ...]], Reader]] = {
    Annotated: _annotated,
    Mapping: _mapping,
    Sequence: _sequence,
    Union: _union,
    UnionType: _union,
    dict: _mapping,
    tuple: _sequence,
}
"""What reads a type with arguments, by what stands before them."""


def _anything(value: object) -> object:
    return value


def _plain(kind: type, words: str, value: object) -> object:
    if type(value) is not kind:
        raise _odd(value, words)
    return value


def _number(value: Any) -> object:  # noqa: ANN401 - untrusted JSON
    # One comparison refuses what is not a number, infinity, and an int that no float holds.
    if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:
        raise _odd(value, "a finite number")
    return value


def _path(value: object) -> object:
    return Path(str(_PLAIN[str](value)))


_LARGEST = sys.float_info.max


_PLAIN: Mapping[Any, Reader] = {
    Any: _anything,
    bool: partial(_plain, bool, "true or false"),
    int: partial(_plain, int, "a whole number"),
    str: partial(_plain, str, "a text"),
    float: _number,
    Path: _path,
}


def _ranged(low: int, high: int, words: str, value: Any) -> object:  # noqa: ANN401 - untrusted JSON
    if type(value) is not int or not low <= value <= high:
        raise _odd(value, words)
    return value


def _checked(reader: Reader, check: Check, value: object) -> object:
    found = reader(value)
    if not check.holds(found):
        raise _odd(value, check.words)
    return found


def _optional(reader: Reader, value: object) -> object:
    return None if value is None else reader(value)


def _either(readers: Mapping[Kind, Reader], value: object) -> object:
    reader = readers.get(type(value))
    if reader is None:
        raise MisfitError(f"{str(value)[:80]!r} does not belong there")
    return reader(value)


def _list(reader: Reader, value: object) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _odd(value, "a list")
    found: list[object] = []
    # What was read before the misfit tells its place.
    try:
        found.extend(map(reader, value))
    except MisfitError as error:
        error.path.insert(0, len(found))
        raise
    return tuple(found)


def _row(readers: tuple[Reader, ...], value: object) -> tuple[object, ...]:
    if not isinstance(value, list) or len(value) != len(readers):
        raise _odd(value, f"a list of {len(readers)}")
    return tuple(reader(item) for reader, item in zip(readers, value, strict=True))


def _table(name_reader: Reader, reader: Reader, value: object) -> Json:
    if not isinstance(value, dict):
        raise _odd(value, "a table")
    found, name = {}, ""
    try:
        for name, item in value.items():
            found[name_reader(name)] = reader(item)
    except MisfitError as error:
        error.path.insert(0, name)
        raise
    return found
