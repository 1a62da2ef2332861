"""Fields in protobuf's wire format, which `memplan_cli.loading.metadata` explains.

memplan encodes metadata entries itself because it writes hundreds of thousands of them: an entry as
bytes, merged into its message, takes a third of the time that the protobuf library needs.
"""

from __future__ import annotations

from functools import cache, lru_cache

from memplan_cli.loading.metadata import DELIMITED, KEY, VALUE


def varint(number: int) -> bytes:
    """Encode a non-negative int: seven bits a byte, the lowest first."""
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


@lru_cache(1 << 12)
def head(number: int, length: int) -> bytes:
    """Return the tag and length that precede a string or message of ``length`` bytes in field ``number``."""
    return varint(number << 3 | DELIMITED) + varint(length)


def field(number: int, content: bytes) -> bytes:
    """Encode a string or message as field ``number``."""
    return head(number, len(content)) + content


class Entries:
    """Encodes metadata entries (``StringStringEntryProto``) that have one key.

    Args:
        number: The field number of the metadata in the message that holds it.
        key: The key of each entry.
    """

    def __init__(self, number: int, key: str) -> None:
        self._number = number
        self._key = field(KEY, key.encode())
        self._header = cache(self._header_of)

    def _header_of(self, length: int) -> bytes:
        """Return everything of an entry that precedes a value of ``length`` bytes."""
        value = head(VALUE, length)
        return head(self._number, len(self._key) + len(value) + length) + self._key + value

    def __call__(self, value: object) -> bytes:
        """Return an entry whose value is ``str(value)``."""
        text = str(value).encode()
        return self._header(len(text)) + text
