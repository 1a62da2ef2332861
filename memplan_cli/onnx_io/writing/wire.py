"""Pieces of the ONNX format as bytes, for what is written by the hundred thousand.

To add a metadata entry through the protobuf library makes an object and sets two fields of
it; the same entry as bytes, merged into its message, takes a third of the time. A field of
strings or messages is its tag, the length of its content and the content
(protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

_DELIMITED = 2
"""The wire type of strings and messages."""

_KEY, _VALUE = 1, 2
"""The fields of a StringStringEntryProto."""

_SHORT = 256
"""Bytes of a content below which what stands before it is made beforehand."""


def varint(number: int) -> bytes:
    """Return a whole number as groups of seven bits, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def head(field: int, length: int) -> bytes:
    """Return what stands before a string or message of that many bytes."""
    return varint(field << 3 | _DELIMITED) + varint(length)


class Field:
    """A field that holds a string or a message, by its number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._heads = [head(number, length) for length in range(_SHORT)]

    def __call__(self, content: bytes) -> bytes:
        """Return the field with that content."""
        length = len(content)
        if length < _SHORT:
            return self._heads[length] + content
        return head(self._number, length) + content


class Entries:
    """Metadata entries of one key.

    Args:
        field: The number that the metadata has as a field of its message.
        key: What each entry is called.
    """

    def __init__(self, field: int, key: str) -> None:
        self._field = Field(field)
        self._key = Field(_KEY)(key.encode())
        self._value = Field(_VALUE)
        self._heads = [self._head(length) for length in range(_SHORT)]

    def _head(self, length: int) -> bytes:
        """Return what stands before a value of that many bytes."""
        zeros = bytes(length)
        return self._field(self._key + self._value(zeros)).removesuffix(zeros)

    def number(self, value: int) -> bytes:
        """Return the entry with a number, which is always short."""
        text = b"%d" % value
        return self._heads[len(text)] + text

    def __call__(self, value: object) -> bytes:
        """Return the entry with that value, in words."""
        text = str(value).encode()
        head = self._heads[len(text)] if len(text) < _SHORT else self._head(len(text))
        return head + text
