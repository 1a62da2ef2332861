"""Keywords of Python functions that have the names of command-line options.

``memplan gate --max-memory 1GiB`` is ``memplan.gate(model, max_memory="1GiB")``: a keyword may have the long
name of the command's option, with underscores.
"""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from memplan_cli.core.check import Check
from memplan_cli.errors import SettingsError
from memplan_cli.settings.fields import READERS
from memplan_cli.settings.keys import MODEL_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

P = ParamSpec("P")
T = TypeVar("T")

PLAN_SETTINGS = READERS.keys() - {"best_effort", "expose", "external_weights", "notes"}
"""Settings that decide a plan. The others are about the file that `optimize` writes."""

RUN_SETTINGS = ("dims", "run", "shapes")
"""Settings of the sizes of a run."""

_RENAMED = {
    "allocator": "allocators",
    "checkpoint": "checkpoints",
    "dim": "dims",
    "output": "out",
    "plan": "plan_file",
    "shape": "shapes",
    "time_limit": "seconds",
}
"""Option -> its name in Python, if the function has such a parameter or the settings have such a key."""

_CHECK_OPTIONS = ("provider", "runs", "rtol", "atol", "timeout")
"""Options of every command with a check, which become fields of the parameter ``check``."""


def accepts_option_names(
    *check_options: str,
    settings: Collection[str] = PLAN_SETTINGS,
    **flags: Mapping[str, object],
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that lets a function take the options of its command as keywords.

    Args:
        check_options: More options that become fields of the parameter ``check``.
        settings: The settings that have an effect; others are refused.
        flags: For each option that is on or off, the keywords that it stands for if it is on. Several
            options may stand for ``extras``, or for fields of ``check``; they are joined.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        declared = signature(function)
        parameters = declared.parameters

        def arguments_of(keyword: str, value: object) -> Mapping[str, object]:
            """Return the arguments that a keyword stands for, by the first rule that applies."""
            if keyword in parameters:
                return {keyword: value}
            if keyword in flags:
                return flags[keyword] if value else {}
            if "check" in parameters and keyword in (*_CHECK_OPTIONS, *check_options):
                return {"check": {keyword: value}}
            if "rules" in parameters and keyword in MODEL_RULES:
                return {"rules": {keyword: value}}
            name = _RENAMED.get(keyword, keyword)
            return {name if name in parameters or name in READERS else keyword: value}

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            own: dict[str, Any] = dict(declared.bind_partial(*args).arguments)
            for keyword, value in keywords.items():
                for name, argument in arguments_of(keyword, value).items():
                    _add(own, name, argument)
            unused = setting_without_effect(own, (*settings, *parameters))
            if unused:
                where = f"in memplan.{function.__name__}"
                raise SettingsError(f"{unused} has no effect {where}", hint="remove it")
            if isinstance(own.get("check"), dict):
                own["check"] = _check(own["check"], own.get("provider"))
            return function(**own)  # type: ignore[call-arg]

        return call

    return decorate


def setting_without_effect(keywords: Mapping[str, object], effective: Collection[str]) -> str:
    """Return the first setting in some keywords that is not in ``effective``; empty if there is none."""
    for name, value in keywords.items():
        if name in READERS and name not in effective and value is not None:
            return name
    return ""


def _add(keywords: dict[str, Any], name: str, value: object) -> None:
    """Add a keyword, joined with ``extras`` or the fields of a record that are in the keywords already.

    Raises:
        SettingsError: the keyword has another value already, and neither is ``auto``.
    """
    earlier = keywords.get(name)
    if name == "extras" and earlier:
        value = (*earlier, *cast("Iterable[object]", value))
    elif name in ("check", "rules") and isinstance(earlier, dict) and isinstance(value, dict):
        value = {**earlier, **value}
    elif name in keywords and value == "auto":
        value = earlier
    elif name in keywords and earlier != "auto":
        raise SettingsError(f"{name} is given twice: by itself, and by the name of an option")
    keywords[name] = value


def _check(values: Mapping[str, Any], provider: str | None) -> Check | None:
    """Return a check with some fields; None if ``validate`` is ``none``.

    ``provider`` is a parameter of the function itself, where it has one.

    Raises:
        SettingsError: ``validate`` leaves out the measuring that another option needs.
    """
    depth = values.get("validate", "full")
    own = {name: value for name, value in values.items() if name != "validate"}
    if depth == "none":
        if own:
            raise SettingsError(
                "with validate='none', the other options of the check have no effect",
                hint="remove them",
            )
        return None
    if depth == "outputs" and own.keys() & {"idle", "search"}:
        raise SettingsError("tune and idle need validate='full'", hint="remove validate")
    return Check(**{"depth": depth, **({"provider": provider} if provider else {}), **own})
