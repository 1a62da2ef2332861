"""Keywords of Python functions that have the names of command-line options.

``memplan gate --max-memory 1GiB`` is ``memplan.gate(model, max_memory="1GiB")``: a keyword may have the long
name of the command's option, with underscores.
"""

from __future__ import annotations

from functools import wraps
from inspect import signature
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from memplan_cli.core.check import Check
from memplan_cli.errors import SettingsError
from memplan_cli.settings.fields import READERS
from memplan_cli.settings.keys import MODEL_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

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

    An option becomes a rule, a field of the check, the arguments that a flag stands for, a setting of the plan, or a
    parameter that has another name. Each pair of calls is the same::

        gate(model, max_memory="1GiB")       gate(model, rules={"max_memory": "1GiB"})
        validate(model, rtol=0.1)            validate(model, check={"rtol": 0.1})
        gate(model, update_baseline=True)    gate(model, mode="update-baseline")
        gate(model, dim={"n": 2})            gate(model, dims={"n": 2})

    Args:
        check_options: Options that become fields of the check, besides those of every check.
        settings: The names of the settings that the function uses; others are refused.
        flags: Each option that is on or off, with its arguments if it is on, as in
            ``update_baseline={"mode": "update-baseline"}``.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        """Return ``function`` with names of options as further keywords, such as ``rtol`` for a field of ``check``."""
        function_signature = signature(function)
        parameters = tuple(function_signature.parameters)
        names_with_effect = (*settings, *parameters)  # other names of settings are refused
        fields_of_check = (*_CHECK_OPTIONS, *check_options)

        def translated(*args: P.args, **keywords: P.kwargs) -> dict[str, Any]:
            """Return the arguments of a call by parameter; options become the arguments that they stand for.

            After ``rtol=0.1, runs=5``, the argument ``check`` is ``{"rtol": 0.1, "runs": 5}``.
            """
            arguments: dict[str, Any] = dict(function_signature.bind_partial(*args).arguments)
            for keyword, value in keywords.items():
                named = _arguments_of(keyword, value, parameters, fields_of_check, flags)
                for name, argument in named.items():
                    _join_argument(arguments, name, argument)
            return arguments

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            """Call the function with translated arguments, and a `Check` made of the fields of ``check``."""
            arguments = translated(*args, **keywords)
            # A setting without effect is refused here, an unknown keyword by the function itself.
            unused = setting_without_effect(arguments, names_with_effect)
            if unused:
                where = f"in memplan.{function.__name__}"
                raise SettingsError(f"{unused} has no effect {where}", hint="remove it")
            if isinstance(arguments.get("check"), dict):
                arguments["check"] = _check_from(arguments["check"], arguments.get("provider"))
            return function(**arguments)  # type: ignore[call-arg]

        return call

    return decorate


def _arguments_of(
    keyword: str,
    value: object,
    parameters: Collection[str],
    check_options: Collection[str],
    flags: Mapping[str, Mapping[str, object]],
) -> Mapping[str, object]:
    """Return the arguments that a keyword stands for, of a function with these parameters.

    - ``update_baseline=True``, one of ``flags``: ``mode="update-baseline"``
    - ``rtol=0.1``, one of ``check_options``: ``check={"rtol": 0.1}``
    - ``max_memory="1GiB"``, a rule: ``rules={"max_memory": "1GiB"}``
    - ``dim={"n": 2}``, which has another name in Python: ``dims={"n": 2}``
    - any other keyword: the argument of the same name, which the function refuses if it is unknown
    """
    if keyword in parameters:
        return {keyword: value}
    if keyword in flags:
        return flags[keyword] if value else {}
    if "check" in parameters and keyword in check_options:
        return {"check": {keyword: value}}
    if "rules" in parameters and keyword in MODEL_RULES:
        return {"rules": {keyword: value}}
    new_name = _RENAMED.get(keyword)
    # READERS has a key for each setting.
    if new_name is not None and (new_name in READERS or new_name in parameters):
        return {new_name: value}
    return {keyword: value}


def setting_without_effect(keywords: Mapping[str, object], effective: Collection[str]) -> str:
    """Return the first setting in some keywords that is not in ``effective``; empty if there is none."""
    for name, value in keywords.items():
        if name in READERS and name not in effective and value is not None:
            return name
    return ""


def _join_argument(arguments: dict[str, Any], name: str, value: Any) -> None:  # noqa: ANN401 - of any type
    """Add an argument to ``arguments``, those of a call, or join it with the one of this name there.

    ``extras`` are appended, fields of ``check`` and ``rules`` are merged, and ``auto`` gives way to a value.

    Raises:
        SettingsError: the argument is there already, and cannot be joined with the new one.
    """
    earlier = arguments.get(name)
    if name not in arguments or earlier == "auto":
        arguments[name] = value
    elif name == "extras":
        arguments[name] = (*(earlier or ()), *value)
    elif name in ("check", "rules") and isinstance(earlier, dict) and isinstance(value, dict):
        arguments[name] = {**earlier, **value}
    elif value != "auto":
        raise SettingsError(f"{name} is given twice: by itself, and by the name of an option")


def _check_from(options: Mapping[str, Any], provider: str | None) -> Check | None:
    """Return the check with these options as its fields; None if ``validate`` is ``none``.

    If the options have no provider, the check has ``provider``, or, if that is None, the default of `Check`.

    Raises:
        SettingsError: ``validate`` leaves out the measuring that another option needs.
    """
    depth = options.get("validate", "full")
    fields = {name: value for name, value in options.items() if name != "validate"}
    if depth == "none":
        if fields:
            raise SettingsError(
                "with validate='none', the other options of the check have no effect",
                hint="remove them",
            )
        return None
    # The field of the option ``tune`` is ``search``.
    if depth == "outputs" and fields.keys() & {"idle", "search"}:
        raise SettingsError("tune and idle need validate='full'", hint="remove validate")
    if provider:
        fields.setdefault("provider", provider)
    return Check(**{"depth": depth, **fields})
