"""Options that many commands have, and decorators that turn several options into one argument.

A decorator such as `output_options` adds options to a command, and passes their values to it as one
keyword argument. Its docstring names the argument.
"""

from __future__ import annotations

from functools import wraps
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from click.core import ParameterSource

from memplan_cli.cli.output import Output, stdout_has_colors
from memplan_cli.cli.values import Finite, ResultFile, SourceFile
from memplan_cli.core.results.observations import DEFAULT_TIMEOUT, PROVIDERS
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from memplan_cli.reporting.plans.report import Invocation

Command = TypeVar("Command", bound="Callable[..., Any]")


def add_options(command: Command, options: Iterable[Callable[[Any], Any]]) -> Command:
    """Return a command with options added, which the help lists in this order."""
    for option in reversed(tuple(options)):
        command = option(command)
    return command


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
    help="Execution provider that runs the model; auto is CUDA if it works, else the CPU.",
)

timeout_option = click.option(
    "--timeout",
    type=Finite(0, min_open=True),
    default=DEFAULT_TIMEOUT,
    metavar="S",
    help="Time limit in seconds of each process that runs a model.",
)


def format_option(*formats: str) -> Callable[[Command], Command]:
    """Return ``--format`` with these choices, the first by default; the argument is ``form``."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        default=formats[0],
        metavar="FORMAT",
        help=f"Format of the result: {', '.join(formats[:-1])} or {formats[-1]}.",
    )


def output_options(command: Command) -> Command:
    """Return ``command`` with options such as ``--quiet``, from which it gets an `Output` as ``output``."""

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
    return add_options(cast("Command", run), options)


def detail_options(command: Command) -> Command:
    """Return ``command`` with ``--verbose`` and ``--explain``, from which it gets its argument ``detail``.

    With both options, ``--explain`` counts, which includes all that ``--verbose`` adds.
    """

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
    return add_options(cast("Command", run), options)


tune_option = click.option(
    "--tune",
    is_flag=True,
    help="Search the session settings by measuring many of them. This takes much longer.",
)

TUNE_COST = (
    "--tune runs the models under many settings, some twenty processes instead of two or three"
)

_ANSWER_OPTIONS = frozenset(
    (
        "out",
        "plan_file",
        "form",
        "print_log",
        "verbose",
        "explain",
        "quiet",
        "no_color",
        "debug",
    )
)
"""Parameters that decide where and how a result is shown, not what is computed."""


def repeated_options(command_name: str) -> tuple[str, ...]:
    """Return the user's options that another command of the group has too, one text for each.

    They are quoted for a shell. Options that decide how a result is shown are left out.
    """
    context = click.get_current_context()
    group = context.parent.command if context.parent else None
    command = (
        group.get_command(context, command_name) if isinstance(group, click.Group) else None
    )
    if command is None:
        return ()
    shared = {parameter.name for parameter in command.params} - _ANSWER_OPTIONS
    return tuple(
        text
        for option in context.command.params
        if isinstance(option, click.Option) and option.name in shared
        if context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        for text in _as_typed(option, context.params[option.name])
    )


def invocation(
    written: Path | None,
    output: Output,
    options_of: Callable[[str], tuple[str, ...]] | None = None,
) -> Invocation:
    """Return the facts about the running command with which a report suggests the next command.

    ``written`` is the model that was written, if any. ``options_of`` returns the user's options to repeat,
    given the name of the next command. None: the command read a finished plan, to which no options apply.
    """
    from memplan_cli.reporting.plans.report import Invocation

    read_finished_plan = options_of is None
    is_from_stdin = bool(output.stdin_folder)
    return Invocation(
        written=str(written or ""),
        repeated_options=options_of,
        debug=output.debug,
        # A finished plan names its model's file. A model from standard input has no file that lasts.
        has_model_file=read_finished_plan or not is_from_stdin,
    )


def _as_typed(option: click.Option, value: Any) -> Iterator[str]:  # noqa: ANN401 - of any type
    """Yield an option that the user typed, quoted for a shell; a repeatable option once for each value."""
    name = max(option.opts, key=len)  # the long name
    if option.is_flag:
        # A typed flag is false only by its second name, such as --no-run.
        yield name if value else max(option.secondary_opts, key=len)
        return
    for each in value if option.multiple else (value,):
        yield f"{name} {quote(str(each))}"


def options_in_use(parameters: Collection[str]) -> tuple[str, ...]:
    """Return which of these click parameters the user gave, by the long names of their options."""
    context = click.get_current_context()
    return tuple(
        max(parameter.opts, key=len)  # --quiet, not -q
        for parameter in context.command.params
        if parameter.name in parameters
        and context.get_parameter_source(parameter.name)
        not in (None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    )


def reject_unused(parameters: Collection[str], reason: str, hint: str) -> None:
    """Refuse options of the running command, given as click parameters, that would have no effect.

    ``reason`` follows the name of the option in the error: ``needs the models to be run``.
    """
    for option in options_in_use(parameters):
        raise SettingsError(f"{option} {reason}", hint=hint)
