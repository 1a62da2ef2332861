"""Options that several commands have, and decorators that turn them into one argument.

A decorator such as `settings_options` adds options to a command, and passes their values to it as
one keyword argument. Its docstring names the argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import click
from click.core import ParameterSource

from memplan_cli.api.request import Request
from memplan_cli.cli.output import Output, stdout_has_colors
from memplan_cli.cli.values import (
    Finite,
    ResultFile,
    SourceFile,
    parse_bounds,
    parse_dim_lists,
    parse_dims,
    parse_donations,
    parse_shapes,
    parse_values,
)
from memplan_cli.core.bindings import Inputs
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT, PROVIDERS
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

    from memplan_cli.api import Check
    from memplan_cli.settings.settings import Settings

Command = TypeVar("Command", bound="Callable[..., Any]")


def _add_options(command: Command, options: Iterable[Callable[[Any], Any]]) -> Command:
    """Return a command with options added, which the help lists in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command


# --- Arguments and options of one value ------------------------------------------------------

# Without `exists=True`: the library reports a missing file in the same words everywhere.
model_argument = click.argument("model", type=SourceFile())

result_option = click.option(
    "-o",
    "--output",
    "out",
    type=ResultFile(),
    help="Write the result into this file. The default, -, is standard output.",
)

provider_option = click.option(
    "--provider",
    type=click.Choice(["auto", *PROVIDERS]),
    default="auto",
    show_default=True,
    help="Execution provider that runs the model; auto is CUDA if it works, else the CPU.",
)

timeout_option = click.option(
    "--timeout",
    type=Finite(0, min_open=True),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Time limit in seconds of each process that runs a model.",
)

tune_option = click.option(
    "--tune",
    is_flag=True,
    help="Search the session settings by measuring many of them. This takes much longer.",
)

TUNE_COST = (
    "--tune runs the models under many settings, some twenty processes instead of two or three"
)

bounds_option = click.option(
    "--bounds",
    multiple=True,
    metavar="NAME=A..B",
    help="Range of a dimension over all requests. Repeatable.",
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


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Return ``--format`` with these choices, the first by default; the argument is ``form``."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Format of the result.",
    )


# --- Output ----------------------------------------------------------------------------------


def output_options(command: Command) -> Command:
    """Add ``--quiet``, ``--no-color`` and ``--debug``; the argument is an `Output`, ``output``."""

    @wraps(command)
    def run(*args: object, quiet: bool, no_color: bool, debug: bool, **options: object) -> Any:  # noqa: ANN401 - as the command
        output = click.get_current_context().find_root().ensure_object(Output)
        output.quiet, output.debug = quiet, debug
        output.color = not no_color and stdout_has_colors()
        return command(*args, output=output, **options)

    options = (
        click.option(
            "--quiet", "-q", is_flag=True, help="Print the result only: no progress, no notes."
        ),
        click.option(
            "--no-color",
            is_flag=True,
            help="Print without colors, as if the variable NO_COLOR was set.",
        ),
        click.option(
            "--debug",
            is_flag=True,
            help="Print a traceback after a failure, and the progress of the searches.",
        ),
    )
    return _add_options(cast("Command", run), options)


def detail_options(command: Command) -> Command:
    """Add ``--verbose`` and ``--explain``; the argument is a report's `Detail`, ``detail``."""

    @wraps(command)
    def run(*args: object, verbose: bool, explain: bool, **options: object) -> Any:  # noqa: ANN401 - as the command
        detail = "definitions" if explain else "details" if verbose else "answer"
        return command(*args, detail=detail, **options)

    options = (
        click.option(
            "--verbose", "-v", is_flag=True, help="Print all tables, not only the summary."
        ),
        click.option(
            "--explain", is_flag=True, help="Print all tables and what each number means."
        ),
    )
    return _add_options(cast("Command", run), options)


# --- Settings --------------------------------------------------------------------------------

_SETTINGS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="Read settings from this YAML, TOML or prototxt file.",
    ),
    click.option(
        "--level",
        type=int,
        help=(
            "How memory is reused: 0 between tensors of the same dtype and shape, 1 between "
            "tensors of the same dtype, 2 (default) as byte offsets in one arena."
        ),
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="GLOB",
        help="Keep these tensors out of memory reuse, so that they can be read after a run.",
    ),
    click.option(
        "--expose",
        is_flag=True,
        default=None,
        help="Make the excluded tensors outputs of the graph.",
    ),
    click.option(
        "--phase",
        type=click.Choice(get_args(PhaseChoice)),
        help="Treat the model as training or inference. By default this is detected.",
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
        metavar="NAME=A..B",
        help="Make one plan that holds for every value of a dimension from A to B.",
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
        help="Compute long activations in slices, with the same results, to lower the peak.",
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
        help="Let an output take the memory of an input. Globs pair equal names. Repeatable.",
    ),
    click.option(
        "--alignment", type=int, metavar="N", help="Align tensors in the arena to N bytes."
    ),
    click.option(
        "--time-limit",
        type=float,
        metavar="S",
        help="Stop the searches after this many seconds.",
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

_OPTION_NAMES = {"dims": "dim", "shapes": "shape", "checkpoints": "checkpoint"}
"""Settings whose option has another name."""


@dataclass(frozen=True, slots=True)
class SettingsOptions:
    """The settings of a command line, before the settings files of a model are read.

    Attributes:
        config: the file of ``--config``.
        overrides: settings by name; None if the option was not given.
    """

    config: Path | None
    overrides: Mapping[str, object]

    @property
    def option_names(self) -> tuple[str, ...]:
        """The options that were given, without dashes at the front: ``no-skip-grads``."""
        names = []
        for setting, value in {"config": self.config, **self.overrides}.items():
            if value not in (None, ()):
                option = _OPTION_NAMES.get(setting, setting).replace("_", "-")
                names.append(f"no-{option}" if value is False else option)
        return tuple(names)

    def load(self, model: Path) -> Settings:
        """Return the settings for a model: of its settings files, overridden by the options."""
        return Request(self.config, self.overrides).load(model)

    def keywords(self, output: Output) -> dict[str, Any]:
        """Return the keyword arguments for a function of the Python API that plans models."""
        return {
            **self.overrides,
            "config": self.config,
            "progress": output.progress,
            "warn": output.note,
        }


def settings_options(command: Command) -> Command:
    """Add an option for each setting; the argument is a `SettingsOptions`, ``settings``."""

    @wraps(command)
    def run(*args: object, **options: Any) -> Any:  # noqa: ANN401 - as the command
        overrides: dict[str, object] = {name: options.pop(name) for name in _PLAIN_SETTINGS}
        for name, parse in _TABLE_PARSERS.items():
            overrides[name] = parse(options.pop(name)) or None
        overrides["input"] = parse_values(options.pop("input_values")) or None
        overrides["checkpoints"] = overrides["checkpoints"] or None
        settings = SettingsOptions(options.pop("config"), overrides)
        return command(*args, settings=settings, **options)

    return _add_options(cast("Command", run), _SETTINGS)


def binding_options(command: Command) -> Command:
    """Add the options that bind dims and inputs; the argument is a `Settings`, ``binding``."""

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

        binding = Settings(
            dims=parse_dims(dims),
            shapes={name: tuple(shape) for name, shape in parse_shapes(shapes).items()},
            inputs=Inputs(inputs, parse_values(input_values)),
            run=run is not False,
        )
        return command(*args, binding=binding, **options)

    options = (_dim_option, _shape_option, inputs_option, input_option, _run_option)
    return _add_options(cast("Command", run), options)


def with_bounds(binding: Settings, texts: tuple[str, ...]) -> Settings:
    """Return settings with the ranges of ``--bounds NAME=A..B`` texts.

    Raises:
        SettingsError: a text is not a range.
    """
    from memplan_cli.settings.sources import read_overrides

    values = read_overrides({"bounds": parse_bounds(texts)}).values if texts else {}
    bounds = cast("Mapping[str, tuple[int, int]]", values.get("bounds", {}))
    return replace(binding, bounds=bounds)


# --- Forms of --dim with more than one number ------------------------------------------------
# These decorators stand above `settings_options`, and take the texts of --dim that the settings
# do not have.


def unknown_dims(command: Command) -> Command:
    """Allow ``--dim NAME=?``; the argument is the tuple of these names, ``unknown``.

    The command raises a SettingsError if a name is empty, or has a number too.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        names = [text.removesuffix("=?") for text in dims if text.endswith("=?")]
        bound = tuple(text for text in dims if not text.endswith("=?"))
        if "" in names:
            raise SettingsError(
                "--dim =? has no name", hint="name the dimension: --dim NAME=?"
            )
        _reject_common_names(bound, names)
        return command(*args, dims=bound, unknown=tuple(dict.fromkeys(names)), **options)

    return cast("Command", run)


def several_dims(command: Command) -> Command:
    """Allow ``--dim NAME=N,N,..``; the argument is a mapping of names to values, ``profiles``.

    Dims with one value stay settings. The command raises a SettingsError if a name is given twice.
    """

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        lists = [text for text in dims if "," in text.rpartition("=")[2]]
        bound = [text for text in dims if text not in lists]
        profiles: dict[str, tuple[int, ...]] = {}
        for name, values in parse_dim_lists(lists).items():
            if len(values) == 1:  # a list such as 4,4
                bound.append(f"{name}={values[0]}")
            else:
                profiles[name] = values
        _reject_common_names(bound, profiles)
        return command(*args, dims=tuple(bound), profiles=profiles, **options)

    for option in vars(run).get("__click_params__", ()):
        if option.name == "dims":
            option.metavar = "NAME=N,.."
            option.help = (
                "Bind a symbolic dimension to a number, or to several numbers that one plan "
                "holds for. Repeatable."
            )
    return cast("Command", run)


def profile_dims(command: Command) -> Command:
    """Take all of ``--dim``; the argument is a mapping of names to values, ``profiles``."""

    @wraps(command)
    def run(*args: object, dims: tuple[str, ...], **options: object) -> Any:  # noqa: ANN401 - as the command
        return command(*args, dims=(), profiles=parse_dim_lists(dims), **options)

    for option in vars(run).get("__click_params__", ()):
        if option.name == "dims":
            option.metavar = "NAME=N,.."
            option.help = (
                "Bind a symbolic dimension to a number, or to several numbers for a row each. "
                "Repeatable."
            )
    return cast("Command", run)


def _reject_common_names(texts: Iterable[str], names: Collection[str]) -> None:
    """Raise a SettingsError if a ``NAME=N`` text has one of these names."""
    for text in texts:
        name = text.rpartition("=")[0]
        if name in names:
            raise SettingsError(f"--dim gives {name!r} twice")


# --- Validation ------------------------------------------------------------------------------

_DEPTHS: Mapping[str, Literal["outputs", "full"] | None] = {
    "outputs": "outputs",
    "full": "full",
    "none": None,
}


@dataclass(frozen=True, slots=True)
class Validation:
    """How ``optimize`` validates a written model and finds its settings.

    Attributes:
        depth: compare ``outputs``, or measure memory too (``full``); None: run nothing.
        search: settings are predicted (``foreseen``) or ``measured``.
    """

    depth: Literal["outputs", "full"] | None
    search: Literal["foreseen", "measured"]

    def check(self, provider: str, timeout: float) -> Check | None:
        """Return how models are run and compared; None if they are not run."""
        from memplan_cli.api import Check

        if self.depth is None:
            return None
        return Check(provider, timeout=timeout, depth=self.depth, search=self.search)


def validation_options(command: Command) -> Command:
    """Add ``--validate``, ``--no-validate`` and ``--tune``; the argument is ``validation``.

    The command raises a SettingsError if two of the options contradict each other.
    """

    @wraps(command)
    def run(
        *args: object, validate: str | None, no_validate: bool, tune: bool, **options: object
    ) -> Any:  # noqa: ANN401 - as the command
        if no_validate and validate not in (None, "none"):
            raise SettingsError(
                f"--no-validate and --validate {validate} contradict each other",
                hint="remove one of them",
            )
        depth = _DEPTHS["none" if no_validate else validate or "full"]
        if tune and depth != "full":
            raise SettingsError(
                "--tune measures the memory of both models, which needs --validate full",
                hint="remove --no-validate and --validate",
            )
        validation = Validation(depth, "measured" if tune else "foreseen")
        return command(*args, validation=validation, **options)

    options = (
        click.option(
            "--validate",
            type=click.Choice(list(_DEPTHS)),
            help=(
                "Run the original and the written model, and compare their outputs, or their "
                "outputs and memory (full), or run nothing.  [default: full]"
            ),
        ),
        click.option(
            "--no-validate",
            is_flag=True,
            help="Run nothing. This is the same as --validate none.",
        ),
        tune_option,
    )
    return _add_options(cast("Command", run), options)


# --- Options without effect ------------------------------------------------------------------


def options_in_use(parameters: Collection[str]) -> tuple[str, ...]:
    """Return the options of the running command that the user gave, of these click parameters."""
    context = click.get_current_context()
    return tuple(
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name)
        not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    )


def reject_unused(parameters: Collection[str], reason: str, hint: str) -> None:
    """Refuse options of the running command that would have no effect.

    Args:
        parameters: click parameters.
        reason: follows the name of the option: ``needs the models to be run``.
        hint: what to do instead.

    Raises:
        SettingsError: the user gave one of the options.
    """
    for option in options_in_use(parameters):
        raise SettingsError(f"{option} {reason}", hint=hint)
