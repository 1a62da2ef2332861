"""JSON schemas (draft 2020-12) of the records that `to_json` writes and `from_json` reads.

They are generated from the classes: keys, types and conditions are those that `from_json` checks,
descriptions come from docstrings. A schema accepts more than `from_json` in three ways: it cannot
compare computed keys with the fields, it accepts ``1.0`` as an integer, and it lacks conditions that
JSON schema cannot express.
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
    from memplan_cli.core.json_types import Json, TypeHint

DRAFT = "https://json-schema.org/draft/2020-12/schema"

_SCALARS: Mapping[TypeHint, Json] = {
    Any: {},
    bool: {"type": "boolean"},
    float: {"type": "number"},
    int: {"type": "integer"},
    NoneType: {"type": "null"},
    Path: {"type": "string"},
    str: {"type": "string"},
}


FILE_KEYS = frozenset({Presence.REQUIRED})
"""The keys without which a file is refused: the required keys of a file's schema."""

RESULT_KEYS = frozenset({Presence.REQUIRED, Presence.OPTIONAL})
"""The keys that are always written: the required keys of the schema of a command's output."""


def document_schema(
    identifier: str, title: str, classes: Sequence[TypeHint], required: frozenset[Presence]
) -> Json:
    """Return the schema of a file or of a command's output.

    Args:
        identifier: its ``$id`` and the value of its key ``schema``, such as ``memplan.plan/1``.
        title: what the document is.
        classes: the class of the document; or several that it may have, each of which declares its
            own ``schema``.
        required: which keys the document must have.
    """
    definitions = _Definitions(required)
    if len(classes) > 1:
        schema = _either(list(map(definitions.schema_of, classes)))
    else:
        schema = definitions.object_schema(classes[0])
        schema["properties"] = {"schema": {"const": identifier}, **schema["properties"]}
        schema["required"] = list(dict.fromkeys(("schema", *schema.get("required", ()))))
    schema = {"$schema": DRAFT, "$id": identifier, "title": title, **schema}
    return {**schema, "$defs": definitions.schemas} if definitions.schemas else schema


class _Definitions:
    """The ``$defs`` of one document: the schema of each record class in it.

    Attributes:
        schemas: class name -> schema. Methods add to it the classes that they meet.
    """

    def __init__(self, required: frozenset[Presence]) -> None:
        self.schemas: dict[str, Json] = {}
        self._required = required
        self._classes: dict[str, TypeHint] = {}

    def schema_of(self, type_hint: TypeHint) -> Json:
        """Return the schema of values of a type. A record class becomes a reference."""
        if type_hint in _SCALARS:
            return dict(_SCALARS[type_hint])
        origin, args = get_origin(type_hint), get_args(type_hint)
        if origin is not None:
            return _GENERIC[origin](self, args)
        if issubclass(type_hint, Enum):
            return {"enum": [member.value for member in type_hint]}
        return self._reference(type_hint)

    def object_schema(self, record_class: TypeHint) -> Json:
        """Return the schema of a record."""
        schema = self._properties(
            record_class, key_tree(record_class), _field_descriptions(record_class)
        )
        description = _summary(record_class)
        return {"description": description, **schema} if description else schema

    def _reference(self, record_class: TypeHint) -> Json:
        """Return a reference to the schema of a record class, after adding that to ``schemas``."""
        name = record_class.__name__
        if self._classes.setdefault(name, record_class) is not record_class:
            raise TypeError(f"a JSON schema has two classes {name}")
        if name not in self.schemas:
            self.schemas[name] = {}  # ends the recursion if the class contains itself
            self.schemas[name] = self.object_schema(record_class)
        return {"$ref": f"#/$defs/{name}"}

    def _properties(
        self, record_class: TypeHint, tree: KeyTree, descriptions: Mapping[str, str]
    ) -> Json:
        """Return the schema of a record's JSON object, or of an object nested in it by dotted keys.

        Other keys than those in ``tree`` are refused.

        Args:
            record_class: the class of the record.
            tree: the keys of the object.
            descriptions: field -> its description.
        """
        properties: Json = {}
        for name, key in tree.items():
            if isinstance(key, dict):
                properties[name] = self._properties(record_class, key, descriptions)
            else:
                schema = self._attribute_schema(
                    record_class, key.attribute, key.form.type_hint
                )
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

    def _attribute_schema(
        self, record_class: TypeHint, path: str, written_type: TypeHint
    ) -> Json:
        """Return the schema of a field, a property or a class constant.

        Args:
            record_class: the class.
            path: the attribute; ``a.b`` is the attribute ``b`` of the attribute ``a``.
            written_type: its type in the file; None: the type of the attribute.
        """
        *outer_names, name = path.split(".")
        for outer_name in outer_names:
            record_class = _attribute_type(record_class, outer_name)
        # A class constant has one value; the default of a field may be text too.
        constant = getattr(record_class, name, None)
        if isinstance(constant, str) and name not in field_names(record_class):
            return {"const": constant}
        return self.schema_of(written_type or _attribute_type(record_class, name))

    def _is_required(self, key: Any) -> bool:  # noqa: ANN401 - a key, or a tree of keys
        """Return whether a document must have a key, or one of the keys of a nested object."""
        if isinstance(key, dict):
            return any(map(self._is_required, key.values()))
        return key.presence in self._required

    def array_schema(self, args: tuple[TypeHint, ...]) -> Json:
        """Return the schema of a tuple or a sequence with these type arguments."""
        if len(args) == 1 or args[1] is Ellipsis:
            return {"type": "array", "items": self.schema_of(args[0])}
        items = [self.schema_of(arg) for arg in args]
        length = {"minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "prefixItems": items, **length}

    def table_schema(self, args: tuple[TypeHint, ...]) -> Json:
        """Return the schema of a mapping with these type arguments."""
        names, values = args
        schema: Json = {"type": "object"}
        if names is not str:
            schema["propertyNames"] = self.schema_of(names)
        value_schema = self.schema_of(values)
        return {**schema, "additionalProperties": value_schema} if value_schema else schema

    def union_schema(self, args: tuple[TypeHint, ...]) -> Json:
        """Return the schema of a union of types."""
        return _either([self.schema_of(arg) for arg in args])

    def conditioned_schema(self, args: tuple[TypeHint, ...]) -> Json:
        """Return the schema of a type with a condition; an enumeration needs no type."""
        type_hint, condition = args
        if "enum" in condition.schema:
            return dict(condition.schema)
        return {**self.schema_of(type_hint), **condition.schema}


_GENERIC: Mapping[TypeHint, Callable[[_Definitions, tuple[TypeHint, ...]], Json]] = {
    Annotated: _Definitions.conditioned_schema,
    Mapping: _Definitions.table_schema,
    Sequence: _Definitions.array_schema,
    Union: _Definitions.union_schema,
    UnionType: _Definitions.union_schema,
    dict: _Definitions.table_schema,
    tuple: _Definitions.array_schema,
}
"""The origin of a generic type -> the method that makes its schema from the type arguments."""


def _attribute_type(record_class: TypeHint, name: str) -> TypeHint:
    """Return the type of a field or of a property."""
    attribute = inspect.getattr_static(record_class, name, None)
    if isinstance(attribute, property):
        return type_hints(attribute.fget)["return"]
    if isinstance(attribute, cached_property):
        return type_hints(attribute.func)["return"]
    return type_hints(record_class)[name]


def _either(options: list[Json]) -> Json:
    """Return the schema of values that fit one of several schemas, as short as possible.

    - Enumerations, perhaps with null, become one enumeration.
    - Schemas that all have a type, no two of them the same keyword, become one with several types:
      ``{"type": ["integer", "null"], "minimum": 0}``. Each keyword applies to values of one type only.
    - Others become ``anyOf``.
    """
    enum_values = [value for option in options for value in option.get("enum", ())]
    others = [option for option in options if "enum" not in option]
    if enum_values and others in ([], [{"type": "null"}]):
        return {"enum": [*enum_values, *([None] if others else [])]}
    types = [option["type"] for option in options if "type" in option]
    keywords = [pair for option in options for pair in option.items() if pair[0] != "type"]
    has_common_keyword = len(dict(keywords)) < len(keywords)
    if len(types) == len(options) and not has_common_keyword:
        return {"type": types, **dict(keywords)}
    return {"anyOf": options}


def _summary(record_class: TypeHint) -> str:
    """Return the first paragraph of a class's docstring, on one line."""
    text = inspect.cleandoc(record_class.__doc__ or "")
    return " ".join(text.partition("\n\n")[0].split())


def _field_descriptions(record_class: TypeHint) -> Mapping[str, str]:
    """Return field -> its description in the docstring of a class or of its bases.

    Descriptions are read from ``Attributes`` sections in Google style: ``    name, name: text``.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(record_class.__mro__):
        _, _, section = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        entries = re.findall(r"^    ([\w, ]+): (.+(?:\n        .+)*)", section, re.MULTILINE)
        for names, text in entries:
            descriptions |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return descriptions
