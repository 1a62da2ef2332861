"""One binding for a model: what its inputs, options and settings files say of sizes.

It is made once, from the settings that somebody gave and the model that they are for. What
comes back are settings again, in which ``dims`` names every number that is known and
``inputs`` has what a run is fed; whoever plans or runs goes by these alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan_cli.core.bindings import Binding, Feed
from memplan_cli.core.results.memory import BoundDim
from memplan_cli.core.selection import is_one_of, nearest
from memplan_cli.errors import SettingsError
from memplan_cli.settings.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from onnx import ModelProto  # noqa: TID251 - types only; onnx_io makes them

    from memplan_cli.core.bindings import Feeds, Provenance
    from memplan_cli.core.program import Shape


def bind(model: ModelProto, settings: Settings) -> Settings:
    """Return settings whose dims and inputs are those of a model; once is enough.

    Raises:
        SettingsError: an input is not what the model takes, a dim is none of its own, or two
            say different things.
    """
    from memplan_cli.onnx_io.interface import reject_unknown_dims

    # Profiles add bounds to settings that are bound already: these too name dims.
    bound = (*settings.dims, *settings.bounds)
    reject_unknown_dims(model, bound, settings.shapes.values())
    _reject_unknown_values(model, settings.shapes)
    inputs = settings.inputs
    if inputs.feeds is not None:
        return settings
    if not (inputs.given or settings.shapes):
        return replace(settings, inputs=replace(inputs, feeds={}))
    from memplan_cli.onnx_io.interface import fed_inputs
    from memplan_cli.onnx_io.runs.given_inputs import read_given

    feeds = read_given(inputs, model)
    names = [value.name for value in fed_inputs(model)]
    said = dict(_numbers(settings.shapes, names))
    _refuse_another(said, feeds)
    every = {**{name: Feed(shape) for name, shape in said.items()}, **feeds}
    by_data = dict(_shapes_of(feeds))
    dims, provenance = _dims(model, settings, by_data)
    return replace(
        settings,
        dims=dims,
        shapes={**settings.shapes, **by_data},
        inputs=replace(inputs, feeds=every, provenance=provenance),
    )


def _reject_unknown_values(model: ModelProto, words: Collection[str]) -> None:
    from memplan_cli.onnx_io.interface import value_names

    names = value_names(model) if words else frozenset()
    for word in words:
        if not is_one_of(word, names):
            raise SettingsError(
                f"a shape is given for {word!r}, which is no value of the model",
                hint=nearest(word, names),
            )


def binding_alone(settings: Settings) -> Settings:
    """Return what of settings says at which sizes and inputs a model is run."""
    return Settings(
        dims=settings.dims, shapes=settings.shapes, inputs=settings.inputs, run=settings.run
    )


def binding_of(settings: Settings) -> Binding:
    """Return the numbers and feeds of settings that are bound, what is assumed included."""
    inputs = settings.inputs
    free = {n: v for n, v in (inputs.assumed or {}).items() if n not in settings.dims}
    said = {name for name, source in inputs.provenance.items() if source == "assumed"}
    dims = {**free, **settings.dims}
    return Binding(dims, inputs.feeds or {}, frozenset(free.keys() | (said & dims.keys())))


def run_at(settings: Settings) -> Mapping[str, BoundDim]:
    """Return the number of each dim in the first run: what nobody said is assumed."""
    said, assumed = settings.inputs.provenance, settings.inputs.assumed or {}
    return {
        **{name: BoundDim(value, "assumed") for name, value in assumed.items()},
        **{n: BoundDim(v, said.get(n, "given")) for n, v in settings.dims.items()},
    }


def refuse_run(settings: Settings, what: str) -> None:
    """Refuse what has to run a model where no run is allowed; nothing is no reason.

    Raises:
        SettingsError: naming it.
    """
    if what and not settings.run:
        raise SettingsError(
            f"{what} runs the model, and --no-run leaves that out",
            hint="leave one of them out",
        )


def assumed_in(settings: Settings) -> tuple[str, ...]:
    """Return the line that says what was assumed of dims, if anything was."""
    from memplan_cli.reporting.hints import assumed_lines

    binding = binding_of(settings)
    return tuple(assumed_lines({name: binding.dims[name] for name in sorted(binding.assumed)}))


def _numbers(
    shapes: Mapping[str, Shape], names: list[str]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the shapes of inputs in which each dim is a number."""
    return [
        (name, tuple(dim for dim in shapes[name] if isinstance(dim, int)))
        for name in names
        if name in shapes and all(isinstance(dim, int) for dim in shapes[name])
    ]


def _shapes_of(feeds: Feeds) -> Iterator[tuple[str, Shape]]:
    """Yield the shapes of tensors that data has."""
    for name, feed in feeds.items():
        if feed.shape is not None and feed.container == "tensor":
            yield name, feed.shape


def _refuse_another(said: Mapping[str, tuple[int, ...]], feeds: Feeds) -> None:
    """Refuse a shape that is not that of the data.

    Raises:
        SettingsError: naming the input.
    """
    for name, shape in said.items():
        given = feeds[name].shape if name in feeds else None
        if given is not None and given != shape:
            raise SettingsError(
                f"--shape gives {name!r} as {list(shape)}, and its data is {list(given)}"
            )


def _dims(
    model: ModelProto, settings: Settings, by_data: Mapping[str, Shape]
) -> tuple[Mapping[str, int], Mapping[str, Provenance]]:
    """Return the numbers of dims, and which of them nobody but the data says.

    Raises:
        SettingsError: two numbers, or a number and bounds, are said of one dim.
    """
    from memplan_cli.onnx_io.shapes.light_model import dims_of_inputs

    given = {**settings.dims, **dims_of_inputs(model, settings.shapes)}
    _agree(settings.dims, given)
    found = dims_of_inputs(model, by_data)
    both = {**found, **given}
    _agree(found, both)
    bounds = {name: value for name, value in both.items() if name in settings.bounds}
    if bounds:
        raise SettingsError(f"dim {next(iter(bounds))!r} has both a number and bounds")
    return both, dict.fromkeys((name for name in found if name not in given), "inputs")


def _agree(one: Mapping[str, int], other: Mapping[str, int]) -> None:
    for name, value in one.items():
        if other[name] != value:
            raise SettingsError(f"dim {name!r} is given as both {other[name]} and {value}")
