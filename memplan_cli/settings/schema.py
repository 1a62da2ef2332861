"""The JSON schema of settings files, generated from the table of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memplan_cli.settings import keys
from memplan_cli.settings.keys import KEYS, METRICS, MODEL_RULES, OneOf

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan_cli.settings.keys import Reader

Json = dict[str, Any]

_NAME: Json = {"type": "string", "minLength": 1}
_WHOLE: Json = {"type": "integer", "minimum": 0}
_SIZE: Json = {"type": ["integer", "string"], "minimum": 0}
_SIZE_WITH_UNIT: Json = {"anyOf": [{"const": 0}, _NAME]}
_METRIC: Json = {"$ref": "#/$defs/metric"}


def _table_of(values: Json) -> Json:
    return {"type": "object", "additionalProperties": values}


def _one_or_more(value: Json) -> Json:
    return {"anyOf": [value, {"type": "array", "items": value}]}


_SCHEMAS: Mapping[Reader, Json] = {
    keys.boolean: {"type": "boolean"},
    keys.text: _NAME,
    keys.names: _one_or_more(_NAME),
    keys.positive: {"type": "integer", "minimum": 1},
    keys.alignment: {"enum": [1 << exponent for exponent in range(63)]},
    keys.seconds: {"type": "number", "exclusiveMinimum": 0},
    keys.dims: _table_of(_WHOLE),
    keys.bounds: _table_of({"type": "string", "pattern": r"^[0-9]+\.\.[0-9]+(:[0-9]+)?$"}),
    keys.shapes: _table_of(
        {"type": "array", "items": {"type": ["integer", "string"], "minimum": 0}}
    ),
    keys.size: _SIZE,
    keys.budget: _SIZE,
    keys.pairs: _table_of(_NAME),
    keys.size_with_unit: _SIZE_WITH_UNIT,
    keys.increase: _SIZE_WITH_UNIT,
    keys.metrics: _one_or_more(_METRIC),
}
"""The reader of a value -> the JSON values that it accepts."""


def settings_schema() -> Json:
    """Return the JSON schema of a settings file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "memplan.config/1",
        "title": "A settings file: memplan.yaml, --config, [tool.memplan]",
        **_keys_schema(KEYS),
        "$defs": {"metric": {"enum": list(METRICS)}},
    }


def _keys_schema(readers: Mapping[str, Reader]) -> Json:
    """Return the schema of a table; dotted keys make nested tables."""
    properties: Json = {}
    for key, reader in readers.items():
        table = key.partition(".")[0]
        if table == key:
            properties[key] = _value_schema(reader)
        elif table not in properties:
            start = f"{table}."
            inner = {
                k.removeprefix(start): r for k, r in readers.items() if k.startswith(start)
            }
            # A table without keys, such as ``gate:`` in YAML, is null.
            properties[table] = {**_keys_schema(inner), "type": ["object", "null"]}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _value_schema(reader: Reader) -> Json:
    """Return the schema of the values that a reader accepts."""
    if isinstance(reader, OneOf):
        return {"enum": list(reader.choices)}
    if reader is keys.models:
        return _table_of(_keys_schema(MODEL_RULES))
    return _SCHEMAS[reader]
