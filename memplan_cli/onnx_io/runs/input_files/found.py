"""What a file says of one input of a model, and what all of them may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

LARGEST = 1 << 32
"""Bytes of all inputs together: more is an archive made to fill a disk, or a mistake."""

Array = Any
"""An array of numpy's, of whatever type."""


@dataclass(frozen=True, slots=True)
class Found:
    """One input as a file has it.

    Attributes:
        name: of the graph input.
        where: for messages.
        shape: of the data; None: one value for all elements, or no data.
        dtype: numpy's name, ``str``, or empty: numbers as Python has them.
        load: the arrays, one for each tensor of a sequence; None: only the shape is given.
        is_sequence: whether there may be other than one.
        is_literal: whether numbers are as somebody typed them, and take the input's type.
    """

    name: str
    where: str
    shape: tuple[int, ...] | None
    dtype: str
    load: Callable[[], Sequence[Array]] | None
    is_sequence: bool = False
    is_literal: bool = False

    @property
    def bytes(self) -> int:
        """Return how many the data has by what is said of it, where its type is numpy's."""
        if self.load is None or self.shape is None or self.dtype in ("", "str"):
            return 0
        try:
            return count_of(self.shape) * np.dtype(self.dtype).itemsize
        except (TypeError, ValueError):
            return 0  # a type of another package, whose tensors are in memory, or none at all


def unreadable(where: str, error: Exception) -> SettingsError:
    """Return the one line that is said of a file which its reader gave up."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SettingsError(f"{where} cannot be read: {lines[0][:200]}")


def within_limit(where: str, size: int) -> int:
    """Return a number of bytes that inputs may have.

    Raises:
        SettingsError: it is more.
    """
    if size > LARGEST:
        raise SettingsError(f"{where}: {size} bytes are more than inputs may have ({LARGEST})")
    return size


def count_of(shape: Iterable[int]) -> int:
    """Return how many elements a shape has."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def bytes_of(path: Path, largest: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        SettingsError: it cannot be read, or has more than ``largest``.
    """
    try:
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > largest:
        raise SettingsError(f"{path} has more than {largest} bytes")
    return data
