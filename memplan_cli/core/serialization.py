"""Records as JSON: the declaration of a class's format, and `to_json`, which writes it.

A dataclass or a named tuple becomes an object with one key per field, in the order of the fields.
A class can change that:

- ``schema``, a class constant, becomes the first key. It names the format of the whole file.
- ``json_keys`` lists the keys in their order. An item is the name of an attribute, or a pair of a
  key and an attribute. The key ``a.b`` is the key ``b`` of a nested object ``a``; the attribute
  ``a.b`` is the attribute ``b`` of the record in ``a``. Properties and class constants may be
  listed too: they are written, and a file whose value differs from the computed one is refused.
- ``field(metadata=OPTIONAL)`` or ``SPARSE``: whether the key may be missing, see `Presence`.
- ``field(metadata=json_form(...))``: the field has another value in the file.

`deserialization` reads the same format, and `json_schema` describes it.
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
    from memplan_cli.core.json_types import Json, TypeHint

Keys = tuple[str | tuple[str, str], ...]
"""The type of ``json_keys``: attributes, or pairs of a key and an attribute."""


class Presence(Enum):
    """Whether a key is written, and whether a file may lack it."""

    REQUIRED = "always written; a file without it is refused"
    OPTIONAL = "always written; if it is missing, the field has its default"
    SPARSE = "written only if the field differs from its default"


@dataclass(frozen=True, slots=True)
class Form:
    """The conversion between the value of a field and its value in a file.

    Attributes:
        type_hint: the type in the file; None: the type of the field.
        write: converts the value of the field; None: it is written as it is.
        read: converts the value of the file, after its type was checked.
    """

    type_hint: TypeHint = None
    write: Callable[[Any], object] | None = None
    read: Callable[[Any], Any] | None = None


UNCONVERTED = Form()

OPTIONAL: Mapping[str, object] = {"presence": Presence.OPTIONAL}
"""Metadata of a field that is always written and may be missing in a file."""

SPARSE: Mapping[str, object] = {"presence": Presence.SPARSE}
"""Metadata of a field that is written only if it differs from its default."""


def json_form(
    *,
    type_hint: TypeHint = None,
    write: Callable[[Any], object] | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Mapping[str, object]:
    """Return the metadata of a field that is converted when it is written or read: see `Form`."""
    return {"form": Form(type_hint, write, read)}


SORTED = json_form(write=lambda table: dict(sorted(table.items())))
"""Metadata of a mapping whose keys are written in sorted order."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the JSON object of a class.

    Attributes:
        name: the key; ``a.b`` is the key ``b`` of the nested object ``a``.
        attribute: the attribute whose value it has; may have dots, see `operator.attrgetter`.
        presence: whether it is written, and whether it may be missing.
        form: how the value is converted.
    """

    name: str
    attribute: str
    presence: Presence = Presence.REQUIRED
    form: Form = UNCONVERTED

    def value(self, record: object) -> object:
        """Return the JSON value of the key for a record."""
        value = attrgetter(self.attribute)(record)
        return to_json(self.form.write(value) if self.form.write else value)


KeyTree = dict[str, Any]
"""The keys of a class, nested as in the file: a `Key`, or the `KeyTree` of a nested object."""


def to_json(value: Any) -> Any:  # noqa: ANN401 - any record, and JSON
    """Return a value as JSON: dicts, lists, texts, numbers. Infinity and NaN become null.

    Raises:
        TypeError: a value has a type without a form in JSON.
    """
    value_type: TypeHint = type(value)
    if value_type in (str, int, bool, NoneType):
        return value
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if _is_dataclass(value_type):
        return _object(value, value_type, key_tree(value_type))
    if isinstance(value, tuple) and hasattr(value_type, "_fields"):
        return dict(zip(value_type._fields, map(to_json, value), strict=True))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return _scalar(value)


def _is_dataclass(value_type: TypeHint) -> bool:
    # A function, because mypy no longer accepts a type as a cache key after `is_dataclass`.
    return is_dataclass(value_type)


def _scalar(value: object) -> object:
    """Return a value that is neither None, a record nor a container as JSON; see `to_json`."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return to_json(value.value)
    if isinstance(value, str | int):
        return value
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _object(record: object, record_class: TypeHint, tree: KeyTree) -> Json:
    """Return the JSON object of a record. A SPARSE key is left out if its field has the default.

    ``tree`` has the keys by name. A subtree is an object nested in the JSON, whose values the same record has.
    """
    json_object: Json = {}
    for name, key in tree.items():
        if isinstance(key, dict):
            json_object[name] = _object(record, record_class, key)
        elif key.presence is not Presence.SPARSE or (
            # The attribute of a SPARSE key is the name of a field, without dots.
            getattr(record, key.attribute) != _defaults(record_class)[key.attribute]
        ):
            json_object[name] = key.value(record)
    return json_object


@cache
def key_tree(record_class: TypeHint) -> KeyTree:
    """Return the keys of a class, nested as in the file."""
    tree: KeyTree = {}
    for key in keys_of(record_class):
        *outer_names, name = key.name.split(".")
        subtree = tree
        for outer_name in outer_names:
            subtree = subtree.setdefault(outer_name, {})
        subtree[name] = key
    return tree


def keys_of(record_class: TypeHint) -> tuple[Key, ...]:
    """Return the keys of a class: its ``json_keys``, or all fields of a class that has none.

    The key ``schema`` comes first, if the class has a schema name.
    """
    # The metadata of a field are keyword arguments of `Key`: ``presence`` and ``form``.
    metadata = (
        {item.name: item.metadata for item in fields(record_class)}
        if is_dataclass(record_class)
        else {}
    )
    listed: Keys = getattr(record_class, "json_keys", None) or field_names(record_class)
    if schema_name(record_class):
        listed = ("schema", *listed)
    # An item is a pair of a key and an attribute, or one name for both.
    pairs = ((item, item) if isinstance(item, str) else item for item in listed)
    return tuple(
        Key(name, attribute, **metadata.get(attribute, {})) for name, attribute in pairs
    )


def schema_name(record_class: TypeHint) -> str | None:
    """Return the format that a class declares, such as ``memplan.plan/1``; None: it has none."""
    name = getattr(record_class, "schema", None)
    return name if isinstance(name, str) else None


def field_names(record_class: TypeHint) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass or a named tuple."""
    if is_dataclass(record_class):
        return tuple(item.name for item in fields(record_class))
    names: tuple[str, ...] = record_class._fields
    return names


@cache
def _defaults(record_class: TypeHint) -> Mapping[str, object]:
    """Return the default of each field of a dataclass; `MISSING` for a field without one."""
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(record_class)
    }
