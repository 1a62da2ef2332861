"""The keys of settings files, and the reader that validates and converts the value of each.

Every format (YAML, prototxt, TOML, options) is first parsed into a `Value`. The readers below
are the only code that validates values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from memplan_cli.core.quantities import parse_increase, parse_size
from memplan_cli.core.symbolic.bounds import DimRange
from memplan_cli.errors import SettingsError
from memplan_cli.settings import choices
from memplan_cli.settings.values import (
    Value,
    already_set,
    describe,
    entries,
    invalid,
    items,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from memplan_cli.settings.values import Entry, Place

METRICS = (
    "planned",
    "live_peak",
    "resident",
    "foldable",
    "total",
    "naive",
    "weights",
    "inputs",
    "outputs",
    "order_bound",
    "original.live_peak",
    "original.planned",
    "original.resident",
    "levels.0",
    "levels.1",
    "levels.2",
    "predicted.first_run_peak",
    "predicted.steady_peak",
    "predicted.held_without_weights",
    "observed.first_run_peak",
    "observed.steady_peak",
    "observed.held",
    "observed.scratch",
    "observed.weights",
    "process.total",
    "process.load",
    "process.run",
    "process.private",
    "process.file",
    "process.kept",
)
"""The metrics that ``gate`` can check, with their names in a report.

``predicted.*`` and ``observed.*`` describe the written model. ``process.*`` is the observed value
if the plan has one, else the predicted one. ``process.total`` is the whole process at its highest,
``process.run`` the same without the interpreter, the imported runtime, inputs and kept outputs, which
cost ``process.kept``.
"""


Reader = Callable[[Value], object]
"""Validates a value and returns it converted, or raises a `SettingsError` that names its place."""

T = TypeVar("T")


def boolean(value: Value) -> bool:
    """Return the value of a true or false."""
    if not isinstance(value.content, bool):
        raise invalid(value.at, f"expected true or false, not {describe(value)}")
    return value.content


def text(value: Value) -> str:
    """Return a name: non-empty text."""
    content = value.content
    if not isinstance(content, str) or not content:
        hint = "quote it" if isinstance(content, int | float) else ""
        raise invalid(value.at, f"expected a name, not {describe(value)}", hint)
    return content


def names(value: Value) -> tuple[str, ...]:
    """Return the names or globs of a list, or of one name."""
    if value.kind == "list":
        return tuple(text(item) for item in items(value))
    return (text(value),)


def positive(value: Value) -> int:
    """Return an integer above zero."""
    return _whole(value, least=1)


def alignment(value: Value) -> int:
    """Return an integer that is a power of two."""
    number = positive(value)
    if number & (number - 1):
        raise invalid(value.at, f"expected a power of two, not {number}")
    return number


def seconds(value: Value) -> float:
    """Return a time in seconds above zero."""
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise invalid(value.at, f"expected seconds, not {describe(value)}")
    # Refuses infinity, NaN, and whole numbers that are too large for a float.
    if not 0 < content <= sys.float_info.max:
        raise invalid(value.at, f"expected seconds above zero, not {describe(value)}")
    return float(content)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A reader of values that are one of two or more names or numbers."""

    choices: tuple[str | int, ...]

    def __call__(self, value: Value) -> str | int:
        """Return the literal that was written, or raise with the nearest one as a hint."""
        # The types must be equal too: the value True is not the choice 1.
        for choice in self.choices:
            if type(value.content) is type(choice) and value.content == choice:
                return choice
        words = [str(choice) for choice in self.choices]
        hint = ""
        if isinstance(value.content, str):
            close = get_close_matches(value.content, words, n=1)
            hint = f"did you mean {close[0]}?" if close else ""
        expected = f"{', '.join(words[:-1])} or {words[-1]}"
        raise invalid(value.at, f"expected {expected}, not {describe(value)}", hint)


def dims(value: Value) -> Mapping[str, int]:
    """Return a table of symbolic dims and their values. 0 is allowed, for an empty cache."""
    return {entry.key: _whole(entry.value, least=0) for entry in entries(value)}


_DIM_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?::([0-9]+))?")
"""LOW..HIGH or LOW..HIGH:STEP."""


def bounds(value: Value) -> Mapping[str, DimRange]:
    """Return a table of symbolic dims and their ranges, written ``LOW..HIGH`` or ``LOW..HIGH:STEP``."""
    return {entry.key: _dim_range(entry.value) for entry in entries(value)}


def _dim_range(value: Value) -> DimRange:
    """Return a range written ``LOW..HIGH`` or ``LOW..HIGH:STEP``; its steps must end at HIGH."""
    match = _DIM_RANGE.fullmatch(str(value.content)) if value.kind == "scalar" else None
    if match is None:
        raise invalid(
            value.at,
            f"expected LOW..HIGH, as in 1..64, not {describe(value)}",
            "LOW..HIGH:STEP has a step, as in 32..640:32",
        )
    low, high, step = (int(number) for number in match.groups(default="1"))
    if not low <= high < 2**63:
        raise invalid(value.at, f"the range {low}..{high} is empty or exceeds 2^63 - 1")
    if step == 0:
        raise invalid(value.at, f"the step of {value.content} is 0")
    beyond = (high - low) % step
    if beyond:
        hint = f"the last of its numbers is {high - beyond}: {low}..{high - beyond}:{step}"
        raise invalid(value.at, f"the range {value.content} does not reach {high}", hint)
    return DimRange(low, high, step)


def shapes(value: Value) -> Mapping[str, tuple[int | str, ...]]:
    """Return a table of inputs and their shapes; a dim is a number or a symbol."""
    return {
        entry.key: tuple(_dim(item) for item in items(entry.value)) for entry in entries(value)
    }


def size(value: Value) -> int:
    """Return bytes, written as a number or as text like ``512MiB``."""
    if isinstance(value.content, str):
        return _quantity(value, parse_size, "a size")
    return _whole(value, least=0)


def size_with_unit(value: Value) -> int:
    """Return bytes, written with their unit: ``512MiB``. 0 needs none."""
    return _quantity(value, partial(parse_size, needs_unit=True), "a size such as 512MiB")


def budget(value: Value) -> int | float:
    """Return bytes above 0, or a share above 0 and up to 1 of the original's need, written ``60%``."""
    written = value.content
    if isinstance(written, str) and written.strip().endswith("%"):
        number = written.strip()[:-1].strip()
        # `float` alone would accept other texts too, such as 1e1 and nan.
        if not number.replace(".", "", 1).isdecimal() or not 0 < float(number) <= 100:
            raise invalid(value.at, f"expected a share up to 100%, not {describe(value)}")
        return float(number) / 100
    size_bytes = size(value)
    if not size_bytes:
        raise invalid(value.at, f"expected a size above zero, not {describe(value)}")
    return size_bytes


def pairs(value: Value) -> Mapping[str, str]:
    """Return a table from globs of inputs to globs of the outputs that replace them."""
    return {entry.key: text(entry.value) for entry in entries(value)}


def increase(value: Value) -> object:
    """Return an allowed increase, written ``2%`` or ``4MiB``."""
    return _quantity(value, parse_increase, "2% or a size")


def metrics(value: Value) -> tuple[str, ...]:
    """Return the metrics of a list, or of one metric."""
    read = OneOf(METRICS)
    listed = items(value) if value.kind == "list" else (value,)
    return tuple(cast("str", read(item)) for item in listed)


MODEL_RULES: Mapping[str, Reader] = {
    "metric": metrics,
    "max_memory": size_with_unit,
    "max_increase": increase,
    "ratchet": boolean,
    "allow_version_change": boolean,
}
"""The rules that ``gate`` may check for one model."""


def models(value: Value) -> Mapping[str, Mapping[str, object]]:
    """Return a table from a model's path or glob to its own rules."""
    return {
        entry.key: read_table(entry.value, MODEL_RULES, f"gate.models.{entry.key}.")
        for entry in entries(value)
    }


KEYS: Mapping[str, Reader] = {
    "mem_param.optimize_train": boolean,
    "mem_param.optimize_test": boolean,
    "mem_param.exclude_blob": names,
    "level": OneOf(get_args(choices.Level)),
    "phase": OneOf(get_args(choices.PhaseChoice)),
    "order": OneOf(get_args(choices.OrderChoice)),
    "fold_constants": boolean,
    "external_weights": OneOf(get_args(choices.ExternalWeightsChoice)),
    "notes": OneOf(get_args(choices.NotesChoice)),
    "recompute": OneOf(get_args(choices.RecomputeChoice)),
    "chunk": OneOf(get_args(choices.ChunkChoice)),
    "kv_cache": OneOf(get_args(choices.CacheChoice)),
    "capacity": positive,
    "checkpoints": names,
    "budget": budget,
    "best_effort": boolean,
    "donate": pairs,
    "skip_grads": boolean,
    "expose": boolean,
    "loss": text,
    "dims": dims,
    "bounds": bounds,
    "shapes": shapes,
    "alignment": alignment,
    "time_limit": seconds,
    "run": boolean,
    "allow_partial": boolean,
    "gate.baseline": text,
    **{f"gate.{key}": reader for key, reader in MODEL_RULES.items()},
    "gate.models": models,
}
"""Every key of a settings file, with the reader of its value."""


def read_table(
    table: Value, keys: Mapping[str, Reader] = KEYS, within: str = ""
) -> dict[str, object]:
    """Return the converted value of each key in a table and in the tables in it.

    Args:
        table: The table as it was written.
        keys: The allowed keys, dotted, and their readers. The result has the same keys.
        within: The dotted key of ``table`` itself, with its dot, for messages.

    Raises:
        SettingsError: a key is unknown or occurs twice, or a value is not allowed.
    """
    converted: dict[str, object] = {}
    first: dict[str, Place] = {}
    for key, entry in _dotted_entries(table, keys, within):
        if key in first:  # once as ``a.b: 1``, and once as ``b: 1`` in the table ``a``
            raise already_set(entry, first[key])
        first[key] = entry.at
        converted[key] = keys[key](entry.value)
    return converted


def _dotted_entries(
    table: Value, keys: Mapping[str, Reader], within: str, prefix: str = ""
) -> Iterator[tuple[str, Entry]]:
    """Yield the allowed ``keys`` in a table and in the tables in it, each with its entry.

    ``prefix`` is put before the keys of ``table``, such as ``gate.`` inside of the table ``gate``. ``within`` is
    put before keys in error messages only.
    """
    for entry in entries(table):
        key = prefix + entry.key
        if key in keys:
            yield key, entry
            continue
        is_table = any(known.startswith(f"{key}.") for known in keys)
        if not is_table:
            siblings = [
                known.removeprefix(prefix) for known in keys if known.startswith(prefix)
            ]
            raise invalid(
                entry.at, f"unknown key {within + key!r}", known_key_hint(entry.key, siblings)
            )
        if entry.value.content is not None:  # None: a table without keys, ``gate:`` in YAML
            yield from _dotted_entries(entry.value, keys, within, f"{key}.")


def known_key_hint(key: str, keys: Collection[str]) -> str:
    """Return a hint for an unknown key: the most similar known one, or all keys of the top level."""
    similar = similar_key(key, keys)
    if similar is not None:
        return f"did you mean {similar}?"
    return f"known keys: {', '.join(sorted({known.partition('.')[0] for known in keys}))}"


def similar_key(key: str, keys: Collection[str]) -> str | None:
    """Return the known key that is most similar to an unknown one; None if none is similar.

    The last part of a known key stands for that key: ``metrc`` is similar to ``gate.metric``.
    """
    # ``metric`` -> ``gate.metric``. Of several keys that end alike, the first one stays: it is assigned last.
    key_of_part = {known.rpartition(".")[2]: known for known in reversed(tuple(keys))}
    # A part of the top level, such as ``gate``, stands for itself, also if some key ends like it.
    for known in keys:
        top_level = known.partition(".")[0]
        key_of_part[top_level] = top_level
    for part in get_close_matches(key, key_of_part, n=1):
        return key_of_part[part]
    return next(iter(get_close_matches(key, keys, n=1)), None)


def _whole(value: Value, *, least: int) -> int:
    """Return an integer from ``least`` to 2^63 - 1."""
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int):
        raise invalid(value.at, f"expected a whole number, not {describe(value)}")
    if not least <= content < 2**63:
        raise invalid(
            value.at, f"expected a number from {least} to 2^63 - 1, not {describe(value)}"
        )
    return content


def _dim(value: Value) -> int | str:
    """Return a dim of a shape: a number from 0, or the name of a symbol."""
    if isinstance(value.content, str):
        return text(value)
    return _whole(value, least=0)


def _quantity(value: Value, parse: Callable[[str], T], expected: str) -> T:
    """Return a text or a whole number parsed by ``parse``, whose errors get the place of the value."""
    written = value.content
    if isinstance(written, bool) or not isinstance(written, int | str):
        raise invalid(value.at, f"expected {expected}, not {describe(value)}")
    try:
        return parse(str(written))
    except SettingsError as error:
        raise invalid(value.at, error.message, error.hint) from error
