"""The ``--dim`` option with several values, or with one that is looked for."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from memplan_cli.cli.options.words import whole
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from memplan_cli.cli.common import Command

_OPEN = "=?"


def open_dims(command: Command) -> Command:
    """Take ``NAME=?`` out of ``--dim``; the command gets the names as ``unknown``.

    Raises:
        SettingsError: when it is called, with a word that has no name or a dim said twice.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        unknown = [text.removesuffix(_OPEN) for text in dims if text.endswith(_OPEN)]
        fixed = tuple(text for text in dims if not text.endswith(_OPEN))
        if "" in unknown:
            raise SettingsError("fit looks for a dim: name it with --dim NAME=?")
        for text in fixed:
            if text.rpartition("=")[0] in unknown:
                raise SettingsError(f"--dim gives {text.rpartition('=')[0]!r} twice")
        names = tuple(dict.fromkeys(unknown))
        return command(*args, dims=fixed, unknown=names, **options)

    return run  # type: ignore[return-value]


def several_dims(command: Command) -> Command:
    """Let ``--dim`` have several values; the command gets those as ``profiles``.

    Raises:
        SettingsError: when it is called, with a dim said twice or a value that is none.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        found = {text: _profiles((text,)) for text in dims if "," in text.rpartition("=")[2]}
        fixed = [text for text in dims if text not in found]
        several: dict[str, tuple[int, ...]] = {}
        for name, values in (item for one in found.values() for item in one.items()):
            if len(values) == 1:
                fixed.append(f"{name}={values[0]}")
            elif name in several:
                raise SettingsError(f"--dim gives {name!r} twice")
            else:
                several[name] = values
        for text in fixed:
            if text.rpartition("=")[0] in several:
                raise SettingsError(f"--dim gives {text.rpartition('=')[0]!r} twice")
        return command(*args, dims=tuple(fixed), profiles=several, **options)

    for option in vars(run).get("__click_params__", ()):
        if option.name == "dims":
            option.metavar = "NAME=N,.."
            option.help = "Set a symbolic dimension; several values: one plan for all."
    return run  # type: ignore[return-value]


def profile_dims(command: Command) -> Command:
    """Take all of ``--dim``, several values each; the command gets them as ``profiles``.

    Raises:
        SettingsError: as `several_dims`.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        return command(*args, dims=(), profiles=_profiles(dims), **options)

    return run  # type: ignore[return-value]


def _profiles(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, sign, numbers = text.rpartition("=")
        values = [v for v in map(whole, map(str.strip, numbers.split(","))) if v is not None]
        complete = len(values) == len(numbers.split(","))
        if not sign or not name or not complete or min(values) < 0:
            raise SettingsError(f"--dim takes NAME=N or NAME=N,N,.. here, not {text!r}")
        if name in found:
            raise SettingsError(f"--dim gives {name!r} twice")
        found[name] = tuple(dict.fromkeys(values))
    return found
