"""Serialisation of a plan as the plan file's text, a line for each item of a list.

A large plan is a hundred thousand tensors. Written out here, field by field, each takes a
third of the time that a table of its fields takes with a general encoder, and the text
serves the plan's digest too. `to_json` of the plan says the same as data.
"""

from __future__ import annotations

import json
from itertools import islice
from json.encoder import encode_basestring as quoted
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memplan_cli.core.results.placements import BlockOrder, Placement, Release

_PART = 1000

_ENCODE = json.JSONEncoder(ensure_ascii=False).encode


def utf8(text: str) -> bytes:
    """Encode text; what is no text, which no model may hold, must not stop a digest."""
    return text.encode(errors="surrogatepass")


def small(value: object) -> str:
    """Return the text of a table, indented for a reader; of a list, an item a line."""
    if isinstance(value, list):
        return "".join(listed(map(_ENCODE, value)))
    return json.dumps(value, indent=1, ensure_ascii=False).replace("\n", "\n ")


def listed(items: Iterable[str]) -> Iterator[str]:
    """Yield the text of a list whose items are formatted already, part by part."""
    left, before, after = iter(items), "[\n  ", "[]"
    # All items at once, each a text of its own, take as much memory again.
    while part := ",\n  ".join(islice(left, _PART)):
        yield before
        yield part
        before, after = ",\n  ", "\n ]"
    yield after


def orders(blocks: Iterable[BlockOrder]) -> Iterator[str]:
    """Yield the text of each block's order."""
    for order in blocks:
        nodes = ", ".join(map(quoted, order.nodes))
        yield f'{{"block": {quoted(order.block)}, "nodes": [{nodes}]}}'


def placements(tensors: Sequence[Placement]) -> Iterator[str]:
    """Yield the text of each tensor's placement."""
    kinds: dict[tuple[str, str, tuple[int | str, ...], int], str] = {}
    for (
        name, block, dtype, shape, size, arena, offset, slot, first, last, alias, pinned,
    ) in tensors:  # fmt: skip
        kind = kinds.get((block, dtype, shape, size))
        if kind is None:
            kind = kinds[block, dtype, shape, size] = (
                f'"block": {quoted(block)}, "dtype": {quoted(dtype)}, '
                f'"shape": {_ENCODE(shape)}, "bytes": {size}'
            )
        yield (
            f'{{"name": {quoted(name)}, {kind}, "arena": {arena}, "offset": {offset}, '
            f'"slot": {"null" if slot is None else slot}, "first": {first}, "last": {last}, '
            f'"alias_of": {"null" if alias is None else quoted(alias)}, '
            f'"pinned": {"null" if pinned is None else quoted(pinned)}}}'
        )


def release_lines(releases: Sequence[Release]) -> Iterator[str]:
    """Yield the text of what is released after each node."""
    for step, node, tensors in releases:
        names = ", ".join(map(quoted, tensors))
        yield f'{{"step": {step}, "node": {quoted(node)}, "tensors": [{names}]}}'
