"""Validation of settings that Python code makes, by the same readers as those of settings files.

So code may write ``budget="60%"`` or ``exclude="fc*"`` as a file does, and gets the same errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args

from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.settings.choices import TargetChoice
from memplan_cli.settings.keys import KEYS, OneOf, names
from memplan_cli.settings.values import Entry, Place, Value, invalid

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

    from memplan_cli.settings.keys import Reader

READERS: Mapping[str, Reader] = {
    **KEYS,
    "exclude": names,
    "target": OneOf(get_args(TargetChoice)),
}
"""The reader of each field of `Settings`, including fields that a file may not set."""


def read_fields(settings: DataclassInstance, within: str = "") -> None:
    """Validate each field of a new frozen instance, and replace it by what its reader returns.

    Called from ``__post_init__``; the fields are set in place. A reader takes the value as a file
    would hold it, for example an interval as ``1..64``. Fields that have their default value are not
    read. ``within`` is the prefix of the keys with its dot, such as ``mem_param.``.

    Raises:
        SettingsError: a field cannot have this value; the message names the field.
    """
    for item in fields(settings):
        value = getattr(settings, item.name)
        if _is_default(value, item):
            continue
        at = Place(within + item.name)
        # A nested record, such as `MemParam`, has no reader: only its type is checked. The default
        # factory of its field is its class.
        record_class = item.default_factory
        if is_dataclass(record_class):
            if not isinstance(value, record_class):
                message = f"expected a {record_class.__name__}, not {type(value).__name__}"
                raise invalid(at, message)
            continue
        converted = READERS[within + item.name](as_value(file_syntax(item.name, value), at))
        # A float is validated only: a share in percent and back may differ in its last bit.
        if not isinstance(value, float):
            object.__setattr__(settings, item.name, converted)


def file_syntax(name: str, value: object) -> object:
    """Return the value of a field or a key in the form that a file has it in: ``60%`` for a share of 0.6."""
    write = _FILE_SYNTAX.get(name)
    return value if write is None else write(value)


def as_value(content: object, at: Place) -> Value:
    """Return plain data (mappings, lists, scalars) as the value that a file at ``at`` would hold.

    Raises:
        SettingsError: the content is of another type.
    """
    match content:
        case Mapping():
            entries = tuple(Entry(str(k), at, as_value(v, at)) for k, v in content.items())
            return Value(entries, at, kind="table")
        case tuple() | list():
            return Value(tuple(as_value(item, at) for item in content), at, kind="list")
        case bool() | int() | float() | str() | None:
            return Value(content, at)
    raise invalid(at, f"expected plain data, not {type(content).__name__}")


def _is_default(value: object, item: Field[Any]) -> bool:
    """Return whether a value equals the default of its field, in type too: True == 1."""
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return type(value) is type(default) and bool(value == default)


def _bounds_syntax(value: object) -> object:
    """Return bounds with each ``(low, high)`` or ``(low, high, step)`` as text: ``LOW..HIGH:STEP``."""
    if not isinstance(value, Mapping):
        return value
    written = {}
    for name, interval in value.items():
        match interval:
            case (int(), int()) | (int(), int(), int()):
                written[name] = str(DimRange(*interval))
            case _:
                written[name] = interval
    return written


def _budget_syntax(value: object) -> object:
    """Return a share between 0 and 1 in percent, such as ``60%``; other budgets unchanged."""
    return f"{100 * value:f}%" if isinstance(value, float) else value


def _record_syntax(value: object) -> object:
    """Return the fields of a record, such as a `MemParam`, as a table; other values unchanged."""
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _size_syntax(value: object) -> object:
    """Return an integer as a number of bytes with its unit; other values unchanged."""
    return f"{value} B" if isinstance(value, int) and not isinstance(value, bool) else value


_FILE_SYNTAX: Mapping[str, Callable[[object], object]] = {
    "bounds": _bounds_syntax,
    "budget": _budget_syntax,
    "mem_param": _record_syntax,
    "gate.max_memory": _size_syntax,
    "gate.max_increase": _size_syntax,
}
"""Fields and keys whose value has another form in a file, with the function that returns that form."""
