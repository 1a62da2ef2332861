"""Selection of tensors and free dims by name or glob, with hints for misspelled names."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import input_shapes
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from memplan_cli.core.program import Program, VarId


def select(program: Program, patterns: Sequence[str]) -> dict[VarId, str]:
    """Return every var that a pattern matches, with the first such pattern.

    A pattern is the name of a tensor in any block. If there is no such tensor, it is a glob over
    names; if that matches nothing, it is a glob over ``block/name``.

    Raises:
        SettingsError: a pattern matches no tensor. The hint has the nearest names.
    """
    if not patterns:
        return {}
    by_name: dict[str, list[VarId]] = {}
    for var in program.vars.values():
        by_name.setdefault(var.name, []).append(var.id)
    selected: dict[VarId, str] = {}
    for pattern in patterns:
        matches = _matches(pattern, by_name, program.vars)
        if not matches:
            raise SettingsError(
                f"{pattern!r} matches no tensor of the model", hint=_hint(pattern, by_name)
            )
        for identity in matches:
            selected.setdefault(identity, pattern)
    return selected


def is_one_of(word: str, names: Container[str]) -> bool:
    """Return whether a text is one of some names, or ``block/name`` with one of them.

    Names of blocks and tensors may contain slashes, so the text is split at each of them.
    """
    slashes = (index for index, character in enumerate(word) if character == "/")
    return word in names or any(word[index + 1 :] in names for index in slashes)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the up to three known names most similar to ``name``, or an empty text."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(map(repr, close))}?" if close else ""


def _hint(pattern: str, names: Mapping[str, object]) -> str:
    """Return a hint with the names nearest to a pattern, or with examples if none is near."""
    near = nearest(pattern.strip("*?") or pattern, names)
    examples = ", ".join(map(repr, list(names)[:3]))
    return near or (
        f"its tensors have names like {examples}" if examples else "it has no tensors"
    )


def _matches(
    pattern: str, by_name: Mapping[str, Sequence[VarId]], vars_: Iterable[VarId]
) -> Sequence[VarId]:
    """Return the vars that a pattern matches; see `select`."""
    if pattern in by_name:
        return by_name[pattern]
    matches = [
        var for name, ids in by_name.items() if fnmatchcase(name, pattern) for var in ids
    ]
    return matches or [var for var in vars_ if fnmatchcase(var, pattern)]


def free_dims(program: Program, requested: Iterable[str]) -> list[str]:
    """Return the names of all free dims of a program, sorted.

    Args:
        program: the program.
        requested: names that must be among them.

    Raises:
        SettingsError: a requested name is not a free dim. The hint has the nearest names of dims of
            inputs, or all of these if none is near.
    """
    dims = {dim for var in program.vars.values() for dim in var.shape or ()}
    names = sorted({name for dim in dims for name in symbols_of(dim)})
    for name in requested:
        if name not in names:
            # Only dims of inputs are suggested: the others follow from them, or data decides them.
            input_dims = sorted(
                {dim for item in input_shapes(program) for dim in item.symbols}
            )
            examples = (
                f"free dims are {', '.join(map(repr, input_dims))}" if input_dims else ""
            )
            raise SettingsError(
                f"the model has no free dim {name!r}{'' if names else ': all its dims are fixed'}",
                hint=nearest(name, input_dims) or examples,
            )
    return names
