"""Command-line options that bind a model's free dims, as texts for hints and messages.

The options have the names, ranks and fixed dims of the model, so that a user can copy them:
``--dim batch=1 --shape images=1,3,64,64``.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from memplan_cli.core.program import Dim, Origin
from memplan_cli.core.symbolic.dims import bind_dim, symbols_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from memplan_cli.core.program import Program

RUN_OPTION = "--run"
"""The option with which memplan runs a model to learn sizes that depend on data."""

_SUGGESTED_BATCH, _SUGGESTED_IMAGE_SIDE, _SUGGESTED_LENGTH = 1, 64, 8
_MIN_IMAGE_RANK = 4
"""From this rank on, dims from the third on are suggested as sides of an image."""


class InputShape(NamedTuple):
    """A graph input and its shape, as the model declares it."""

    name: str
    shape: tuple[Dim, ...]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the dims, by axis, those of one dim sorted."""
        return tuple(symbol for dim in self.shape for symbol in sorted(symbols_of(dim)))


def input_shapes(program: Program) -> tuple[InputShape, ...]:
    """Return the graph inputs of known rank that have a free dim."""
    inputs = (program.vars[identity] for identity in program.body.inputs)
    return tuple(
        InputShape(var.name or str(var.id), var.shape)
        for var in inputs
        if var.origin is Origin.INPUT
        and var.shape is not None
        and not all(isinstance(dim, int) for dim in var.shape)
    )


def suggested_numbers(inputs: Iterable[InputShape]) -> dict[str, int]:
    """Return a plausible number for each symbol, by the first axis that it occurs in."""
    numbers: dict[str, int] = {}
    for item in inputs:
        for axis, dim in enumerate(item.shape):
            for symbol in sorted(symbols_of(dim)):
                numbers.setdefault(symbol, _suggested_number(axis, len(item.shape)))
    return numbers


def _suggested_number(axis: int, rank: int) -> int:
    """Return a plausible number for a free dim of an input of this rank: a batch, side or length."""
    if axis == 0:
        return _SUGGESTED_BATCH
    is_image_side = rank >= _MIN_IMAGE_RANK and axis > 1
    return _SUGGESTED_IMAGE_SIDE if is_image_side else _SUGGESTED_LENGTH


def binding_options(
    inputs: Iterable[InputShape], numbers: Mapping[str, int] | None = None
) -> str:
    """Return the options that bind every free dim of the inputs; empty if there are none.

    A symbol that the model names is bound by ``--dim``, which binds it everywhere. An input with a
    dim without a name gets its whole shape by ``--shape``. Symbols without a number in ``numbers``
    get suggested ones.
    """
    inputs = tuple(inputs)
    return _options(inputs, {**suggested_numbers(inputs), **(numbers or {})})


def binding_form(inputs: Iterable[InputShape]) -> str:
    """Return the options of `binding_options` with ``N`` in place of each number to fill in."""
    return _options(tuple(inputs), None)


def _options(inputs: tuple[InputShape, ...], numbers: Mapping[str, int] | None) -> str:
    """Return the options that bind every free dim; ``numbers`` are by symbol, None writes ``N`` for each."""
    # A number in a `--shape` binds the symbol of its dim everywhere, as `--dim` does.
    with_nameless_dims = [item for item in inputs if not _has_only_named_dims(item)]
    bound_by_shape = {symbol for item in with_nameless_dims for symbol in item.symbols}
    symbols = dict.fromkeys(symbol for item in inputs for symbol in item.symbols)
    options = [
        dim_option(name, "N" if numbers is None else numbers[name])
        for name in symbols
        if name not in bound_by_shape
    ]
    for name, shape in with_nameless_dims:
        dims = [_dim_text(dim, axis, len(shape), numbers) for axis, dim in enumerate(shape)]
        options.append(f"--shape {quote(f'{name}=' + ','.join(dims))}")
    return " ".join(options)


def _dim_text(dim: Dim, axis: int, rank: int, numbers: Mapping[str, int] | None) -> str:
    """Return a dim of a ``--shape`` for an input of this rank."""
    bound_dim = bind_dim(dim, numbers or {})
    if isinstance(bound_dim, int):
        return str(bound_dim)
    # An undeclared dim has no number, nor has a quotient by zero.
    return "N" if numbers is None else str(_suggested_number(axis, rank))


def sizing_options(inputs: Iterable[InputShape], units: Iterable[str]) -> str:
    """Return the options that turn symbolic sizes into numbers.

    ``units`` are those of the sizes, such as ``batch*seq``. If one has symbols that no input binds,
    these depend on data, and `RUN_OPTION` is added.
    """
    inputs = tuple(inputs)
    options = binding_options(inputs)
    bound_symbols = suggested_numbers(inputs).keys()  # all symbols of the inputs
    depends_on_data = any(symbols_of(unit) - bound_symbols for unit in units if unit != "1")
    return f"{options} {RUN_OPTION}".strip() if depends_on_data else options


def dim_option(name: str, value: int | str) -> str:
    """Return ``--dim NAME=VALUE``, quoted for a shell."""
    return f"--dim {quote(f'{name}={value}')}"


def bounds_options(names: Iterable[str]) -> str:
    """Return ``--bounds NAME=A..B`` for each name, quoted for a shell."""
    return " ".join(f"--bounds {quote(f'{name}=A..B')}" for name in names)


def _has_only_named_dims(input_shape: InputShape) -> bool:
    """Return whether the model itself names all free dims of an input.

    A dim without a name is None in the tensors of a sequence, which may differ in it. In any other input
    memplan calls it ``<input>_dim<axis>``.
    """
    name, shape = input_shape
    generated_names = {f"{name}_dim{axis}" for axis in range(len(shape))}
    return None not in shape and generated_names.isdisjoint(input_shape.symbols)
