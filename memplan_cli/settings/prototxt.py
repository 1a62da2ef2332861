"""Parser of the ``mem_param`` block of a Caffe prototxt, with the place of each value.

The file may hold a whole net. All other fields are skipped by a tokenizer that knows strings,
comments and nested braces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan_cli.settings.values import Entry, Place, Value, invalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TOKEN = re.compile(
    r"""
      (?P<space>[\s,;]+|\#[^\n]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    | (?P<open>[{<])
    | (?P<close>[}>])
    | (?P<colon>:)
    | (?P<list>[\[\]])
    | (?P<word>[^\s,;\#"'{}<>:\[\]]+)
    """,
    re.VERBOSE,
)

_WORDS: Mapping[str, bool] = {"true": True, "t": True, "false": False, "f": False}
_REPEATED = frozenset({"exclude_blob"})


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: Place


def parse_prototxt(text: str, source: str) -> Value:
    """Return a table with the ``mem_param`` block of a prototxt, as the same YAML would give it.

    Raises:
        SettingsError: there is no such block, or a brace or a quote is not closed.
    """
    tokens = _tokens(text, source)
    blocks: list[Entry] = []
    depth = 0
    for token in tokens:
        depth += {"open": 1, "close": -1}.get(token.kind, 0)
        if depth < 0:
            raise invalid(token.at, f"{token.text!r} closes nothing")
        if token.kind == "word" and token.text == "mem_param":
            if depth:
                raise invalid(
                    token.at, "mem_param belongs to the net, not inside another message"
                )
            # Reads to the end of the block, so that its braces do not change the depth.
            blocks.append(Entry("mem_param", token.at, _block(tokens, token)))
    if depth:
        raise invalid(Place(source), "a brace is never closed")
    if not blocks:
        hint = "write mem_param { optimize_train: true } at the top level of the net"
        raise invalid(Place(source), "no mem_param block", hint)
    return Value(tuple(blocks), Place(source, 1, 1), kind="table")


def _block(tokens: Iterator[_Token], name: _Token) -> Value:
    """Read ``{ field: value ... }`` after the name of a message, to the closing brace."""
    token = _next(tokens, after=name)
    if token.kind == "colon":
        token = _next(tokens, after=token)
    if token.kind != "open":
        raise invalid(token.at, f"expected {{ after {name.text}, not {token.text!r}")
    entries: list[Entry] = []
    while (token := _next(tokens, after=token)).kind != "close":
        entries.extend(_field(tokens, token))
    return Value(_join_repeated_fields(entries), name.at, kind="table")


def _field(tokens: Iterator[_Token], key: _Token) -> Iterator[Entry]:
    """Yield a field, one entry for each of its values: ``name: "a"`` or ``name: ["a", "b"]``."""
    if key.kind != "word":
        raise invalid(key.at, f"expected a field name, not {key.text!r}")
    colon = _next(tokens, after=key)
    if colon.kind != "colon":
        raise invalid(colon.at, f"expected : after {key.text!r}, not {colon.text!r}")
    token = _next(tokens, after=colon)
    # A list of values for another field is refused by `_value`.
    if token.text != "[" or key.text not in _REPEATED:
        yield Entry(key.text, key.at, _value(token, key))
        return
    # Commas between the values are no tokens: `_tokens` skips them like spaces.
    while (token := _next(tokens, after=token)).text != "]":
        yield Entry(key.text, key.at, _value(token, key))


def _value(token: _Token, key: _Token) -> Value:
    """Return the value of a field: a quoted name, true or false, or an integer."""
    if token.kind == "string":
        return Value(_unquoted(token.text, token.at), token.at)
    if token.kind == "word":
        word = token.text
        if word.lower() in _WORDS:
            return Value(_WORDS[word.lower()], token.at)
        # No field has integers. They are read so that the field's reader says what it expects.
        if re.fullmatch(r"-?[0-9]{1,18}", word):
            return Value(int(word), token.at)
        raise invalid(token.at, f"expected true, false or a quoted name, not {word!r}")
    raise invalid(token.at, f"expected a value for {key.text!r}, not {token.text!r}")


def _join_repeated_fields(entries: list[Entry]) -> tuple[Entry, ...]:
    """Return the fields with all values of a repeated field in one list.

    Other fields that occur twice stay as they are: reading the table refuses them.
    """
    once: list[Entry] = []
    lists: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.key in _REPEATED:
            lists.setdefault(entry.key, []).append(entry)
        else:
            once.append(entry)
    for key, repeated in lists.items():
        values = tuple(entry.value for entry in repeated)
        once.append(Entry(key, repeated[0].at, Value(values, repeated[0].at, kind="list")))
    return tuple(once)


def _unquoted(token: str, at: Place) -> str:
    """Return the text of a quoted token, with C escapes replaced."""
    from google.protobuf.text_encoding import CUnescape  # type: ignore[import-untyped]

    try:
        utf8 = CUnescape(token[1:-1])
    except ValueError as error:
        raise invalid(at, f"{token} has an escape that is none") from error
    try:
        return str(utf8, "utf-8")
    except UnicodeDecodeError as error:
        raise invalid(at, f"{token} is no UTF-8 text") from error


def _tokens(text: str, source: str) -> Iterator[_Token]:
    """Yield the tokens of a text with their places, without spaces and comments."""
    position, line, line_start = 0, 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        at = Place(source, line, position - line_start + 1)
        if match is None:
            raise invalid(at, "a quote is never closed")
        if match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match.group(), at)
        newlines = match.group().count("\n")
        if newlines:
            line += newlines
            line_start = position + match.group().rindex("\n") + 1
        position = match.end()


def _next(tokens: Iterator[_Token], after: _Token) -> _Token:
    """Return the next token, or raise that the file ends after ``after``."""
    token = next(tokens, None)
    if token is None:
        raise invalid(after.at, f"the file ends after {after.text!r}")
    return token
