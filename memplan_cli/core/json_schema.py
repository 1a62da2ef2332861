"""JSON schemas (draft 2020-12) of the records that `to_json` writes and `from_json` reads.

They are generated from the classes: keys, types and conditions are those that `from_json` checks,
descriptions are docstrings. A schema accepts more than `from_json` in three ways: it cannot hold
computed keys against the fields, it accepts ``1.0`` as a whole number, and a `Check` without
keywords is not in it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from memplan_cli.core.deserialization import type_hints
from memplan_cli.core.serialization import KeyTree, Presence, field_names, key_tree

if TYPE_CHECKING:
    from memplan_cli.core.json_types import Json, Kind

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: Mapping[Kind, Json] = {
    Any: {},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer"},
    NoneType: {"type": "null"},
    Path: {"type": "string"},
    str: {"type": "string"},
}


FILE_KEYS = frozenset({Presence.REQUIRED})
"""The keys that a file has to have to be read."""

RESULT_KEYS = frozenset({Presence.REQUIRED, Presence.OPTIONAL})
"""The keys that are always written."""


def document_schema(
    identifier: str, title: str, kinds: Sequence[Kind], required: frozenset[Presence]
) -> Json:
    """Return the schema of a file or of a command's output.

    Args:
        identifier: its ``$id`` and the value of its key ``schema``, such as ``memplan.plan/1``.
        title: what the document is.
        kinds: the class of the document, or the classes that it can be, which have the key
            ``schema`` themselves.
        required: the keys that the document has to have.
    """
    definitions = _Definitions(required)
    if len(kinds) > 1:
        schema = _either(list(map(definitions.schema_of, kinds)))
    else:
        schema = definitions.object_schema(kinds[0])
        schema["properties"] = {"schema": {"const": identifier}, **schema["properties"]}
        schema["required"] = list(dict.fromkeys(("schema", *schema.get("required", ()))))
    schema = {"$schema": DRAFT, "$id": identifier, "title": title, **schema}
    return {**schema, "$defs": definitions.schemas} if definitions.schemas else schema


class _Definitions:
    """The schemas of all records in one document, by the names of their classes."""

    def __init__(self, required: frozenset[Presence]) -> None:
        self.schemas: dict[str, Json] = {}
        self._required = required
        self._classes: dict[str, Kind] = {}

    def schema_of(self, kind: Kind) -> Json:
        """Return the schema of values of a type; the records in it are added to the table."""
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        origin, args = get_origin(kind), get_args(kind)
        if origin is not None:
            return _GENERIC[origin](self, args)
        if issubclass(kind, Enum):
            return {"enum": [member.value for member in kind]}
        return self._reference(kind)

    def object_schema(self, kind: Kind) -> Json:
        """Return the schema of a record."""
        schema = self._properties(kind, key_tree(kind), _field_descriptions(kind))
        text = _summary(kind)
        return {"description": text, **schema} if text else schema

    def _reference(self, kind: Kind) -> Json:
        name = kind.__name__
        if self._classes.setdefault(name, kind) is not kind:
            raise TypeError(f"a JSON schema has two classes {name}")
        if name not in self.schemas:
            self.schemas[name] = {}
            self.schemas[name] = self.object_schema(kind)
        return {"$ref": f"#/$defs/{name}"}

    def _properties(self, kind: Kind, tree: KeyTree, descriptions: Mapping[str, str]) -> Json:
        properties: Json = {}
        for name, key in tree.items():
            if isinstance(key, dict):
                properties[name] = self._properties(kind, key, descriptions)
            elif key.presence is Presence.PAST:
                properties[name] = {"deprecated": True}
            else:
                schema = self._attribute(kind, key.attribute, key.form.kind)
                description = descriptions.get(key.attribute)
                properties[name] = (
                    {"description": description, **schema} if description else schema
                )
        required = [name for name, key in tree.items() if self._is_required(key)]
        return {
            "type": "object",
            "properties": properties,
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def _attribute(self, kind: Kind, path: str, form_kind: Kind) -> Json:
        """Return the schema of a field, a property or a constant, with dots through others."""
        *outer, name = path.split(".")
        for step in outer:
            kind = _attribute_type(kind, step)
        constant = getattr(kind, name, None)
        if isinstance(constant, str) and name not in field_names(kind):
            return {"const": constant}
        return self.schema_of(form_kind or _attribute_type(kind, name))

    def _is_required(self, key: Any) -> bool:  # noqa: ANN401 - a key, or a tree of keys
        """Whether a document has to hold a key, or one of the keys of an object."""
        if isinstance(key, dict):
            return any(map(self._is_required, key.values()))
        return key.presence in self._required

    def array_schema(self, args: tuple[Kind, ...]) -> Json:
        """Return the schema of a tuple or a sequence with these type arguments."""
        if len(args) == 1 or args[1] is Ellipsis:
            return {"type": "array", "items": self.schema_of(args[0])}
        items = [self.schema_of(arg) for arg in args]
        length = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **length}

    def table_schema(self, args: tuple[Kind, ...]) -> Json:
        """Return the schema of a mapping with these type arguments."""
        names, values = args
        schema: Json = {"type": "object"}
        if names is not str:
            schema["propertyNames"] = self.schema_of(names)
        value_schema = self.schema_of(values)
        return {**schema, "additionalProperties": value_schema} if value_schema else schema

    def union_schema(self, args: tuple[Kind, ...]) -> Json:
        """Return the schema of a union of types."""
        return _either([self.schema_of(arg) for arg in args])

    def conditioned_schema(self, args: tuple[Kind, ...]) -> Json:
        """Return the schema of a type and a condition; an enumeration says the type as well."""
        kind, condition = args
        if "enum" in condition.schema:
            return dict(condition.schema)
        return {**self.schema_of(kind), **condition.schema}


_GENERIC: Mapping[Kind, Callable[[_Definitions, tuple[Kind, ...]], Json]] = {
    Annotated: _Definitions.conditioned_schema,
    Mapping: _Definitions.table_schema,
    Sequence: _Definitions.array_schema,
    Union: _Definitions.union_schema,
    UnionType: _Definitions.union_schema,
    dict: _Definitions.table_schema,
    tuple: _Definitions.array_schema,
}
"""The origin of a type with arguments -> its schema from these."""


def _attribute_type(kind: Kind, name: str) -> Kind:
    """Return the type of a field, or what a property returns."""
    attribute = inspect.getattr_static(kind, name, None)
    if isinstance(attribute, property):
        return type_hints(attribute.fget)["return"]
    if isinstance(attribute, cached_property):
        return type_hints(attribute.func)["return"]
    return type_hints(kind)[name]


def _either(options: list[Json]) -> Json:
    """Return the schema of a union: one list of types if each keyword is of one option only."""
    enums = [option["enum"] for option in options if "enum" in option]
    if enums and all("enum" in option or option == {"type": "null"} for option in options):
        values = [value for enum in enums for value in enum]
        return {"enum": [*values, None] if len(enums) < len(options) else values}
    keywords = [word for option in options for word in option if word != "type"]
    if len(keywords) == len(set(keywords)) and all("type" in option for option in options):
        merged: Json = {"type": [option["type"] for option in options]}
        for option in options:
            merged.update((word, value) for word, value in option.items() if word != "type")
        return merged
    return {"anyOf": options}


def _summary(kind: Kind) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    text = inspect.cleandoc(kind.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def _field_descriptions(kind: Kind) -> Mapping[str, str]:
    """Return what the ``Attributes`` sections of a class and its bases say of each field."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        entries = re.findall(r"^    ([\w, ]+): (.+(?:\n        .+)*)", section, re.MULTILINE)
        for names, text in entries:
            descriptions |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return descriptions
