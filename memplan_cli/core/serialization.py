"""Frozen records as JSON: the format of a class, and `to_json`, which writes it.

A dataclass or a named tuple is an object with one key per field, in the order of the fields.
A class declares what differs:

- ``schema``, a constant, is its first key, and names the format of the whole file.
- ``field(default=..., metadata=OPTIONAL)`` or ``SPARSE``: see `Presence`.
- ``field(metadata=json_form(...))``: the value in the file is not the value of the field.
- ``json_keys`` lists the keys of the file in their order, if they are not the fields. An item is
  the name of an attribute, or a pair of key and attribute. Both may have dots: the key ``a.b`` is
  ``b`` in the object ``a``, and the attribute ``a.b`` is ``b`` of the attribute ``a``. An
  attribute that is not a field (a property, a constant) is written, and has to agree with the
  fields when it is read.
- ``past_keys`` lists keys of earlier versions, which are accepted and ignored.

`deserialization` reads the same format and `json_schema` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from operator import attrgetter
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json, Kind

Keys = tuple[str | tuple[str, str], ...]
"""The keys of a file in order: attributes, or pairs of a key and its attribute."""


class Presence(Enum):
    """Whether a key has to be in a file."""

    REQUIRED = "always written; a file without it is refused"
    OPTIONAL = "always written; where it is missing, the field has its default"
    SPARSE = "written only where the field differs from its default"
    PAST = "written by earlier versions; accepted and ignored"


@dataclass(frozen=True, slots=True)
class Form:
    """The value of a key where it is not the value of the field.

    Attributes:
        kind: its type in the file; None: the field's type.
        write: from the field's value to the file's.
        read: from the file's value, whose type has been checked, to the field's.
    """

    kind: Kind = None
    write: Callable[[Any], object] | None = None
    read: Callable[[Any], Any] | None = None


PLAIN = Form()

OPTIONAL: Mapping[str, object] = {"presence": Presence.OPTIONAL}
"""Metadata of a field that is always written and need not be in a file."""

SPARSE: Mapping[str, object] = {"presence": Presence.SPARSE}
"""Metadata of a field that is written only where it differs from its default."""


def json_form(
    *,
    kind: Kind = None,
    write: Callable[[Any], object] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Mapping[str, object]:
    """Return metadata of a field whose value in the file is another: see `Form`."""
    return {"form": Form(kind, write, read)}


SORTED = json_form(write=lambda table: dict(sorted(table.items())))
"""Metadata of a mapping that is written in the order of its names."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an object.

    Attributes:
        name: the key; ``a.b`` is ``b`` in the object ``a``.
        attribute: the attribute that it holds, with dots through others.
        presence: whether it has to be there.
        form: how the attribute's value is written.
    """

    name: str
    attribute: str
    presence: Presence = Presence.REQUIRED
    form: Form = PLAIN

    def value(self, record: object) -> object:
        """Return the value of the key for a record, as JSON."""
        value = attrgetter(self.attribute)(record)
        return to_json(self.form.write(value) if self.form.write else value)


KeyTree = dict[str, Any]
"""Keys by name; where a key is an object of keys with dots, a tree of its own."""


def to_json(value: Any) -> Any:  # noqa: ANN401 - any record, and JSON
    """Return a value as JSON. Numbers that are not finite become null."""
    kind: Kind = type(value)
    if kind in (str, int, bool, NoneType):
        return value
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if _is_dataclass(kind):
        return _object(value, kind, key_tree(kind))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, map(to_json, value), strict=True))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return _scalar(value)


def _is_dataclass(kind: Kind) -> bool:
    # After a direct call of `is_dataclass`, mypy no longer accepts the type as a cache key.
    return is_dataclass(kind)


def _scalar(value: object) -> object:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _object(record: object, kind: Kind, tree: KeyTree) -> Json:
    """Return the keys of a tree with their values for a record."""
    written: Json = {}
    for name, key in tree.items():
        if isinstance(key, dict):
            written[name] = _object(record, kind, key)
        elif key.presence is Presence.SPARSE:
            if attrgetter(key.attribute)(record) != _defaults(kind)[key.attribute]:
                written[name] = key.value(record)
        elif key.presence is not Presence.PAST:
            written[name] = key.value(record)
    return written


@cache
def key_tree(kind: Kind) -> KeyTree:
    """Return the keys of a class, nested as they are written."""
    tree: KeyTree = {}
    for key in keys_of(kind):
        *outer, name = key.name.split(".")
        inner = tree
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[name] = key
    return tree


def keys_of(kind: Kind) -> tuple[Key, ...]:
    """Return the keys of a class: those of ``json_keys`` or its fields, then past ones."""
    formats = {item.name: item.metadata for item in fields(kind)} if is_dataclass(kind) else {}
    listed: Keys = getattr(kind, "json_keys", None) or field_names(kind)
    if schema_name(kind):
        listed = ("schema", *listed)
    pairs = ((item, item) if isinstance(item, str) else item for item in listed)
    current = (Key(name, attribute, **formats.get(attribute, {})) for name, attribute in pairs)
    past = (Key(name, name, Presence.PAST) for name in getattr(kind, "past_keys", ()))
    return (*current, *past)


def schema_name(kind: Kind) -> str | None:
    """Return the format that a class names in ``schema``, such as ``memplan.plan/1``."""
    name = getattr(kind, "schema", None)
    return name if isinstance(name, str) else None


def field_names(kind: Kind) -> tuple[str, ...]:
    """Return the fields of a dataclass or a named tuple."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else kind._fields


@cache
def _defaults(kind: Kind) -> Mapping[str, object]:
    """Return the default of each field of a dataclass; `MISSING` for a field without one."""
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(kind)
    }
