"""Options that make `Settings`: all settings of a plan, or only the bindings of dims and inputs.

`settings_options` and `binding_options` add the options to a command. `unknown_dim`, `several_dims`
and `profile_dims` stand above them, and take the forms of ``--dim`` that settings do not have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import click

from memplan_cli.cli.options import add_options
from memplan_cli.cli.values import (
    parse_bounds,
    parse_dim_lists,
    parse_dims,
    parse_donations,
    parse_shapes,
    parse_values,
)
from memplan_cli.core.bindings import Inputs
from memplan_cli.errors import SettingsError
from memplan_cli.settings.choices import (
    CacheChoice,
    ChunkChoice,
    OrderChoice,
    PhaseChoice,
    RecomputeChoice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from memplan_cli.api.request import Request
    from memplan_cli.cli.options import Command
    from memplan_cli.cli.output import Output
    from memplan_cli.core.symbolic.bounds import Bounds
    from memplan_cli.settings.settings import Settings

bounds_option = click.option(
    "--bounds",
    multiple=True,
    metavar="NAME=A..B[:STEP]",
    help="Range of a dimension over all requests, with its step if that is not 1. Repeatable.",
)

_dim_option = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=N",
    help="Bind a symbolic dimension to a number. Repeatable.",
)

_shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=D,D",
    help="Set the shape of a tensor. The shape of an input binds its named dimensions everywhere.",
)

inputs_option = click.option(
    "--inputs",
    multiple=True,
    metavar="FILE",
    help=(
        "Take shapes and values of inputs from a file: .npz, JSON, or a folder of input_*.pb. "
        "Repeatable."
    ),
)

input_option = click.option(
    "--input",
    "input_values",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set the value of an input: a number, text, or a list such as 1,2,3.",
)

_run_option = click.option(
    "--run/--no-run",
    default=None,
    help="Allow running the model to learn sizes that nothing else tells (default), or never run it.",
)

expose_option = click.option(
    "--expose",
    is_flag=True,
    default=None,
    help="Make the excluded tensors outputs of the graph.",
)
"""A setting of written models, for the commands that write or describe one; `settings_options` reads it."""

_SETTINGS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Read settings from this YAML, TOML or prototxt file.",
    ),
    click.option(
        "--level",
        type=int,
        metavar="0|1|2",
        help=(
            "How memory is reused: 0 between tensors of the same dtype and shape, 1 between "
            "tensors of the same dtype, 2 (default) as byte offsets in one arena."
        ),
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="GLOB",
        help="Give these tensors memory of their own for the whole run. Repeatable.",
    ),
    click.option(
        "--phase",
        type=click.Choice(get_args(PhaseChoice)),
        help="Treat the model as a training step (train) or as inference (test). The default is auto.",
    ),
    click.option(
        "--skip-grads/--no-skip-grads",
        default=None,
        help="Keep gradients out of memory reuse, or let them share memory (default).",
    ),
    click.option(
        "--loss",
        metavar="NAME",
        help="Name the loss tensor; the nodes after it are the backward part.",
    ),
    _dim_option,
    click.option(
        "--bounds",
        multiple=True,
        metavar="NAME=A..B[:STEP]",
        help=(
            "Make one plan that holds for every value of a dimension from A to B, in steps of STEP "
            "(1)."
        ),
    ),
    _shape_option,
    inputs_option,
    input_option,
    _run_option,
    click.option(
        "--order",
        type=click.Choice(get_args(OrderChoice)),
        help="Keep the node order of the file, or search the order that needs least memory (default).",
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
        help=(
            "Compute activations a second time instead of keeping them: chosen by a search "
            "(auto), or all between the tensors named by --checkpoint."
        ),
    ),
    click.option(
        "--checkpoint",
        "checkpoints",
        multiple=True,
        metavar="NAME",
        help="Keep this tensor with --recompute checkpoints. Repeatable.",
    ),
    click.option(
        "--chunk",
        type=click.Choice(get_args(ChunkChoice)),
        help=(
            "Compute long activations in slices, with the same results, to lower the peak: to "
            "--budget, or as far as a run is predicted to take at most 5% longer."
        ),
    ),
    click.option(
        "--kv-cache",
        type=click.Choice(get_args(CacheChoice)),
        help="Update the caches of a decoder in place, in buffers of --capacity entries.",
    ),
    click.option(
        "--capacity",
        type=int,
        metavar="N",
        help="Number of entries of a cache with --kv-cache in-place.",
    ),
    click.option(
        "--budget",
        metavar="SIZE|N%",
        help=(
            "Memory that intermediates and outputs may take with --recompute auto or "
            "--chunk auto, as a size or as a share of what they take now."
        ),
    ),
    click.option(
        "--donate",
        multiple=True,
        metavar="INPUT=OUTPUT",
        help=(
            "Let an output take the memory of an input. A * stands for the same text on both "
            "sides. Repeatable."
        ),
    ),
    click.option(
        "--alignment", type=int, metavar="N", help="Align tensors in the arena to N bytes."
    ),
    click.option(
        "--time-limit",
        type=float,
        metavar="S",
        help=(
            "Stop each search after this many seconds. By default, searches end after an amount of "
            "work, so that plans are reproducible."
        ),
    ),
    click.option(
        "--allow-partial",
        is_flag=True,
        default=None,
        help="Print totals of the known sizes even if some sizes are unknown.",
    ),
)

_PLAIN_SETTINGS = (
    "level", "exclude", "expose", "phase", "skip_grads", "loss", "order", "fold_constants", "recompute",
    "checkpoints", "chunk", "kv_cache", "capacity", "budget", "alignment", "time_limit", "allow_partial",
    "run", "inputs",
)  # fmt: skip
"""Settings whose option values need no parsing."""

_TABLE_PARSERS: Mapping[str, Callable[[tuple[str, ...]], Mapping[str, object]]] = {
    "dims": parse_dims,
    "bounds": parse_bounds,
    "shapes": parse_shapes,
    "donate": parse_donations,
}
"""Settings that are tables; each use of the option is one entry."""


def settings_options(command: Command) -> Command:
    """Return ``command`` with an option for each setting.

    The command gets the options that the user gave as a `Request`, in its argument ``request``.
    """

    @wraps(command)
    def run(*args: object, **options: Any) -> Any:  # noqa: ANN401 - as the command
        from memplan_cli.api.request import Request

        # An option that was not given is None, or empty if it can be repeated. --expose is an
        # option of some commands only.
        given: dict[str, object] = {name: options.pop(name, None) for name in _PLAIN_SETTINGS}
        for name, parse in _TABLE_PARSERS.items():
            given[name] = parse(options.pop(name))
        given["input"] = parse_values(options.pop("input_values"))
        overrides = {
            name: value for name, value in given.items() if value not in (None, (), {})
        }
        request = Request(options.pop("config"), overrides)
        return command(*args, request=request, **options)

    return add_options(cast("Command", run), _SETTINGS)


def keywords(request: Request, output: Output) -> dict[str, Any]:
    """Return the keyword arguments of a request for a function of the Python API that plans models."""
    return {
        **request.overrides,
        "config": request.config,
        "progress": output.progress,
        "warn": output.note,
    }


def binding_options(command: Command) -> Command:
    """Add the options that bind dims and inputs. The command gets them as one argument ``binding``, a `Settings`."""

    @wraps(command)
    def run_command(
        *args: object,
        dims: tuple[str, ...],
        shapes: tuple[str, ...],
        inputs: tuple[str, ...],
        input_values: tuple[str, ...],
        run: bool | None,
        **other_values: object,
    ) -> Any:  # noqa: ANN401 - as the command
        from memplan_cli.settings.settings import Settings

        binding = Settings(
            dims=parse_dims(dims),
            shapes={name: tuple(shape) for name, shape in parse_shapes(shapes).items()},
            inputs=Inputs(inputs, parse_values(input_values)),
            run=run is not False,  # None: neither --run nor --no-run was given
        )
        return command(*args, binding=binding, **other_values)

    decorators = (_dim_option, _shape_option, inputs_option, input_option, _run_option)
    return add_options(cast("Command", run_command), decorators)


def with_bounds(binding: Settings, texts: tuple[str, ...]) -> Settings:
    """Return settings with the ranges of ``--bounds NAME=A..B[:STEP]`` texts.

    Raises:
        SettingsError: a text is not a range.
    """
    from memplan_cli.settings.sources import read_overrides

    if not texts:
        return binding
    # The ranges are read as those in a settings file.
    bounds = read_overrides({"bounds": parse_bounds(texts)}).values["bounds"]
    return replace(binding, bounds=cast("Bounds", bounds))


def unknown_dim(command: Command) -> Command:
    """Allow one ``--dim NAME=?``; the command gets NAME as its argument ``unknown``, empty without this option.

    The command raises a SettingsError if there are several names, if the name is empty, or if the dim has a
    number too.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        names = list(dict.fromkeys(text[:-2] for text in dims if text.endswith("=?")))
        bound = tuple(text for text in dims if not text.endswith("=?"))
        if "" in names:
            raise SettingsError(
                "--dim =? has no name", hint="name the dimension: --dim NAME=?"
            )
        if len(names) > 1:
            raise SettingsError(
                f"one dimension can be searched, not {' and '.join(names)}",
                hint="--dim NAME=N gives the others a number",
            )
        _refuse_common_names(bound, names)
        return command(*args, dims=bound, unknown=names[0] if names else "", **options)

    return cast("Command", run)


def several_dims(command: Command) -> Command:
    """Allow ``--dim NAME=N,N,..``, for a command that makes one plan for several values.

    Its argument ``profiles`` maps each name with several values to these. Dims with one value are
    settings, as without this decorator. The command raises a SettingsError if a name is given twice.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        lists = [text for text in dims if "," in text.rpartition("=")[2]]
        # Texts with one value go to `settings_options`, which reads and checks them.
        bound = [text for text in dims if text not in lists]
        profiles: dict[str, tuple[int, ...]] = {}
        for name, values in parse_dim_lists(lists).items():
            if len(values) == 1:  # a list such as 4,4
                bound.append(f"{name}={values[0]}")
            else:
                profiles[name] = values
        _refuse_common_names(bound, profiles)
        return command(*args, dims=tuple(bound), profiles=profiles, **options)

    alternative = "several numbers that one plan holds for"
    return cast("Command", _with_help_of_dim_lists(run, alternative))


def profile_dims(command: Command) -> Command:
    """Allow ``--dim NAME=N,N,..``, for a command that makes a plan for each combination of values.

    The command gets an argument ``profiles``, which maps each dim to its values, even to a single value. Its
    argument ``dims`` is empty.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        return command(*args, dims=(), profiles=parse_dim_lists(dims), **options)

    return cast("Command", _with_help_of_dim_lists(run, "several numbers for a row each"))


def _with_help_of_dim_lists(command: Command, alternative: str) -> Command:
    """Change the help of a command's ``--dim``, in place, and return the command.

    ``alternative`` says what else than one number the option takes: "several numbers for a row each".
    """
    # The option objects of click are those of the wrapped function too, but only the help of the wrapper is printed.
    for option in vars(command).get("__click_params__", ()):
        if option.name == "dims":
            option.metavar = "NAME=N,.."
            option.help = (
                f"Bind a symbolic dimension to a number, or to {alternative}. Repeatable."
            )
    return command


def _refuse_common_names(texts: Iterable[str], names: Collection[str]) -> None:
    """Refuse a dim that is given in two ways.

    Raises:
        SettingsError: a ``NAME=N`` text has one of ``names``.
    """
    for text in texts:
        name = text.rpartition("=")[0]
        if name in names:
            raise SettingsError(f"--dim gives {name!r} twice")
