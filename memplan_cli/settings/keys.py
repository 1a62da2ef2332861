"""Schema of settings files: one table of keys, with the reader that validates each value.

Every format (YAML, prototxt, TOML, options) is first read into values as they were written;
the readers below are the only code that validates them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar, cast, get_args

from memplan_cli.core.quantities import parse_increase, parse_size
from memplan_cli.errors import SettingsError
from memplan_cli.settings import choices
from memplan_cli.settings.written import Value, described, entries, items, wrong

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    "serving.bound",
    "process.load",
    "process.run",
    "process.private",
    "process.file",
)
"""What a gate can look at: every size of the report. Predicted and observed are those of the
written model; of a model, what is predicted takes no run. The process is the observed one
where a plan has it, else it is predicted."""


Reader = Callable[[Value], object]
"""Judges one value and returns what it means, or raises naming its place."""

T = TypeVar("T")


def boolean(value: Value) -> bool:
    """Read true or false."""
    if not isinstance(value.content, bool):
        raise wrong(value.at, f"expected true or false, not {described(value)}")
    return value.content


def text(value: Value) -> str:
    """Read a name."""
    content = value.content
    if not isinstance(content, str) or not content:
        hint = "quote it" if isinstance(content, int | float) else ""
        raise wrong(value.at, f"expected a name, not {described(value)}", hint)
    return content


def names(value: Value) -> tuple[str, ...]:
    """Read one name or glob, or a list of them."""
    if value.kind == "list":
        return tuple(text(item) for item in items(value))
    return (text(value),)


def positive(value: Value) -> int:
    """Read a whole number above zero."""
    return _whole(value, least=1)


def alignment(value: Value) -> int:
    """Read a power of two."""
    number = positive(value)
    if number & (number - 1):
        raise wrong(value.at, f"expected a power of two, not {number}")
    return number


def seconds(value: Value) -> float:
    """Read a time above zero."""
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int | float):
        raise wrong(value.at, f"expected seconds, not {described(value)}")
    if not (math.isfinite(content) and content > 0):
        raise wrong(value.at, f"expected seconds above zero, not {content}")
    return float(content)


@dataclass(frozen=True, slots=True)
class OneOf:
    """The reader of one of a few literals."""

    choices: tuple[object, ...]

    def __call__(self, value: Value) -> object:
        """Read one of the literals."""
        # True == 1: the type must be the same too.
        for choice in self.choices:
            if type(value.content) is type(choice) and value.content == choice:
                return choice
        words = [str(choice) for choice in self.choices]
        hint = ""
        if isinstance(value.content, str):
            close = get_close_matches(value.content, words, n=1)
            hint = f"did you mean {close[0]}?" if close else ""
        expected = f"{', '.join(words[:-1])} or {words[-1]}"
        raise wrong(value.at, f"expected {expected}, not {described(value)}", hint)


def dims(value: Value) -> Mapping[str, int]:
    """Read a table from symbol to number; 0 is one, as of a cache before its first step."""
    return {entry.key: _whole(entry.value, least=0) for entry in entries(value)}


def bounds(value: Value) -> Mapping[str, tuple[int, int]]:
    """Read a table from symbol to ``LOW..HIGH``."""
    return {entry.key: _interval(entry.value) for entry in entries(value)}


def _interval(value: Value) -> tuple[int, int]:
    low, dots, high = str(value.content).partition("..")
    if value.kind != "scalar" or not dots or not (low.isdecimal() and high.isdecimal()):
        raise wrong(value.at, f"expected LOW..HIGH, as in 1..64, not {described(value)}")
    if not int(low) <= int(high) < 2**63:
        raise wrong(value.at, f"{low}..{high} holds no number up to 2^63 - 1")
    return int(low), int(high)


def shapes(value: Value) -> Mapping[str, tuple[int | str, ...]]:
    """Read a table from input to its dims, each a number or a symbol."""
    return {
        entry.key: tuple(_dim(item) for item in items(entry.value)) for entry in entries(value)
    }


def size(value: Value) -> int:
    """Read bytes: a number, or text like ``512MiB``."""
    if isinstance(value.content, str):
        return _quantity(value, parse_size)
    return _whole(value, least=0)


def budget(value: Value) -> int | float:
    """Read a size, or a share of what is needed before: ``60%``."""
    written = value.content
    if isinstance(written, str) and written.strip().endswith("%"):
        number = written.strip()[:-1].strip()
        if not number.replace(".", "", 1).isdecimal() or not 0 < float(number) <= 100:
            raise wrong(value.at, f"expected a share up to 100%, not {described(value)}")
        return float(number) / 100
    return size(value)


def pairs(value: Value) -> Mapping[str, str]:
    """Read a table from the glob of inputs to that of the outputs that replace them."""
    return {entry.key: text(entry.value) for entry in entries(value)}


def increase(value: Value) -> object:
    """Read ``2%``, ``4MiB`` or a number of bytes."""
    written = value.content
    if isinstance(written, int) and not isinstance(written, bool):
        written = str(written)
    if not isinstance(written, str):
        raise wrong(value.at, f"expected 2% or a size, not {described(value)}")
    return _quantity(Value(written, value.at), parse_increase)


def metrics(value: Value) -> tuple[str, ...]:
    """Read one metric or a list of them."""
    read = OneOf(METRICS)
    listed = items(value) if value.kind == "list" else (value,)
    return tuple(cast("str", read(item)) for item in listed)


MODEL_RULES: Mapping[str, Reader] = {
    "metric": metrics,
    "max_memory": size,
    "max_increase": increase,
    "ratchet": boolean,
}
"""What a gate may ask of one model."""


def models(value: Value) -> Mapping[str, Mapping[str, object]]:
    """Read a table from a model's path or glob to its own rules."""
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
    "donate": pairs,
    "skip_grads": boolean,
    "expose": boolean,
    "loss": text,
    "dims": dims,
    "bounds": bounds,
    "shapes": shapes,
    "alignment": alignment,
    "time_limit": seconds,
    "profile_shapes": boolean,
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
    """Return ``key -> meaning`` for what a table holds; keys of tables in it are dotted.

    Args:
        table: What was written.
        keys: The keys there are.
        within: The names of the tables around this one, to show in messages.
    """
    found: dict[str, object] = {}
    for entry in entries(table):
        reader = keys.get(entry.key)
        if reader is not None:
            found[entry.key] = reader(entry.value)
            continue
        prefix = f"{entry.key}."
        inner = {
            key.removeprefix(prefix): r for key, r in keys.items() if key.startswith(prefix)
        }
        if not inner:
            raise wrong(
                entry.at, f"unknown key {within + entry.key!r}", nearest(entry.key, keys)
            )
        if entry.value.content is None:
            continue
        read = read_table(entry.value, inner, within + prefix)
        found.update((prefix + key, meaning) for key, meaning in read.items())
    return found


def nearest(key: str, keys: Mapping[str, object]) -> str:
    """Return a hint that names the known key a wrong one looks like."""
    last_parts = {known.rpartition(".")[2]: known for known in reversed(tuple(keys))}
    tables = {known.partition(".")[0]: known.partition(".")[0] for known in keys}
    candidates = {**last_parts, **tables}
    close = get_close_matches(key, candidates, n=1) or get_close_matches(key, keys, n=1)
    if close:
        return f"did you mean {candidates.get(close[0], close[0])}?"
    return f"known keys: {', '.join(sorted(tables))}"


def _whole(value: Value, *, least: int) -> int:
    content = value.content
    if isinstance(content, bool) or not isinstance(content, int):
        raise wrong(value.at, f"expected a whole number, not {described(value)}")
    if not least <= content < 2**63:
        raise wrong(
            value.at, f"expected a number from {least} to 2^63 - 1, not {described(value)}"
        )
    return content


def _dim(value: Value) -> int | str:
    if isinstance(value.content, str):
        return text(value)
    return _whole(value, least=0)


def _quantity(value: Value, parse: Callable[[str], T]) -> T:
    try:
        return parse(str(value.content))
    except SettingsError as error:
        raise wrong(value.at, str(error), error.hint) from error
