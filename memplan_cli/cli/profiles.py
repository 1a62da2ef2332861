"""``--dim`` with more in it than one number: ``batch=1,8,32`` and ``batch=?``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from memplan_cli.errors import SettingsError

Command = TypeVar("Command", bound=Callable[..., Any])

_OPEN = "=?"


def open_dims(command: Command) -> Command:
    """Take ``NAME=?`` out of ``--dim``; the command gets the names as ``unknown``."""

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        unknown = [text.removesuffix(_OPEN) for text in dims if text.endswith(_OPEN)]
        fixed = tuple(text for text in dims if not text.endswith(_OPEN))
        if not unknown or "" in unknown:
            raise SettingsError("fit looks for a dim: name it with --dim NAME=?")
        names = tuple(dict.fromkeys(unknown))
        return command(*args, dims=fixed, unknown=names, **options)

    return run  # type: ignore[return-value]


def profile_dims(command: Command) -> Command:
    """Take all of ``--dim``, several values each; the command gets them as ``profiles``."""

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        return command(*args, dims=(), profiles=_profiles(dims), **options)

    return run  # type: ignore[return-value]


def _profiles(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sign, numbers = text.rpartition("=")
        words = [word.strip() for word in numbers.split(",")]
        if not sign or not name or not all(w.isdecimal() and int(w) > 0 for w in words):
            raise SettingsError(f"--dim takes NAME=N or NAME=N,N,.. here, not {text!r}")
        found[name] = tuple(dict.fromkeys(int(word) for word in words))
    return found
