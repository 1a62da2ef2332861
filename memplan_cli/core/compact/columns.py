"""Long tables of rows, stored column by column.

A plan has a row for each tensor and one for each node. As a tuple of its own a row takes
some 300 bytes, its numbers included; as a place in columns a fifth of that, and it is made
where somebody looks at it. A table is equal to a tuple of the same rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, overload

from memplan_cli.core.problem import Row, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

Item = TypeVar("Item")


class _Lazy(Sequence[Item]):
    """A sequence whose items are made one by one; equal to others of the same items."""

    def at(self, place: int) -> Item:
        """Return the item at a place, counted from the start."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> Item: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, place: int | slice) -> Item | tuple[Item, ...]:
        places = range(len(self))[place]
        return self.at(places) if isinstance(places, int) else tuple(map(self.at, places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (tuple, _Lazy)):
            return NotImplemented
        return len(self) == len(other) and all(map(_equal, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def _equal(one: object, other: object) -> bool:
    return one == other


class Columns(_Lazy[Row]):
    """Named tuples of one kind, by their fields, each a sequence as long as the table."""

    def __init__(self, kind: type[Row], *columns: Sequence[Any]) -> None:
        self._kind, self._columns = kind, columns
        self._names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Row]:
        return rows(self._kind, zip(*self._columns, strict=True))

    def cells(self, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
        """Yield some fields of each row, all of them where none is named."""
        wanted = [self._columns[self._names.index(name)] for name in names]
        return zip(*(wanted or self._columns), strict=True)

    def at(self, place: int) -> Row:
        """Return the row at a place, made for whoever asks."""
        return tuple.__new__(self._kind, [field[place] for field in self._columns])


def cells(table: Sequence[Any], *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield some fields of each row of a table, all of them by default, sooner than rows."""
    if isinstance(table, Columns):
        return table.cells(names)
    if not names:
        return iter(table)
    return zip(*[map(attrgetter(name), table) for name in names], strict=True)


class Same(_Lazy[Item]):
    """One item many times."""

    def __init__(self, item: Item, count: int) -> None:
        self._item, self._count = item, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return repeat(self._item, self._count)

    def at(self, place: int) -> Item:
        """Return the item, whatever the place."""
        del place
        return self._item


class Made(_Lazy[Item]):
    """What a function says of the items at each place of some sequences, equally long."""

    def __init__(self, function: Callable[..., Item], *parts: Sequence[Any]) -> None:
        self._function, self._parts = function, parts

    def __len__(self) -> int:
        return len(self._parts[0])

    def __iter__(self) -> Iterator[Item]:
        return map(self._function, *self._parts)

    def at(self, place: int) -> Item:
        """Return what the function says of one item."""
        return self._function(*[part[place] for part in self._parts])


class Groups(_Lazy[tuple[Item, ...]]):
    """Tuples of any lengths, kept one behind the other."""

    def __init__(self, groups: Iterable[Sequence[Item]]) -> None:
        self._items: list[Item] = []
        self._ends = array("q", [0])
        for group in groups:
            self._items += group
            self._ends.append(len(self._items))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[tuple[Item, ...]]:
        items = self._items
        return (tuple(items[start:end]) for start, end in pairwise(self._ends))

    def at(self, place: int) -> tuple[Item, ...]:
        """Return one group."""
        return tuple(self._items[self._ends[place] : self._ends[place + 1]])


def column(items: Sequence[Item]) -> Sequence[Item]:
    """Return the same items in less memory where they are all alike, or whole numbers."""
    if not items:
        return ()
    first = items[0]
    if items.count(first) == len(items):
        return Same(first, len(items))
    return items


def numbers(items: Iterable[int]) -> Sequence[int]:
    """Return whole numbers that fit into 64 bits with their sign, each in eight bytes."""
    return column(array("q", items))
