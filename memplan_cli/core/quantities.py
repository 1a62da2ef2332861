"""Bytes and percentages as people write them: parsed when typed, formatted when shown.

Inside memplan bytes are ints; these functions are the edge. A bare ``k``, ``M`` or ``G``
is refused: one reader means 1000 by it and the next 1024.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIXES = "kmgtp"

UNITS: Mapping[str, int] = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES, start=1)},
}
"""Unit in lower case -> bytes."""

LARGEST = 2**63 - 1
"""What fits the integers of every format that memplan writes."""

_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)
_LONGEST = 40
"""Characters of a size that are looked at, and shown."""


@dataclass(frozen=True, slots=True)
class Increase:
    """How much more is allowed: a share of the earlier number, or a number of bytes."""

    share: Fraction | None = None
    size: int = 0

    def limit(self, earlier: int) -> int:
        """Return the largest number that is allowed after ``earlier``."""
        return earlier + (self.size if self.share is None else int(earlier * self.share))

    def __str__(self) -> str:
        if self.share is None:
            return format_size(self.size)
        return f"{float(self.share * 100):g}%"


def parse_size(text: str) -> int:
    """Return the bytes of ``512MiB``, ``1.5 GB``, ``4096``; fractions are rounded down.

    Raises:
        SettingsError: it is no size, or its unit can mean two things.
    """
    match = _QUANTITY.fullmatch(text.strip()[:_LONGEST])
    if match is None:
        raise SettingsError(
            f"{text[:_LONGEST]!r} is not a size", hint="write it like 512MiB or 1.5 GB"
        )
    number, unit = match.groups()
    factor = UNITS.get(unit.lower())
    if factor is None:
        raise SettingsError(
            f"{text[:_LONGEST]!r} has no known unit", hint=_unit_hint(number, unit)
        )
    size = int(Fraction(number.replace("_", "")) * factor)
    if size > LARGEST:
        raise SettingsError(f"{text[:_LONGEST]!r} is more than any machine has")
    return size


def parse_increase(text: str) -> Increase:
    """Return what ``2%`` or ``4MiB`` allows.

    Raises:
        SettingsError: it is neither a percentage nor a size.
    """
    match = _PERCENT.fullmatch(text.strip()[:_LONGEST])
    if match is not None:
        return Increase(share=Fraction(match.group(1)) / 100)
    try:
        return Increase(size=parse_size(text))
    except SettingsError as error:
        raise SettingsError(
            f"{text[:_LONGEST]!r} is neither a percentage nor a size",
            hint="write it like 2%, 0.5% or 4MiB",
        ) from error


def format_size(size: int) -> str:
    """Return a size as people read it: ``512 B``, ``1.50 MiB``."""
    if abs(size) < 1024:
        return f"{size} B"
    number, units = size / 1024, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    # 1023.995 would print as 1024.00, a number of the next unit.
    while abs(number) >= 1023.995 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.2f} {units[0]}"


def format_change(size: int) -> str:
    """Return a difference with its sign: ``+1.50 MiB``, ``-12 B``, ``0 B``."""
    return f"+{format_size(size)}" if size > 0 else format_size(size)


def format_share(part: int, whole: int) -> str:
    """Return ``part`` of ``whole`` in percent; a dash where there is no whole."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def counted(count: int, thing: str) -> str:
    """Return how many of a thing there are: ``1 node``, ``7 nodes``."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def _unit_hint(number: str, unit: str) -> str:
    if unit.lower() in _PREFIXES:
        prefix = unit.upper()
        return f"{number}{prefix}iB counts in 1024s, {number}{prefix}B in 1000s"
    return "units are B, kB, MB, GB, TB (1000s) and KiB, MiB, GiB, TiB (1024s)"
