"""Validation of settings made by Python code, by the readers of settings files.

A setting is what its reader gives, whoever wrote it: code may say ``budget="60%"`` or
``exclude="fc*"`` as a file does, and is refused in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_args

from memplan_cli.settings.choices import TargetChoice
from memplan_cli.settings.keys import KEYS, OneOf, names
from memplan_cli.settings.written import Entry, Place, Value, wrong

if TYPE_CHECKING:
    from dataclasses import Field

    from _typeshed import DataclassInstance

    from memplan_cli.settings.keys import Reader

READERS: Mapping[str, Reader] = {
    **KEYS,
    "exclude": names,
    "target": OneOf(get_args(TargetChoice)),
}
"""The reader of each field, those included that no file may set."""


def judge(settings: DataclassInstance, within: str = "") -> None:
    """Give each field the meaning that its reader reads, while the settings are being made.

    Args:
        settings: What is being made; its defaults need no judge.
        within: The table that the fields are in, with its dot.

    Raises:
        SettingsError: a value is not what the field may be; the message names it.
    """
    for item in fields(settings):
        value = getattr(settings, item.name)
        if _is_default(value, item):
            continue
        at = Place(within + item.name)
        if is_dataclass(kind := item.default_factory):
            if not isinstance(value, kind):
                raise wrong(at, f"expected a {kind.__name__}, not {type(value).__name__}")
            continue
        formatted = _FORMATS.get(item.name, _as_it_is)(value)
        meaning = READERS[within + item.name](as_value(formatted, at))
        # In percent and back, a share may be off by its last bit: it stays what it was.
        kept = value if isinstance(value, float) else meaning
        object.__setattr__(settings, item.name, kept)


def as_value(content: object, at: Place) -> Value:
    """Return plain data as if it had been written somewhere.

    Raises:
        SettingsError: it is no plain data.
    """
    match content:
        case Mapping():
            entries = tuple(Entry(str(k), at, as_value(v, at)) for k, v in content.items())
            return Value(entries, at, kind="table")
        case tuple() | list():
            return Value(tuple(as_value(item, at) for item in content), at, kind="list")
        case bool() | int() | float() | str() | None:
            return Value(content, at)
    raise wrong(at, f"expected plain data, not {type(content).__name__}")


def _is_default(value: object, item: Field[Any]) -> bool:
    made = item.default if item.default_factory is MISSING else item.default_factory()
    # True == 1, which is a level, and no flag.
    return type(value) is type(made) and bool(value == made)


def _as_it_is(value: object) -> object:
    return value


def _formatted_bounds(value: object) -> object:
    """Return bounds as a file has them: ``LOW..HIGH``."""
    if not isinstance(value, Mapping):
        return value
    return {name: _formatted_interval(interval) for name, interval in value.items()}


def _formatted_interval(interval: object) -> object:
    match interval:
        case (int(low), int(high)):
            return f"{low}..{high}"
    return interval


def _formatted_share(value: object) -> object:
    """Return a share as a file has it: in percent."""
    return f"{100 * value:f}%" if isinstance(value, float) else value


_FORMATS: Mapping[str, Callable[[object], object]] = {
    "bounds": _formatted_bounds,
    "budget": _formatted_share,
}
"""How a file formats the fields whose meaning is no plain data of a file."""
