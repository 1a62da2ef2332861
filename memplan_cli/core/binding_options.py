"""The options that bind a model's free dims, as a shell takes them.

What tells a user to bind something has these words: with the names, ranks and fixed dims of
the model at hand, to be copied whole.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Dim, Origin
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from memplan_cli.core.program import Program

LOOK_AT_A_RUN = "--run"

_LEADING, _IMAGE_SIDE, _LENGTH = 1, 64, 8
_IMAGE_RANK = 4
"""What a dim is offered as where nobody knows better: by its place."""


class InputShape(NamedTuple):
    """An input that a caller feeds, and its shape as far as the model says it."""

    name: str
    shape: tuple[Dim, ...]


def input_shapes(program: Program) -> tuple[InputShape, ...]:
    """Return the inputs of a program that have a dim without a number; of known rank."""
    found = (program.vars[identity] for identity in program.body.inputs)
    return tuple(
        InputShape(var.name or str(var.id), var.shape)
        for var in found
        if var.origin is Origin.INPUT
        and var.shape is not None
        and not all(isinstance(dim, int) for dim in var.shape)
    )


def usual_numbers(inputs: Iterable[InputShape]) -> dict[str, int]:
    """Return a number for each symbol of inputs, by the first place where it stands alone."""
    found: dict[str, int] = {}
    for _, shape in inputs:
        for place, dim in enumerate(shape):
            for name in sorted(symbols_of(dim)):
                found.setdefault(name, _usual(place, len(shape)))
    return found


def _usual(place: int, rank: int) -> int:
    if place == 0:
        return _LEADING
    return _IMAGE_SIDE if rank >= _IMAGE_RANK and place > 1 else _LENGTH


def binding_options(
    inputs: Iterable[InputShape], numbers: Mapping[str, int] | None = None
) -> str:
    """Return the options that give every free dim of inputs a number; empty where none is.

    A dim that the model names is bound by its name, which binds it everywhere. An input
    with a dim that it does not name gets its whole shape.

    Args:
        inputs: those with free dims.
        numbers: what is known of symbols, as a run has them; the others get the usual ones.
    """
    free = tuple(inputs)
    known = {**usual_numbers(free), **(numbers or {})}
    shaped = [each for each in free if not _is_named(each)]
    by_shape = {name for each in shaped for dim in each.shape for name in symbols_of(dim)}
    by_name = dict.fromkeys(
        name for each in free for dim in each.shape for name in sorted(symbols_of(dim))
    )
    words = (
        *(dim_option(name, known[name]) for name in by_name if name not in by_shape),
        *(shape_option(each, known) for each in shaped),
    )
    return " ".join(words)


def sizing_options(
    inputs: Iterable[InputShape],
    units: Iterable[str],
    numbers: Mapping[str, int] | None = None,
) -> str:
    """Return the options that make numbers of sizes: units are what these are made of.

    Where the inputs' dims leave a symbol free, data decides it: a run has to be looked at,
    which ``--no-run`` had ruled out.
    """
    free = tuple(inputs)
    words = binding_options(free, numbers)
    bound = usual_numbers(free).keys()
    decided = any(symbols_of(unit) - bound for unit in units if unit != "1")
    return f"{words} {LOOK_AT_A_RUN}".strip() if decided else words


def dim_option(name: str, number: int) -> str:
    """Return ``--dim NAME=N``."""
    return f"--dim {quote(f'{name}={number}')}"


def bounds_options(names: Iterable[str]) -> str:
    """Return ``--bounds NAME=A..B`` of each name, as a shell takes it."""
    return " ".join(f"--bounds {quote(f'{name}=A..B')}" for name in names)


def shape_option(wanted: InputShape, numbers: Mapping[str, int]) -> str:
    """Return ``--shape NAME=D,D`` of an input, with a number for each dim."""
    dims = ",".join(map(str, _numbers(wanted.shape, numbers)))
    return f"--shape {quote(f'{wanted.name}={dims}')}"


def _numbers(shape: tuple[Dim, ...], numbers: Mapping[str, int]) -> Iterator[int]:
    for place, dim in enumerate(shape):
        bound = bind_dim(dim, numbers)
        yield bound if isinstance(bound, int) else _usual(place, len(shape))


def _is_named(each: InputShape) -> bool:
    """Whether each free dim has a name that the model itself gives it."""
    made_up = {f"{each.name}_dim{place}" for place in range(len(each.shape))}
    names = {name for dim in each.shape for name in symbols_of(dim)}
    return None not in each.shape and not names & made_up
