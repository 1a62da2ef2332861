"""Selection of tensors and free dims by name or glob."""

from __future__ import annotations

from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from memplan_cli.core.binding_options import input_shapes, usual_numbers
from memplan_cli.core.symbolic.dims import symbols_of
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from memplan_cli.core.program import Program, VarId


def select(program: Program, patterns: Sequence[str]) -> dict[VarId, str]:
    """Return every var that a pattern means, with the first pattern that does.

    A pattern is a tensor's name in any block, else a glob over names, else a glob over
    ``block/name``.

    Raises:
        SettingsError: a pattern matches no tensor of the model; the nearest names are said.
    """
    if not patterns:
        return {}
    by_name: dict[str, list[VarId]] = {}
    for var in program.vars.values():
        by_name.setdefault(var.name, []).append(var.id)
    found: dict[VarId, str] = {}
    for pattern in patterns:
        meant = _matches(pattern, by_name, program.vars)
        if not meant:
            raise SettingsError(
                f"{pattern!r} matches no tensor of the model", hint=_hint(pattern, by_name)
            )
        for identity in meant:
            found.setdefault(identity, pattern)
    return found


def is_one_of(word: str, names: Container[str]) -> bool:
    """Whether a word is one of some names, or that of a block and one of them below it.

    Names have slashes of their own, so that every one may be where the blocks end.
    """
    ends = (place for place, sign in enumerate(word) if sign == "/")
    return word in names or any(word[place + 1 :] in names for place in ends)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the known names that look most like ``name``, or nothing."""
    close = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"did you mean {', '.join(repr(c) for c in close)}?" if close else ""


def _hint(pattern: str, known: Mapping[str, object]) -> str:
    """Return the names nearest to a name or a glob, or how names look where none is near."""
    near = nearest(pattern.strip("*?") or pattern, known)
    some = ", ".join(map(repr, list(known)[:3]))
    return near or (f"its tensors have names like {some}" if some else "it has no tensors")


def _matches(
    pattern: str, by_name: Mapping[str, Sequence[VarId]], vars_: Iterable[VarId]
) -> Sequence[VarId]:
    if pattern in by_name:
        return by_name[pattern]
    found = [v for name, ids in by_name.items() if fnmatchcase(name, pattern) for v in ids]
    return found or [var for var in vars_ if fnmatchcase(var, pattern)]


def free_dims(program: Program, wanted: Iterable[str]) -> list[str]:
    """Return the names of a program's free dims, sorted.

    Raises:
        SettingsError: one that is wanted is none of them; the nearest name is said.
    """
    dims = {dim for var in program.vars.values() for dim in var.shape or ()}
    names = sorted({name for dim in dims for name in symbols_of(dim)})
    for name in wanted:
        if name not in names:
            can = sorted(usual_numbers(input_shapes(program)))
            free = f"free dims are {', '.join(map(repr, can))}" if can else ""
            raise SettingsError(
                f"the model has no free dim {name!r}{'' if names else ': all its dims are fixed'}",
                hint=nearest(name, can) or free,
            )
    return names
