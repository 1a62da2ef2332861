"""Settings merged from files and options.

Sources from the lowest to the highest precedence: defaults, ``[tool.memplan]`` of the nearest
pyproject.toml, the nearest memplan.yaml (both searched from the model's folder upwards),
``--config``, options.

- A key of a higher source replaces the value of lower ones, lists included.
- Tables (``dims``, ``shapes``) are merged name by name.
- ``--exclude`` adds to the exclusions of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from memplan_cli.core.bindings import Inputs
from memplan_cli.errors import SettingsError, unreadable
from memplan_cli.settings.fields import READERS, as_value, file_syntax
from memplan_cli.settings.keys import known_key_hint, read_table, similar_key
from memplan_cli.settings.settings import MemParam, Settings
from memplan_cli.settings.values import Entry, Place, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_LARGEST_FILE = 16 * 2**20
"""Bytes. A prototxt may hold a whole net."""

_LARGEST_YAML = 2**18
"""Characters."""

FILE_NAMES = ("memplan.yaml", "memplan.yml")


@dataclass(frozen=True, slots=True)
class SettingsLayer:
    """The settings of one source: dotted key -> converted value."""

    values: Mapping[str, object] = field(default_factory=dict)
    source: str = ""


def read_yaml(text: str, source: str) -> SettingsLayer:
    """Return the settings in a YAML text.

    Raises:
        SettingsError: a key is unknown or repeated, a value has another type or range.
    """
    if len(text) > _LARGEST_YAML:
        raise SettingsError(
            f"{source}: more than {_LARGEST_YAML} characters, too many for settings"
        )
    from memplan_cli.settings.yaml_text import parse_yaml

    return SettingsLayer(read_table(parse_yaml(text, source)), source)


def read_prototxt(text: str, source: str) -> SettingsLayer:
    """Return the settings in the ``mem_param`` block of a Caffe prototxt.

    Raises:
        SettingsError: there is no such block, or a field is unknown or not allowed.
    """
    from memplan_cli.settings.prototxt import parse_prototxt

    return SettingsLayer(read_table(parse_prototxt(text, source)), source)


def read_pyproject(text: str, source: str) -> SettingsLayer:
    """Return the settings in ``[tool.memplan]`` of a pyproject.toml; none without this table."""
    from memplan_cli.settings.toml_text import parse_pyproject

    return SettingsLayer(read_table(parse_pyproject(text, source)), source)


def read_config(path: Path) -> SettingsLayer:
    """Return the settings in a file: TOML, prototxt or YAML by its suffix.

    Raises:
        SettingsError: the file cannot be read, or holds anything but valid settings.
    """
    text = _text_of(path)
    if path.suffix == ".toml":
        return read_pyproject(text, str(path))
    if path.suffix in (".prototxt", ".pbtxt"):
        return read_prototxt(text, str(path))
    return read_yaml(text, str(path))


_SINGULAR = {"checkpoints": "checkpoint", "dims": "dim", "shapes": "shape"}
"""Keys that hold several values, and the option that sets one of them."""


def option_name(key: str) -> str:
    """Return the name of a setting's option, for errors. Options of the gate do not have its prefix."""
    return f"--{_SINGULAR.get(key, key.removeprefix('gate.').replace('_', '-'))}"


def _refuse_unknown_key(key: str, value: object) -> None:
    """Raise a SettingsError if a key names neither a setting nor a table of settings.

    The hint names a similar option, or all options. But for a key with a whole number that is similar to no
    option, such as ``batch=8``, the hint is how to set a dim of that name.
    """
    if any(known == key or known.startswith(f"{key}.") for known in READERS):
        return
    is_number = isinstance(value, int) and not isinstance(value, bool)
    options = [name for name in READERS if "." not in name]
    options.append("inputs")  # has no reader: `read_overrides` removes this key before
    if not is_number:
        # A rule of ``gate`` is an option without this prefix. Sizes mostly have a unit: a plain number is rather a dim.
        options += [n.removeprefix("gate.") for n in READERS if n.startswith("gate.")]
    if is_number and similar_key(key, options) is None:
        hint = f"a dim of the model is set by dim={{{key!r}: {value}}}"
    else:
        hint = known_key_hint(key, options)
    raise SettingsError(f"there is no option {key!r}", hint=hint)


def read_overrides(overrides: Mapping[str, object]) -> SettingsLayer:
    """Return the settings of options and keywords, validated like those of files.

    Args:
        overrides: Fields of `Settings`, or dotted keys (``mem_param.optimize_train``), and their
            values, written as in a file or as `Settings` takes them; None means that the option
            was not given. ``inputs`` has files with input tensors, ``input`` the tensors by name:
            both become the setting ``inputs``.

    Raises:
        SettingsError: there is no such option, or a value has another type or range.
    """
    passed = {key: value for key, value in overrides.items() if value is not None}
    # A file cannot have these, so `read_table` has no readers for them.
    files: Any = passed.pop("inputs", ())
    by_name: Any = passed.pop("input", {})
    values: dict[str, object] = {}
    for key, value in passed.items():
        _refuse_unknown_key(key, value)
        written = as_value(file_syntax(key, value), Place(option_name(key)))
        converted = read_table(_dotted(key, written), READERS)
        if isinstance(value, float):
            # The float that was passed is kept. `file_syntax` has written it as a percentage, and the
            # float read back from that may differ in its last bit.
            converted = dict.fromkeys(converted, value)
        values.update(converted)
    if files or by_name:
        values["inputs"] = Inputs(tuple(map(str, files)), by_name)
    return SettingsLayer(values, "options")


def discovered_files(model: Path) -> tuple[Path, ...]:
    """Return the settings files that apply to a model or a folder, lowest precedence first.

    They are the nearest ``pyproject.toml`` and the nearest of `FILE_NAMES`, in its folder or above.
    """
    folder = (model if model.is_dir() else model.parent).absolute()
    upwards = (folder, *folder.parents)
    nearest_files: list[Path] = []
    for file_names in (("pyproject.toml",), FILE_NAMES):
        candidates = (parent / name for parent in upwards for name in file_names)
        nearest = next((path for path in candidates if path.is_file()), None)
        if nearest is not None:
            nearest_files.append(nearest)
    return tuple(nearest_files)


def file_layers(model: Path, config: Path | None) -> Iterator[SettingsLayer]:
    """Yield the settings of each file that applies to a model, lowest precedence first."""
    yield from (read_config(path) for path in discovered_files(model))
    if config is not None:
        yield read_config(config)


def load_settings(
    model: Path, config: Path | None, overrides: Mapping[str, object]
) -> Settings:
    """Return the settings for a model, merged from its files, ``--config`` and options.

    Raises:
        SettingsError: one of them is not valid; the message names file, line and column.
    """
    return merge_layers((*file_layers(model, config), read_overrides(overrides)))


def merge_layers(layers: Iterable[SettingsLayer]) -> Settings:
    """Return the settings of all layers, lowest precedence first, on top of the defaults.

    Tables such as ``dims`` are merged by their keys; any other value replaces the value of an earlier layer. The
    values of ``mem_param.*`` keys become the field ``mem_param``.
    """
    values: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.values.items():
            earlier = values.get(key)
            if isinstance(value, Mapping) and isinstance(earlier, Mapping):
                values[key] = {**earlier, **value}
            else:
                values[key] = value
    mem_param = {
        key.removeprefix("mem_param."): value
        for key, value in values.items()
        if key.startswith("mem_param.")
    }
    # Keys of ``gate`` are left out. Unknown keys were refused when the layers were read.
    field_names = {item.name for item in fields(Settings)}
    own_fields = {key: value for key, value in values.items() if key in field_names}
    return Settings(**{"mem_param": MemParam(**mem_param), **own_fields})


def _dotted(key: str, value: Value) -> Value:
    """Return nested tables for a dotted key: ``a.b`` and a value give ``{a: {b: value}}``."""
    for part in reversed(key.split(".")):
        value = Value((Entry(part, value.at, value),), value.at, kind="table")
    return value


def _text_of(path: Path) -> str:
    """Return the UTF-8 text of a file of at most 16 MiB, or raise a `SettingsError`."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except IsADirectoryError as error:
        raise SettingsError(f"{path} is a folder, not a settings file") from error
    except OSError as error:
        raise unreadable(path, error, SettingsError) from None
    if len(data) > _LARGEST_FILE:
        raise SettingsError(
            f"{path} has more than {_LARGEST_FILE} bytes, too many for a settings file"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        raise SettingsError(f"{path}:{line}:{column}: not UTF-8 text") from error
