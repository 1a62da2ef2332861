"""The binding of a model: all sizes and inputs that options, settings files and data give for it.

`bind` is applied once, to the settings of a call and the model that they are for. It returns bound
settings: ``dims`` has every known number, and ``inputs`` has what a run is fed. Planning and running
use bound settings alone. Four words are kept apart:

- bound settings: `Settings` after `bind`. Dims without a number in them are free dims.
- to bind all dims: to give the free dims assumed numbers as well (`bind_all_dims`).
- a binding: a `Binding`, the numbers of all dims and the input data, which is what a run needs.
- bounds: an interval of numbers for a dim; the plan holds for all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from memplan_cli.core.bindings import Binding, Feed
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.selection import is_one_of, nearest
from memplan_cli.errors import SettingsError
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.bindings import Feeds, Provenance
    from memplan_cli.core.program import Shape
    from memplan_cli.core.symbolic.bounds import DimRange


def bind(model: ModelProto, settings: Settings) -> Settings:
    """Read the inputs given for a model; return settings with the dims and shapes that follow from them.

    In the result, ``dims`` has a number for each dim of a given shape or input, and ``inputs.feeds`` has
    the shapes and data to run with. Settings that have ``inputs.feeds`` already are returned unchanged.

    Raises:
        SettingsError: an input is not one of the model's, or does not fit it; a dim is unknown; or
            two sources give different numbers.
    """
    from memplan_cli.onnx_io.interface import reject_unknown_dims

    # Checked in every call: settings may get bounds after they were bound.
    reject_unknown_dims(model, (*settings.dims, *settings.bounds), settings.shapes.values())
    _reject_unknown_values(model, settings.shapes)
    inputs = settings.inputs
    if inputs.feeds is not None:
        return settings
    # The steps below would return the same, but load NumPy: a fifth of the time of a small command.
    if not inputs.given and not settings.shapes:
        return replace(settings, inputs=replace(inputs, feeds={}))
    from memplan_cli.onnx_io.interface import fed_inputs
    from memplan_cli.onnx_io.runs.given_inputs import read_given

    data = read_given(inputs, model)
    input_names = [value.name for value in fed_inputs(model)]
    fixed_shapes = _shapes_in_numbers(settings.shapes, input_names)
    _reject_other_shapes(fixed_shapes, data)
    feeds = {**{name: Feed(shape) for name, shape in fixed_shapes.items()}, **data}
    # A single number fills an input of any shape, and a sequence has no shape of its own.
    data_shapes: dict[str, Shape] = {
        name: feed.shape
        for name, feed in data.items()
        if feed.shape is not None and feed.container == "tensor"
    }
    dims, provenance = _dims_and_provenance(model, settings, data_shapes)
    return replace(
        settings,
        dims=dims,
        shapes={**settings.shapes, **data_shapes},
        inputs=replace(inputs, feeds=feeds, provenance=provenance),
    )


def _reject_unknown_values(model: ModelProto, names: Collection[str]) -> None:
    """Reject a name that no tensor of the model has."""
    from memplan_cli.onnx_io.interface import value_names

    known = value_names(model) if names else frozenset()
    for name in names:
        if not is_one_of(name, known):
            inputs = ", ".join(repr(value.name) for value in model.graph.input[:3])
            raise SettingsError(
                f"a shape is given for {name!r}, which is not a value of the model",
                hint=nearest(name, known) or f"its inputs are {inputs}",
            )


def _shapes_in_numbers(
    shapes: Mapping[str, Shape], names: Collection[str]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the named inputs in which every dim is a number."""
    return {
        name: cast("tuple[int, ...]", shapes[name])
        for name in names
        if name in shapes and all(isinstance(dim, int) for dim in shapes[name])
    }


def _reject_other_shapes(shapes: Mapping[str, tuple[int, ...]], data: Feeds) -> None:
    """Reject an input whose ``--shape`` is not the shape of its data."""
    for name, shape in shapes.items():
        data_shape = data[name].shape if name in data else None
        if data_shape is not None and data_shape != shape:
            raise SettingsError(
                f"--shape sets {name!r} to {list(shape)}, and its data has the shape {list(data_shape)}"
            )


def _dims_and_provenance(
    model: ModelProto, settings: Settings, data_shapes: Mapping[str, Shape]
) -> tuple[Mapping[str, int], Mapping[str, Provenance]]:
    """Return the number of each bound dim, and the dims whose number only input data gives.

    Raises:
        SettingsError: a dim has two numbers, or a number and bounds.
    """
    from memplan_cli.onnx_io.shapes.light_model import sizes_of_dims

    # An option outranks data in the provenance; with different numbers both are an error.
    by_options = {**settings.dims, **sizes_of_dims(model, settings.shapes)}
    _reject_other_numbers(settings.dims, by_options)
    by_data = sizes_of_dims(model, data_shapes)
    dims = {**by_data, **by_options}
    _reject_other_numbers(by_data, dims)
    twice = next((name for name in dims if name in settings.bounds), None)
    if twice is not None:
        raise SettingsError(f"dim {twice!r} has both a number and bounds")
    return dims, dict.fromkeys((name for name in by_data if name not in by_options), "inputs")


def _reject_other_numbers(dims: Mapping[str, int], final: Mapping[str, int]) -> None:
    """Reject a dim that has another number in ``final``, which has all names of ``dims``."""
    for name, value in dims.items():
        if final[name] != value:
            raise SettingsError(f"dim {name!r} is given as both {final[name]} and {value}")


def sizes_and_inputs_only(settings: Settings) -> Settings:
    """Return settings with only dims, shapes, inputs, and whether runs are allowed.

    The other settings have their defaults: they decide plans, and runs do not depend on them.
    """
    return Settings(
        dims=settings.dims, shapes=settings.shapes, inputs=settings.inputs, run=settings.run
    )


def binding_of(settings: Settings) -> Binding:
    """Return what bound settings give a run: the numbers of dims, and the feeds.

    A dim without a number in ``settings.dims`` has its assumed number. A dim with bounds also has a second
    number, at which two models are compared too.
    """
    inputs = settings.inputs
    dims = {**(inputs.assumed or {}), **settings.dims}
    # `bind_assumed` moves assumed numbers into ``settings.dims``, with the provenance "assumed".
    assumed = frozenset(
        name
        for name in dims
        if name not in settings.dims or inputs.provenance.get(name) == "assumed"
    )
    second_numbers = {
        name: number_other_than(dims[name], limits)
        for name, limits in settings.bounds.items()
        if name in dims
    }
    return Binding(dims, inputs.feeds or {}, assumed, second_numbers=second_numbers)


def number_other_than(number: int, limits: DimRange) -> int:
    """Return the lowest other number within limits, but not 0; ``number`` itself if there is none.

    At 0 tensors are empty, and a comparison of two models shows little.
    """
    # At most two of the three lowest numbers are refused: 0 and ``number``.
    return next((value for value in limits.values[:3] if value not in (0, number)), number)


def dims_of_run(settings: Settings) -> Mapping[str, BoundDim]:
    """Return the number of each dim in a run with bound settings, with its source for the report."""
    inputs = settings.inputs
    assumed = {
        # A number that was assumed for a dim with bounds is one of those within its bounds.
        name: BoundDim(value, "bounds" if name in settings.bounds else "assumed")
        for name, value in (inputs.assumed or {}).items()
    }
    bound = {
        name: BoundDim(value, inputs.provenance.get(name, "given"))
        for name, value in settings.dims.items()
    }
    return {**assumed, **bound}


def assumption_notes(settings: Settings) -> tuple[str, ...]:
    """Return the note that states the assumed dims of bound settings; empty if there are none."""
    from memplan_cli.reporting.hints import assumed_lines

    binding = binding_of(settings)
    assumed = sorted(binding.assumed - settings.bounds.keys())
    return tuple(assumed_lines({name: binding.dims[name] for name in assumed}))


def require_runs(settings: Settings, what: str) -> None:
    """Raise a SettingsError if settings forbid runs; ``what`` names the option or command that needs runs."""
    if not settings.run:
        raise SettingsError(
            f"{what} runs the model, and --no-run forbids it", hint="remove one of them"
        )
