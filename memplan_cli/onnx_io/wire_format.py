"""Fields in protobuf's wire format, which `memplan_cli.loading.metadata` explains.

memplan encodes metadata entries itself because it writes hundreds of thousands of them: an entry as
bytes, merged into its message, takes a third of the time that the protobuf library needs.
"""

from __future__ import annotations

from functools import lru_cache

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


def encoded_entry(number: int, key: str, value: object) -> bytes:
    """Encode a metadata entry (``StringStringEntryProto``) with the value ``str(value)`` as field ``number``."""
    text = str(value).encode()
    return _entry_head(number, key, len(text)) + text


@lru_cache(1 << 12)
def _entry_head(number: int, key: str, length: int) -> bytes:
    """Return everything of a metadata entry that precedes a value of ``length`` bytes."""
    encoded_key, value_head = field(KEY, key.encode()), head(VALUE, length)
    content_length = len(encoded_key) + len(value_head) + length
    return head(number, content_length) + encoded_key + value_head
