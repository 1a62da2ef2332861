"""Keywords of Python functions that have the names of command-line options.

``memplan gate --max-memory 1GiB`` is ``memplan.gate(model, max_memory="1GiB")``, with the same rule for every
command: a keyword may have the long name of the command's option, with underscores.
"""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from memplan_cli.core.check import Check
from memplan_cli.errors import SettingsError
from memplan_cli.settings.keys import MODEL_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

P = ParamSpec("P")
T = TypeVar("T")

_RENAMED = {
    "allocator": "allocators",
    "checkpoint": "checkpoints",
    "dim": "dims",
    "output": "out",
    "plan": "plan_file",
    "shape": "shapes",
}
"""Option -> the parameter or setting that it is in Python, if the names differ."""

_IN_RECORDS: Mapping[str, Collection[str]] = {
    "check": {"validate", *(field.name for field in fields(Check))},
    "rules": MODEL_RULES,
}
"""Parameter -> the keywords that become fields or keys of its value."""


def accepts_option_names(
    **flags: Mapping[str, object],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that lets a function take the options of its command as keywords.

    ``flags`` has, for each option that is on or off, the keywords that it stands for if it is on. Several
    options may stand for ``extras``, or for fields of ``check``; they are joined.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        declared = signature(function)
        parameters = declared.parameters

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            own: dict[str, Any] = dict(declared.bind_partial(*args).arguments)
            for name, value in keywords.items():
                record = next((key for key, names in _IN_RECORDS.items() if name in names), "")
                if name in parameters:
                    _add(own, name, value)
                elif name in flags:
                    for key, meant in flags[name].items() if value else ():
                        _add(own, key, meant)
                elif record in parameters:
                    _add(own, record, {name: value})
                else:
                    _add(own, _RENAMED.get(name, name), value)
            if isinstance(own.get("check"), dict):
                own["check"] = _check(own["check"], own.get("provider"))
            return function(**own)  # type: ignore[call-arg]

        return call

    return decorate


def _add(keywords: dict[str, Any], name: str, value: object) -> None:
    """Add a keyword, joined with ``extras`` or the fields of a record that are in the keywords already.

    Raises:
        SettingsError: the keyword has another value already.
    """
    earlier = keywords.get(name)
    if name == "extras" and earlier:
        value = (*earlier, *cast("Iterable[object]", value))
    elif name in _IN_RECORDS and isinstance(earlier, dict) and isinstance(value, dict):
        value = {**earlier, **value}
    elif name in keywords:
        raise SettingsError(f"{name} is given twice: by itself, and by the name of an option")
    keywords[name] = value


def _check(values: dict[str, Any], provider: str | None) -> Check | None:
    """Return a check with some fields; None if ``validate`` is ``none``.

    ``provider`` is a parameter of the function itself, where it has one.
    """
    depth = values.pop("validate", "full")
    if provider:
        values = {"provider": provider, **values}
    return None if depth == "none" else Check(**{"depth": depth, **values})
