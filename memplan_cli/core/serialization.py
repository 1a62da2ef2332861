"""Frozen data as JSON, by what its types declare.

A dataclass or a named tuple is an object with a key for each field. Where a file is laid out
otherwise, the class says so in ``json_keys``: the keys in their order, nested ones with a dot,
each with the attribute behind it. A key whose attribute is no field, but a property or a
constant, is written too, and has to say the same when it is read (`deserialization`).
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
from typing import (
    Any,
)

Json = dict[str, Any]
"""An object of JSON: what a file's schema lays out, as dictionaries."""


Kind = Any
"""A type as `typing` has it, for which there is no type."""


Reader = Callable[[Any], Any]


class Presence(Enum):
    """Whether a file has to hold a key."""

    REQUIRED = "always written, and refused where it is missing"
    OPTIONAL = "always written; where it is missing, the field has its default"
    SPARSE = "written and read only where the field differs from its default"
    PAST = "not written any more, and passed over where an earlier version wrote it"


@dataclass(frozen=True, slots=True)
class Form:
    """How a value stands in a file where that is not as its field declares it.

    Attributes:
        kind: the type there; None: the field's.
        write: from the attribute to that type.
        read: from what was read, its type checked, to the attribute.
    """

    kind: Kind = None
    write: Callable[[Any], object] | None = None
    read: Reader | None = None


PLAIN = Form()


SORTED = Form(write=lambda table: dict(sorted(table.items())))
"""A table by name."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an object.

    Attributes:
        name: the key; ``a.b`` is ``b`` in the object ``a``.
        of: the attribute, with dots through others; by default the one named like the key.
        presence: whether it has to be there.
        form: how the value is written.
    """

    name: str
    of: str = ""
    presence: Presence = Presence.REQUIRED
    form: Form = PLAIN

    @property
    def field(self) -> str:
        """Return the attribute behind the key."""
        return self.of or self.name

    def written(self, value: Any) -> Any:  # noqa: ANN401 - of any attribute, and JSON
        """Return the attribute's value as JSON."""
        return to_json(self.form.write(value) if self.form.write else value)


Keys = tuple[str | Key, ...]


def optional(*names: str, form: Form = PLAIN) -> Keys:
    """Return keys of fields that have their default where a file does not hold them."""
    return tuple(Key(name, presence=Presence.OPTIONAL, form=form) for name in names)


def sparse(*names: str, form: Form = PLAIN) -> Keys:
    """Return keys of fields that are written only where they differ from their default."""
    return tuple(Key(name, presence=Presence.SPARSE, form=form) for name in names)


def past(*names: str) -> Keys:
    """Return keys that earlier versions wrote."""
    return tuple(Key(name, presence=Presence.PAST) for name in names)


KeyTree = dict[str, Any]
"""Keys by name; nested ones as a tree of their own."""


def to_json(value: Any) -> Any:  # noqa: ANN401 - whatever can be written, and JSON
    """Return a value as JSON has it; a number that is not finite is null."""
    kind: Kind = type(value)
    if kind in (str, int, bool, NoneType):
        return value
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if _is_dataclass(kind):
        return _written(value, kind, key_tree(kind))
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, map(to_json, value), strict=True))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return _scalar(value)


def _is_dataclass(kind: Kind) -> bool:
    # Of what `is_dataclass` says yes to, mypy no longer believes that it can be cached.
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


def _written(outer: object, kind: Kind, tree: KeyTree) -> Json:
    found: Json = {}
    for name, key in tree.items():
        if isinstance(key, dict):
            found[name] = _written(outer, kind, key)
        elif key.presence is not Presence.PAST:
            value = attrgetter(key.field)(outer)
            if key.presence is not Presence.SPARSE or value != _defaults(kind)[key.field]:
                found[name] = key.written(value)
    return found


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
    """Return the keys of a class: those it lists, or its fields."""
    listed: Keys = getattr(kind, "json_keys", None) or field_names(kind)
    return tuple(item if isinstance(item, Key) else Key(item) for item in listed)


def field_names(kind: Kind) -> tuple[str, ...]:
    """Return the fields of a dataclass or a named tuple."""
    return tuple(item.name for item in fields(kind)) if is_dataclass(kind) else kind._fields


@cache
def _defaults(kind: Kind) -> Mapping[str, object]:
    return {
        item.name: item.default if item.default_factory is MISSING else item.default_factory()
        for item in fields(kind)
    }
