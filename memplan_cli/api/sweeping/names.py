"""Names of dims and inputs that bind the models of a sweep: each by those that it has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.selection import is_one_of, nearest
from memplan_cli.errors import MemplanError, SettingsError
from memplan_cli.onnx_io.interface import known_dims, value_names

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.settings.settings import Settings


def dims_of(
    model: Path, config: Path | None, overrides: Mapping[str, object]
) -> frozenset[str] | None:
    """Return the names that a model can be bound by; None where it cannot be read."""
    from memplan_cli.api.files.model_file import read_model
    from memplan_cli.settings.sources import load_settings

    try:
        settings = load_settings(model, config, overrides)
        return known_dims(read_model(model).model, settings.shapes.values())
    except Exception:  # noqa: BLE001 - its row says why, as of whatever else goes wrong there
        return None


def inputs_of(
    model: Path, config: Path | None, overrides: Mapping[str, object]
) -> tuple[frozenset[str] | None, tuple[str, ...]]:
    """Return the names of a model's values, and the inputs given that it has not.

    There are none where it cannot be read: its row says why.
    """
    from memplan_cli.api.files.model_file import read_model
    from memplan_cli.settings.sources import load_settings

    try:
        proto = read_model(model).model
        settings = load_settings(model, config, overrides)
        return value_names(proto), with_own_inputs(proto, settings)[1]
    except MemplanError:
        return None, ()


def reject_unknown_inputs(
    seen: Sequence[tuple[frozenset[str] | None, Sequence[str]]],
) -> None:
    """Reject an input given that none of the models has, of what `inputs_of` says of each.

    Raises:
        SettingsError: naming the nearest that one of them has.
    """
    left = dict.fromkeys(name for _, own in seen for name in own)
    nowhere = [name for name in left if all(name in own for _, own in seen)]
    reject_unknown("input", nowhere, [there for there, _ in seen])


def reject_unknown(
    kind: str, asked: Collection[str], names: Collection[frozenset[str] | None]
) -> None:
    """Reject a dim or an input that none of the models has.

    Raises:
        SettingsError: naming the nearest that one of them has.
    """
    if None in names:
        return
    known = frozenset().union(*(one or () for one in names))
    for name in asked:
        if name not in known:
            article = "an" if kind[0] in "aeiou" else "a"
            raise SettingsError(
                f"no model has {article} {kind} called {name!r}", hint=nearest(name, known)
            )


def with_own_inputs(model: ModelProto, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Return settings that give a model what it has of inputs and shapes, and what it has not."""
    inputs, values = settings.inputs, value_names(model)
    left = [name for name in settings.shapes if not is_one_of(name, values)]
    if inputs.given:
        from memplan_cli.onnx_io.runs.given_inputs import not_taken

        left += not_taken(inputs, model)
    own = {name: value for name, value in inputs.values.items() if name not in left}
    shapes = {name: shape for name, shape in settings.shapes.items() if name not in left}
    mine = replace(inputs, values=own, others="leave")
    return replace(settings, shapes=shapes, inputs=mine), tuple(dict.fromkeys(left))
