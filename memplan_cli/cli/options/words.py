"""Parsers of option values such as ``NAME=N``; the settings judge what they say."""

from __future__ import annotations

import json
from typing import TypeVar

from memplan_cli.errors import SettingsError

Value = TypeVar("Value")

_LARGEST = 2**63 - 1
"""What a dim of a model can be."""


def parse_dims(texts: tuple[str, ...]) -> dict[str, int]:
    """Read ``NAME=N`` words.

    Raises:
        SettingsError: one has no ``=``, or no number from 0 on behind it, or is there twice.
    """
    found: dict[str, int] = {}
    for text in texts:
        name, sign, number = text.rpartition("=")
        value = whole(number) if sign and name else None
        if value is None or value < 0:
            raise SettingsError(f"--dim takes NAME=N with N from 0 on, not {text!r}")
        _put(found, name, value, "--dim")
    return found


def whole(text: str) -> int | None:
    """Return a whole number, None of any other text.

    Raises:
        SettingsError: no dim of a model can be so large.
    """
    digits = text.removeprefix("-")
    if not digits.isdecimal():
        return None
    # By its digits first: Python reads no more than 4,300 of them.
    if len(digits) > len(str(_LARGEST)) or int(digits) > _LARGEST:
        raise SettingsError(f"{text[:20]}... is more than any machine has")
    return int(text)


def parse_bounds(texts: tuple[str, ...]) -> dict[str, str]:
    """Split ``NAME=A..B`` words; the settings judge what stands behind the sign.

    Raises:
        SettingsError: one has no ``=``, or is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, interval = text.rpartition("=")
        if not sign or not name:
            raise SettingsError(f"--bounds takes NAME=A..B and not {text!r}")
        _put(found, name, interval, "--bounds")
    return found


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``INPUT=OUTPUT`` words.

    Raises:
        SettingsError: one side is missing, or an input is given away twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        given, sign, made = text.partition("=")
        if not (given and sign and made):
            raise SettingsError(f"--donate takes INPUT=OUTPUT, not {text!r}")
        _put(found, given, made, "--donate")
    return found


def parse_shapes(texts: tuple[str, ...]) -> dict[str, list[int | str]]:
    """Read ``NAME=D,D,..`` words; a dim may be a symbol.

    Raises:
        SettingsError: one has no ``=`` or an empty dim, or is there twice.
    """
    found: dict[str, list[int | str]] = {}
    for text in texts:
        name, sign, dims = text.rpartition("=")
        parts = [part.strip() for part in dims.split(",")] if dims.strip() else []
        if not sign or not name or not all(parts):
            raise SettingsError(f"--shape takes NAME=D,D,.. and not {text!r}")
        numbers = [whole(part) for part in parts]
        shape = [part if n is None else n for part, n in zip(parts, numbers, strict=True)]
        _put(found, name, shape, "--shape")
    return found


def parse_values(texts: tuple[str, ...]) -> dict[str, object]:
    """Read ``NAME=VALUE`` words: a number, ``true``, text, or a list with commas.

    Raises:
        SettingsError: one has no ``=``, or is there twice.
    """
    found: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name or not value:
            raise SettingsError(f"--input takes NAME=VALUE, not {text[:100]!r}")
        _put(found, name, _value(value), "--input")
    return found


def _value(text: str) -> object:
    """Return what a value says; a list that is nested stands in brackets."""
    try:
        return json.loads(text if text.startswith("[") or "," not in text else f"[{text}]")
    except (ValueError, RecursionError):
        parts = [part.strip() for part in text.split(",")]
        return parts if len(parts) > 1 else text


def _put(found: dict[str, Value], name: str, value: Value, option: str) -> None:
    """Keep what an option says about a name; of two words, none may be lost silently."""
    if name in found:
        raise SettingsError(f"{option} gives {name!r} twice")
    found[name] = value
