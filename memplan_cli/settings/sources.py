"""Settings merged from all their sources: files, then options.

Lowest first: defaults, ``[tool.memplan]`` of the nearest pyproject.toml, the nearest
memplan.yaml (both looked for from the model's folder upwards), ``--config``, options.

- A key that a higher place sets replaces what lower places said, lists included.
- Tables (``dims``, ``shapes``) are merged: a higher place replaces single names.
- ``--exclude`` only ever adds to the exclusions of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from memplan_cli.core.bindings import Inputs
from memplan_cli.errors import SettingsError
from memplan_cli.settings.judge import as_value
from memplan_cli.settings.keys import names, read_table
from memplan_cli.settings.settings import MemParam, Settings
from memplan_cli.settings.written import Entry, Place, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LARGEST_FILE = 16 * 2**20
"""Bytes; a prototxt may be a whole net."""

_LARGEST_YAML = 2**18
"""Characters; a settings file has some hundred."""

FILE_NAMES = ("memplan.yaml", "memplan.yml")


@dataclass(frozen=True, slots=True)
class Partial:
    """What one place sets: dotted key -> meaning; the rest it leaves open."""

    values: Mapping[str, object] = field(default_factory=dict)
    source: str = ""


def read_yaml(text: str, source: str) -> Partial:
    """Return what a YAML text sets, strictly.

    Raises:
        SettingsError: a key is unknown or repeated, a value has another type or range.
    """
    if len(text) > _LARGEST_YAML:
        raise SettingsError(f"{source}: more than {_LARGEST_YAML} characters are no settings")
    from memplan_cli.settings.yaml_text import parse_yaml

    return Partial(read_table(parse_yaml(text, source)), source)


def read_prototxt(text: str, source: str) -> Partial:
    """Return what the ``mem_param`` of a Caffe prototxt sets, strictly.

    Raises:
        SettingsError: there is no such block, or it has what it may not.
    """
    from memplan_cli.settings.prototxt import parse_prototxt

    return Partial(read_table(parse_prototxt(text, source)), source)


def read_pyproject(text: str, source: str) -> Partial:
    """Return what ``[tool.memplan]`` sets; nothing where there is no such table."""
    from memplan_cli.settings.toml_text import parse_pyproject

    return Partial(read_table(parse_pyproject(text, source)), source)


def read_config(path: Path) -> Partial:
    """Return what a settings file sets; its suffix says what it is written in.

    Raises:
        SettingsError: it cannot be read, or is not what a settings file may be.
    """
    text = _text_of(path)
    if path.suffix == ".toml":
        return read_pyproject(text, str(path))
    if path.suffix in (".prototxt", ".pbtxt"):
        return read_prototxt(text, str(path))
    return read_yaml(text, str(path))


_SINGULAR = {"checkpoints": "checkpoint", "dims": "dim", "shapes": "shape"}
"""Keys that hold several, and the options that give one."""


def read_overrides(overrides: Mapping[str, object]) -> Partial:
    """Return what options set, judged as files are; None means that one was not given.

    Keys are those of `Settings`, or dotted (``mem_param.optimize_train``).
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    excluded = given.pop("exclude", ())
    files: Any = given.pop("inputs", ())
    by_name: Any = given.pop("input", {})
    values = {}
    for key, value in given.items():
        at = Place(f"--{_SINGULAR.get(key, key.removeprefix('gate.').replace('_', '-'))}")
        values.update(read_table(_dotted(key, as_value(value, at))))
    if files or by_name:
        values["inputs"] = Inputs(tuple(map(str, files)), by_name)
    if excluded:
        values["exclude"] = names(as_value(excluded, Place("--exclude")))
    return Partial(values, "options")


def found_files(start: Path) -> tuple[Path, ...]:
    """Return the settings files that hold for a model, lowest first."""
    folder = (start if start.is_dir() else start.parent).absolute()
    upwards = (folder, *folder.parents)
    found = (
        next((path for at in upwards if (path := at / "pyproject.toml").is_file()), None),
        next(
            (path for at in upwards for name in FILE_NAMES if (path := at / name).is_file()),
            None,
        ),
    )
    return tuple(path for path in found if path is not None)


def layers(model: Path, config: Path | None) -> Iterator[Partial]:
    """Yield what each file sets, lowest first."""
    yield from (read_config(path) for path in found_files(model))
    if config is not None:
        yield read_config(config)


def load_settings(
    model: Path, config: Path | None, overrides: Mapping[str, object]
) -> Settings:
    """Return the settings for a model: its files, ``--config`` and options together.

    Raises:
        SettingsError: one of them is wrong; the message names file, line and column.
    """
    return merged((*layers(model, config), read_overrides(overrides)))


def merged(partials: Iterable[Partial]) -> Settings:
    """Return the defaults with each partial on top of those before it."""
    values: dict[str, Any] = {}
    for partial in partials:
        for key, value in partial.values.items():
            earlier = values.get(key)
            if isinstance(value, Mapping) and isinstance(earlier, Mapping):
                values[key] = {**earlier, **value}
            else:
                values[key] = value
    block = {
        key.removeprefix("mem_param."): value
        for key, value in values.items()
        if key.startswith("mem_param.")
    }
    known = {item.name for item in fields(Settings)}
    plain = {key: value for key, value in values.items() if key in known}
    return replace(Settings(mem_param=MemParam(**block)), **plain)


def _dotted(key: str, value: Value) -> Value:
    """Nest a value in the tables that its dotted key names."""
    for part in reversed(key.split(".")):
        value = Value((Entry(part, value.at, value),), value.at, kind="table")
    return value


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except FileNotFoundError as error:
        raise SettingsError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise SettingsError(f"{path} is a folder, not a settings file") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_FILE:
        raise SettingsError(f"{path} has more than {_LARGEST_FILE} bytes: no settings file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise SettingsError(f"{path}:{line}:{column}: not UTF-8 text") from error
