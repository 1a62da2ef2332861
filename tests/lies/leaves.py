"""Every value of a JSON document, and other values that a forger might put in its place."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan_cli.api.schema import schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Json = Any
Path = tuple[str | int, ...]

_ABSENT = object()
"""In place of a value: its key is removed."""


def plan_schema() -> Json:
    """Return the schema of plan files, with the schema of settings files for the settings."""
    plan = schema("plan")
    texts = {"type": "array", "items": {"type": "string"}}
    keys = schema("config")["properties"]
    mem_param = keys["mem_param"]["properties"] | {"exclude_blob": texts}
    plan["properties"]["settings"] = {
        "properties": {
            **{key: value for key, value in keys.items() if key != "gate"},
            "mem_param": {"properties": mem_param, "additionalProperties": False},
            "exclude": texts,
            "checkpoints": texts,
            "target": {"enum": ["portable", "cpu", "cuda"]},
            "profile_shapes": {"type": "boolean"},
        },
        "additionalProperties": False,
    }
    return plan


def changes(
    document: Json, document_schema: Json, rows: int | None = None
) -> Iterator[tuple[Path, Json]]:
    """Yield ``(path, changed document)`` for each value, list and table of a document.

    Numbers get other numbers, texts other texts or other words that the schema allows, bools are
    flipped, nulls get a value; lists get an item more and an item less, tables too. Keys that the schema
    allows and the document does not have are added. Of each list only ``rows`` items are walked; None: all.
    """
    walk = _Walk(document_schema, rows)
    for path, values in walk.alternatives(document, document_schema, ()):
        for value in values:
            yield path, with_value(document, path, value)


def with_value(document: Json, path: Path, value: Json) -> Json:
    """Return a document with another value at a path; the rest is shared with the given one."""
    if not path:
        return value
    changed = document.copy()
    first, *rest = path
    if rest:
        changed[first] = with_value(document[first], tuple(rest), value)
    elif value is _ABSENT:
        del changed[first]
    else:
        changed[first] = value
    return changed


def is_in(path: Path, fields: Sequence[str]) -> bool:
    """Whether one of some fields, with ``*`` for any key or index, is a path or contains it."""
    return any(_covers(field.split("."), path) for field in fields)


def _covers(steps: Sequence[str], path: Path) -> bool:
    return len(steps) <= len(path) and all(
        step in ("*", str(key)) for step, key in zip(steps, path, strict=False)
    )


@dataclass(frozen=True)
class _Walk:
    """A walk over a document along its schema, of which ``root`` has the definitions."""

    root: Json
    rows: int | None

    def alternatives(
        self, value: Json, its_schema: Json, path: Path
    ) -> Iterator[tuple[Path, list[Json]]]:
        """Yield the path of each value in a value, with what may be in its place."""
        its_schema = self._resolved(its_schema)
        if isinstance(value, dict):
            yield from self._of_table(value, its_schema, path)
        elif isinstance(value, list):
            yield from self._of_list(value, its_schema, path)
        else:
            yield path, list(self._other_scalars(value, its_schema))

    def _of_table(
        self, value: Json, its_schema: Json, path: Path
    ) -> Iterator[tuple[Path, list[Json]]]:
        known = its_schema.get("properties", {})
        others = its_schema.get("additionalProperties", {})
        for key, inner in value.items():
            yield from self.alternatives(inner, known.get(key, others or {}), (*path, key))
        for key in sorted(known.keys() - value.keys()):
            yield (*path, key), [self._sample(known[key])]
        if others is False:
            return
        for key in list(value)[-1:]:
            yield (*path, key), [_ABSENT]
            yield (*path, f"{key}x"), [value[key]]
        if not value:
            yield (*path, "forged"), [self._sample(others)]

    def _of_list(
        self, value: Json, its_schema: Json, path: Path
    ) -> Iterator[tuple[Path, list[Json]]]:
        fixed, items = its_schema.get("prefixItems"), its_schema.get("items", {})
        stride = max(len(value) // self.rows, 1) if self.rows else 1
        for index, item in list(enumerate(value))[::stride]:
            yield from self.alternatives(
                item, fixed[index] if fixed else items, (*path, index)
            )
        if fixed:
            return
        others = [[*value, self._sample(items)]]
        if value:
            others += [value[:-1], value[1:], [*value, deepcopy(value[0])]]
        yield path, others

    def _other_scalars(self, value: Json, its_schema: Json) -> Iterator[Json]:
        options = [
            self._resolved(option)
            for option in its_schema.get("anyOf") or its_schema.get("oneOf") or [its_schema]
        ]
        words = [word for option in options for word in option.get("enum", ())]
        if words:
            yield from (word for word in words if word != value)
        elif isinstance(value, bool):
            yield not value
        elif isinstance(value, int):
            yield from {value + 1, 2 * value, max(value - 1, 0)} - {value}
        elif isinstance(value, float):
            yield from {value / 2 + 0.25, 2 * value, value + 1} - {value}
        elif isinstance(value, str):
            is_digest = len(value) == 64 and set(value) <= set("0123456789abcdef")
            yield "0" * 64 if is_digest else f"{value}x"
            if value.isdecimal():
                yield str(2 * int(value) + 1)
        if value is None:
            yield from map(self._sample, (o for o in options if o.get("type") != "null"))
        elif any(option.get("type") == "null" for option in options):
            yield None

    def _sample(self, its_schema: Json) -> Json:
        """Return a small value that a schema allows."""
        its_schema = self._resolved(its_schema)
        if "const" in its_schema:
            return its_schema["const"]
        if "enum" in its_schema:
            return its_schema["enum"][-1]
        for option in its_schema.get("anyOf", ()):
            if option.get("type") != "null":
                return self._sample(option)
        kind = its_schema.get("type")
        if kind == "object":
            known = its_schema.get("properties", {})
            return {key: self._sample(known[key]) for key in its_schema.get("required", ())}
        if kind == "array":
            items = its_schema.get("prefixItems") or [its_schema.get("items", {})]
            return [self._sample(item) for item in items]
        if kind in ("integer", "number"):
            return max(64, its_schema.get("minimum", 0)) if kind == "integer" else 0.5
        return True if kind == "boolean" else "forged"

    def _resolved(self, its_schema: Json) -> Json:
        while "$ref" in its_schema:
            its_schema = self.root["$defs"][its_schema["$ref"].rpartition("/")[2]]
        return its_schema
