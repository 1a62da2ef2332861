"""Parser of YAML with the place of each value. Tags and expanding aliases are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from memplan_cli.errors import SettingsError
from memplan_cli.settings.values import Entry, Place, Value, invalid

if TYPE_CHECKING:
    from yaml import Mark

_MOST_NODES = 10_000
"""Limit of the number of values, each use of an alias counted."""

_DEEPEST = 20
"""Limit of the nesting of tables and lists."""

_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = ("str", "timestamp", "value", "merge", "binary")


def parse_yaml(text: str, source: str) -> Value:
    """Return the table in a YAML text; an empty text is an empty table.

    Raises:
        SettingsError: the text is not valid YAML, or is more than plain data.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        raise _unreadable(text, source, error.position) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = _place(source, mark) if mark is not None else Place(source)
        raise invalid(at, f"not valid YAML: {error.problem or error.context}") from error
    except RecursionError as error:
        raise SettingsError(f"{source}: nested too deeply") from error
    if root is None:
        return Value((), Place(source, 1, 1), kind="table")
    value = _NodeReader(source).value(root, 0)
    if value.content is None:  # ``null``, or a document mark alone
        return Value((), value.at, kind="table")
    return value


@dataclass(slots=True)
class _NodeReader:
    """Converts YAML nodes to values; ``seen`` counts them, repeated aliases included."""

    source: str
    seen: int = 0

    def value(self, node: Node, depth: int) -> Value:
        """Return a node as a value. ``depth`` is the number of nodes around it."""
        at = _place(self.source, node.start_mark)
        self.seen += 1
        if self.seen > _MOST_NODES:
            raise invalid(
                at, f"more than {_MOST_NODES} values; do its aliases repeat each other?"
            )
        if depth > _DEEPEST:
            raise invalid(
                at, f"nested more than {_DEEPEST} deep; does an alias contain itself?"
            )
        tag = node.tag.removeprefix(_TAG)
        if isinstance(node, MappingNode) and tag == "map":
            pairs = (self._entry(key, value, depth) for key, value in node.value)
            return Value(tuple(pairs), at, kind="table")
        if isinstance(node, SequenceNode) and tag == "seq":
            items = (self.value(item, depth + 1) for item in node.value)
            return Value(tuple(items), at, kind="list")
        if isinstance(node, ScalarNode):
            return Value(_scalar(node, tag, at), at)
        raise invalid(at, f"the tag {node.tag!r} is not plain data")

    def _entry(self, key: Node, value: Node, depth: int) -> Entry:
        """Return a pair of nodes as an entry of a table at ``depth``."""
        at = _place(self.source, key.start_mark)
        if not isinstance(key, ScalarNode):
            raise invalid(at, "a key must be a name")
        # The text as written: `on: 8` is the dim "on", although YAML 1.1 reads `on` as true.
        return Entry(key.value, at, self.value(value, depth + 1))


def _scalar(node: ScalarNode, tag: str, at: Place) -> bool | float | str | None:
    """Return the content of a scalar; texts with a colon stay text."""
    if tag in _TEXT_TAGS:
        return str(node.value)
    if tag not in ("null", "bool", "int", "float"):
        raise invalid(at, f"the tag {node.tag!r} is not plain data")
    if ":" in node.value:
        # YAML 1.1 would read 1:30 as the number 90.
        return str(node.value)
    try:
        content: bool | float | None = yaml.constructor.SafeConstructor().construct_object(
            node
        )
    except (ValueError, KeyError, OverflowError):
        raise invalid(at, f"{node.value[:60]!r} is no value of its tag") from None
    return content


def _place(source: str, mark: Mark) -> Place:
    return Place(source, mark.line + 1, mark.column + 1)


def _unreadable(text: str, source: str, position: int) -> SettingsError:
    """Return the error for the character at a position, which YAML does not allow."""
    before = text[:position]
    line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
    message = f"the character {text[position]!r} may not be in YAML"
    return invalid(Place(source, line, column), message)
