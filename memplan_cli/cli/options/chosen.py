"""The options of the settings, which every command that plans takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from memplan_cli.api.request import Request
from memplan_cli.cli.common import (
    Command,
    dim_option,
    input_option,
    inputs_option,
    run_option,
    shape_option,
)
from memplan_cli.cli.options.words import (
    parse_bounds,
    parse_dims,
    parse_pairs,
    parse_shapes,
    parse_values,
)
from memplan_cli.core.bindings import Inputs
from memplan_cli.settings.choices import (
    CacheChoice,
    ChunkChoice,
    OrderChoice,
    PhaseChoice,
    RecomputeChoice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memplan_cli.cli.common import Output
    from memplan_cli.settings.settings import Settings

_SETTINGS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Settings file: YAML, TOML or prototxt.",
    ),
    click.option(
        "--level",
        type=int,
        help="Reuse level: 0 same shape, 1 same dtype, 2 one arena (default).",
    ),
    click.option(
        "--exclude", multiple=True, metavar="GLOB", help="Exclude tensors from memory reuse."
    ),
    click.option(
        "--expose",
        is_flag=True,
        default=None,
        help="Add excluded tensors to the graph outputs.",
    ),
    click.option(
        "--phase",
        type=click.Choice(get_args(PhaseChoice)),
        help="Override the detected phase.",
    ),
    click.option(
        "--skip-grads/--no-skip-grads", default=None, help="Exclude gradients from reuse."
    ),
    click.option(
        "--loss", metavar="NAME", help="Loss tensor, from which the backward part is found."
    ),
    dim_option,
    click.option(
        "--bounds",
        multiple=True,
        metavar="NAME=A..B",
        help="Range of a dimension; one plan holds for all of it.",
    ),
    shape_option,
    inputs_option,
    input_option,
    run_option,
    click.option(
        "--order",
        type=click.Choice(get_args(OrderChoice)),
        help="Keep the file's node order, or reorder to lower the peak.",
    ),
    click.option(
        "--fold-constants",
        is_flag=True,
        default=None,
        help="Replace expressions of initializers and constants by their values.",
    ),
    click.option(
        "--recompute",
        type=click.Choice(get_args(RecomputeChoice)),
        help="Recompute activations to lower the peak.",
    ),
    click.option(
        "--checkpoint",
        "checkpoints",
        multiple=True,
        metavar="NAME",
        help="Tensor to keep (--recompute checkpoints).",
    ),
    click.option(
        "--chunk",
        type=click.Choice(get_args(ChunkChoice)),
        help="Compute long activations in pieces to lower the peak.",
    ),
    click.option(
        "--kv-cache",
        type=click.Choice(get_args(CacheChoice)),
        help="Update decoder caches in buffers of --capacity entries.",
    ),
    click.option(
        "--capacity",
        type=int,
        metavar="N",
        help="Entries that a cache holds (--kv-cache in-place).",
    ),
    click.option(
        "--budget",
        metavar="SIZE|N%",
        help="Most bytes of intermediates and outputs, for --recompute auto or --chunk auto.",
    ),
    click.option(
        "--donate",
        multiple=True,
        metavar="INPUT=OUTPUT",
        help="Donate an input's buffer to an output.",
    ),
    click.option("--alignment", type=int, metavar="N", help="Alignment of offsets, in bytes."),
    click.option(
        "--time-limit", type=float, metavar="S", help="Time limit of the searches, in seconds."
    ),
    click.option(
        "--allow-partial",
        is_flag=True,
        default=None,
        help="Print totals although some sizes are unknown.",
    ),
)


_AS_GIVEN = (
    "level", "exclude", "expose", "phase", "skip_grads", "loss", "order", "fold_constants",
    "recompute",
    "checkpoints", "chunk", "kv_cache", "capacity", "budget", "alignment", "time_limit", "allow_partial",
    "run", "inputs",
)  # fmt: skip
"""Settings that the options give as they are: the settings themselves judge them."""

_READ: Mapping[str, Callable[[tuple[str, ...]], Mapping[str, object]]] = {
    "dims": parse_dims,
    "bounds": parse_bounds,
    "shapes": parse_shapes,
    "donate": parse_pairs,
}
"""Settings that are tables, whose options give an entry each."""


def settings_options(command: Command) -> Command:
    """Add the options that make `Settings`; the command gets a `Chosen` as ``settings``."""

    @wraps(command)
    def run(*args: object, **options: Any) -> Any:  # noqa: ANN401 - as the command
        overrides: dict[str, object] = {name: options.pop(name) for name in _AS_GIVEN}
        for name, read in _READ.items():
            overrides[name] = read(options.pop(name)) or None
        overrides["input"] = parse_values(options.pop("input_values")) or None
        overrides["checkpoints"] = overrides["checkpoints"] or None
        config = options.pop("config")
        return command(*args, settings=Chosen(config, overrides), **options)

    for option in reversed(_SETTINGS):
        run = option(run)
    return run  # type: ignore[return-value]


_BINDING = (dim_option, shape_option, inputs_option, input_option, run_option)


def binding_options(command: Command) -> Command:
    """Add the options that bind dims and inputs; the command gets `Settings` as ``binding``."""

    @wraps(command)
    def run(
        *args: object,
        dims: tuple[str, ...],
        shapes: tuple[str, ...],
        inputs: tuple[str, ...],
        input_values: tuple[str, ...],
        run: bool | None,
        **options: object,
    ) -> Any:  # noqa: ANN401 - as the command
        from memplan_cli.settings.settings import Settings

        given = Inputs(inputs, parse_values(input_values))
        binding = Settings(
            dims=parse_dims(dims),
            shapes={name: tuple(shape) for name, shape in parse_shapes(shapes).items()},
            inputs=given,
            run=run is not False,
        )
        return command(*args, binding=binding, **options)

    for option in reversed(_BINDING):
        run = option(run)
    return run  # type: ignore[return-value]


range_option = click.option(
    "--bounds",
    multiple=True,
    metavar="NAME=A..B",
    help="Range of a dimension of requests; repeatable.",
)


def with_bounds(binding: Settings, texts: tuple[str, ...]) -> Settings:
    """Return settings with the bounds that words say, judged as a settings file is.

    Raises:
        SettingsError: one says no range.
    """
    from memplan_cli.settings.sources import read_overrides

    read = read_overrides({"bounds": parse_bounds(texts)}).values if texts else {}
    return replace(
        binding, bounds=cast("Mapping[str, tuple[int, int]]", read.get("bounds", {}))
    )


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the command line says about settings; files come in once a model is known."""

    config: Path | None
    overrides: Mapping[str, object]

    @property
    def given(self) -> tuple[str, ...]:
        """The options that were given, by name."""
        words = {"config": self.config, **self.overrides}
        return tuple(
            _option(name, value) for name, value in words.items() if value not in (None, ())
        )

    def load(self, model: Path) -> Settings:
        """Return the settings for a model, from files and options together."""
        return Request(self.config, self.overrides).load(model)

    def keywords(self, output: Output) -> dict[str, Any]:
        """Return the keywords for a function of the Python API that plans models."""
        return {
            **self.overrides,
            "config": self.config,
            "progress": output.progress,
            "warn": output.note,
        }


_SINGULAR = {"dims": "dim", "shapes": "shape", "checkpoints": "checkpoint"}
"""Settings that an option gives one by one."""


def _option(name: str, value: object) -> str:
    """Return the option that gives a setting a value, as the user wrote it."""
    word = _SINGULAR.get(name, name).replace("_", "-")
    return f"no-{word}" if value is False else word
