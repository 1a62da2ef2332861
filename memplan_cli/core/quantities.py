"""Parsing and formatting of sizes such as ``512MiB`` and of percentages.

Inside memplan sizes are bytes as ints. ``k``, ``M`` and ``G`` without ``B`` or ``iB`` are refused,
because they may mean powers of 1000 or of 1024.
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
"""Unit in lower case -> its bytes."""

LARGEST = 2**63 - 1
"""The largest accepted size: it fits the integers of all file formats that memplan writes."""

_QUANTITY = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_BITS = re.compile(r"[KMGTP]i?b")
"""Units of bits. All in lower case, as in ``512 mib``, a unit is read as bytes."""

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%", re.ASCII)
_MAX_LENGTH = 40
"""The most characters of a size. Longer texts are refused, and shortened in messages."""


@dataclass(frozen=True, slots=True)
class Increase:
    """The allowed increase of a number.

    Attributes:
        share: as a share of the earlier number; None: ``size`` applies.
        size: in bytes.
    """

    share: Fraction | None = None
    size: int = 0

    def limit(self, earlier: int) -> int:
        """Return the largest allowed number if it was ``earlier`` before."""
        return earlier + (self.size if self.share is None else int(earlier * self.share))

    def __str__(self) -> str:
        if self.share is None:
            return format_size(self.size)
        return f"{float(self.share * 100):g}%"


def parse_size(text: str, *, needs_unit: bool = False) -> int:
    """Return the bytes of ``512MiB``, ``1.5 GB``, ``4096``; fractions are rounded down.

    Args:
        text: the size.
        needs_unit: whether a number without a unit is refused, unless it is 0.

    Raises:
        SettingsError: it is not a size, or its unit is missing, unknown or ambiguous.
    """
    match = _fullmatch(_QUANTITY, text)
    if match is None:
        raise SettingsError(
            f"{text[:_MAX_LENGTH]!r} is not a size", hint="write it like 512MiB or 1.5 GB"
        )
    number, unit = match.groups()
    if needs_unit and not unit and float(number.replace("_", "")):
        raise SettingsError(
            f"{text[:_MAX_LENGTH]!r} has no unit",
            hint=f"write {number}MiB, or {number}B for bytes",
        )
    if _BITS.fullmatch(unit):
        raise SettingsError(
            f"{text[:_MAX_LENGTH]!r} is a size in bits: {unit} has a lower-case b",
            hint=_unit_hint(number, unit[0]),
        )
    factor = UNITS.get(unit.lower())
    if factor is None:
        raise SettingsError(
            f"{text[:_MAX_LENGTH]!r} has no known unit", hint=_unit_hint(number, unit)
        )
    size = int(Fraction(number.replace("_", "")) * factor)
    if size > LARGEST:
        raise SettingsError(f"{text[:_MAX_LENGTH]!r} is too large")
    return size


def parse_increase(text: str) -> Increase:
    """Return the increase that ``2%`` or ``4MiB`` allows.

    Raises:
        SettingsError: it is neither a percentage nor a size.
    """
    match = _fullmatch(_PERCENT, text)
    if match is not None:
        return Increase(share=Fraction(match.group(1)) / 100)
    if _fullmatch(_QUANTITY, text) is None:
        raise SettingsError(
            f"{text[:_MAX_LENGTH]!r} is neither a percentage nor a size",
            hint="write it like 2%, 0.5% or 4MiB",
        )
    try:
        return Increase(size=parse_size(text, needs_unit=True))
    except SettingsError as error:
        number = text.strip()
        hint = f"write {number}%, or {number}MiB" if number[-1].isdecimal() else error.hint
        raise SettingsError(error.message, hint=hint) from error


def format_size(size: int) -> str:
    """Return a size with a unit: ``512 B``, ``1.50 MiB``."""
    if abs(size) < 1024:
        return f"{size} B"
    number, units = size / 1024, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    # From 1023.995 on, a number would be rounded to 1024.00: use the next unit.
    while abs(number) >= 1023.995 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.2f} {units[0]}"


def format_change(size: int) -> str:
    """Return a difference with its sign: ``+1.50 MiB``, ``-12 B``, ``0 B``."""
    return f"+{format_size(size)}" if size > 0 else format_size(size)


def format_share(part: int, whole: int) -> str:
    """Return ``part / whole`` in percent, such as ``12.5%``; ``-`` if ``whole`` is 0."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 node``, ``7 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _fullmatch(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the match of a whole text but its outer spaces, or None; None for a long text."""
    stripped = text.strip()
    return pattern.fullmatch(stripped) if len(stripped) <= _MAX_LENGTH else None


def _unit_hint(number: str, unit: str) -> str:
    """Return a hint for an unknown unit; for a bare prefix both units that it may mean."""
    if unit.lower() in _PREFIXES:
        prefix = unit.upper()
        return f"{number}{prefix}iB uses powers of 1024, {number}{prefix}B powers of 1000"
    return "units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of 1024)"
