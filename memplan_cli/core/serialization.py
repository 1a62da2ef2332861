"""Type checks of values from outside against the types that their dataclasses declare."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def misfit(value: object, kind: Any) -> str:  # noqa: ANN401 - a type as the typing module has it
    """Return what in a value is not of its declared type, with its place; empty if all is.

    Numbers have to be finite, and a flag is no number.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return ""
    if origin in (Union, UnionType):
        return "" if not all(misfit(value, arg) for arg in args) else _odd(value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _misfit_of_fields(value, kind)
    if origin is tuple:
        return _misfit_of_tuple(value, args)
    if origin is Mapping:
        return _misfit_of_table(value, args)
    return "" if _is_plain(value, kind) else _odd(value)


def _misfit_of_fields(value: object, kind: type) -> str:
    if not isinstance(value, kind):
        return _odd(value)
    hints = _hints(kind)
    for item in fields(kind):
        if found := misfit(getattr(value, item.name), hints[item.name]):
            return f"{item.name}: {found}"
    return ""


def _misfit_of_tuple(value: object, args: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple):
        return _odd(value)
    kinds = args[:1] * len(value) if args[-1:] == (Ellipsis,) else args
    if len(kinds) != len(value):
        return _odd(value)
    return next(filter(None, map(misfit, value, kinds)), "")


def _misfit_of_table(value: object, args: tuple[Any, ...]) -> str:
    if not isinstance(value, Mapping):
        return _odd(value)
    for name, item in value.items():
        if found := misfit(name, args[0]) or misfit(item, args[1]):
            return f"{str(name)[:80]}: {found}"
    return ""


def _is_plain(value: object, kind: object) -> bool:
    if kind in (None, NoneType):
        return value is None
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(kind, type) and isinstance(value, kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Mapping": Mapping})


def _odd(value: object) -> str:
    return f"{str(value)[:80]!r} does not belong there"
