"""``memplan optimize``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.options import (
    TUNE_COST,
    detail_options,
    format_option,
    invocation,
    model_argument,
    options_in_use,
    output_options,
    provider_option,
    reject_unused,
    repeated_options,
    timeout_option,
    tune_option,
)
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import expose_option, settings_options, several_dims
from memplan_cli.cli.values import TargetFile, require_output_file
from memplan_cli.core.check import Idle, Reference
from memplan_cli.errors import SettingsError
from memplan_cli.settings.choices import ExternalWeightsChoice, NotesChoice, TargetChoice

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output
    from memplan_cli.reporting.plans.report import Detail
    from memplan_cli.settings.settings import Settings

_Depth = Literal["outputs", "full", "none"]
_DEPTHS = get_args(_Depth)


@click.command(
    cls=GroupedCommand,
    most_used=("--output", "--dim", "--target", "--settings-out", "--budget"),
)
@model_argument
@click.option(
    "-o",
    "--output",
    "out",
    type=TargetFile(),
    help="Write the optimized model here. The default is <stem>.memplan.onnx beside MODEL.",
)
@click.option(
    "--plan",
    "plan_file",
    type=TargetFile(),
    help="Write the plan here. The default is the name of the optimized model with .json.",
)
@several_dims
@settings_options
@expose_option
@click.option(
    "--target",
    type=click.Choice(get_args(TargetChoice)),
    default="portable",
    help=(
        "Keep the nodes of the file (portable), or let ONNX Runtime optimize the graph for this "
        "provider first. The file then depends on the runtime version and the hardware."
    ),
)
@click.option(
    "--external-weights",
    type=click.Choice(get_args(ExternalWeightsChoice)),
    help=(
        "Move the weights of a portable file into a file of their own if loading then needs "
        "less memory (default), or keep them where they are."
    ),
)
@click.option(
    "--notes",
    type=click.Choice(get_args(NotesChoice)),
    help=(
        "Write the plan into the metadata of the model's nodes and values too (model), or "
        "into the plan file only (plan). The default, auto, is plan for --target cpu|cuda."
    ),
)
@click.option(
    "--best-effort",
    is_flag=True,
    default=None,
    help="Write the smallest plan found if none is within --budget, and exit with 0.",
)
@click.option(
    "--settings-out",
    type=TargetFile(),
    help=(
        "Write the session settings of the optimized model as Python code that needs no memplan, "
        "and as JSON beside it."
    ),
)
@click.option(
    "--certificate",
    type=TargetFile(),
    help="Write a proof of the lower bound of the order, for memplan verify-certificate.",
)
@click.option(
    "--validate",
    type=click.Choice(_DEPTHS),
    help=(
        "Run the original and the written model, and compare their outputs, or their "
        "outputs and memory (full), or run nothing.  [default: full]"
    ),
)
@click.option(
    "--no-validate",
    is_flag=True,
    help="Run nothing: memory and settings are predicted. This is the same as --validate none.",
)
@click.option(
    "--reference",
    type=click.Choice(get_args(Reference)),
    default="defaults",
    help=(
        "The run of the original whose outputs the written model must have: under ONNX "
        "Runtime's default options, or with graph optimization disabled."
    ),
)
@tune_option
@click.option(
    "--idle",
    type=click.Choice(get_args(Idle)),
    help=(
        "Give the arena's memory back after each run, or hold it for shorter runs.  "
        "[default: release if a run gets at most 5 % longer]"
    ),
)
@provider_option
@timeout_option
@click.option(
    "--print-log", is_flag=True, help="Print a line for each tensor that reuses memory."
)
@detail_options
@format_option("text", "json")
@output_options
def optimize(
    model: Path,
    *,
    out: Path | None,
    plan_file: Path | None,
    profiles: Profiles,
    request: Request,
    target: TargetChoice,
    external_weights: ExternalWeightsChoice | None,
    notes: NotesChoice | None,
    best_effort: bool | None,
    settings_out: Path | None,
    certificate: Path | None,
    validate: _Depth | None,
    no_validate: bool,
    reference: Reference,
    tune: bool,
    idle: Idle | None,
    provider: str,
    timeout: float,
    print_log: bool,
    detail: Detail,
    form: str,
    output: Output,
) -> None:
    """Write MODEL in the node order that needs least memory, with a plan of its memory.

    Unless --no-validate is given, the original and the written model are run, and nothing is
    written if their outputs differ in a single bit. Exit code 1 if nothing was written.

    \b
    memplan optimize model.onnx --level 1 --exclude fc1
    """
    from memplan_cli import api
    from memplan_cli.api.models.file_names import default_output
    from memplan_cli.api.models.plan_files import named_from_here
    from memplan_cli.api.plan_sections import FEATURE_SECTIONS
    from memplan_cli.loading.metadata import scanned_metadata
    from memplan_cli.onnx_io.metadata import PREFIX
    from memplan_cli.reporting.formats import check_options, render
    from memplan_cli.reporting.hints import over_budget

    require_output_file(model, out)
    overwrites = model.is_file() and (out or default_output(model)).exists()
    check_options(form, detail, print_log=print_log)
    model_settings = request.load(model)
    depth = _validation_depth(model_settings, validate, no_validate=no_validate)
    _reject_unused_options(depth, target, provider, output)
    if tune:
        output.note(f"memplan: {TUNE_COST}")
    check = None
    if depth != "none":
        check = api.Check(
            provider,
            timeout=timeout,
            depth=depth,
            search="measured" if tune else "predicted",
            reference=reference,
            idle=idle,
        )
    optimized = api.optimize(
        model,
        replace(
            model_settings,
            target=target,
            external_weights=external_weights or model_settings.external_weights,
            notes=notes or model_settings.notes,
            best_effort=best_effort or model_settings.best_effort,
        ),
        profiles=profiles,
        out=out,
        plan_file=plan_file,
        settings_out=settings_out,
        certificate=certificate,
        check=check,
        progress=output.progress,
    )
    plan = optimized.plan
    report = render(
        plan if form == "json" else named_from_here(plan, optimized.plan_file),
        form,
        color=output.color,
        print_log=print_log,
        detail=detail,
        sections=FEATURE_SECTIONS,
        invocation=invocation(optimized.model, output, repeated_options),
    )
    say(report)
    if optimized.model is None:
        from memplan_cli.reporting.plans.runtime import reason_not_written

        output.reason(f"memplan: {reason_not_written(plan.report)}: nothing was written")
        raise SystemExit(1)
    if budget_message := over_budget(plan.report):
        output.note(f"memplan: {budget_message}: this plan is written (--best-effort)")
    *first_files, last_file = optimized.written
    over = ", over earlier files" if overwrites else ""
    output.note(f"memplan: wrote {', '.join(map(str, first_files))} and {last_file}{over}")
    if f"{PREFIX}plan" in scanned_metadata(model):
        output.note(
            f"memplan: {model} was written by memplan: the report compares two optimized models; give "
            "the original"
        )


def _validation_depth(
    settings: Settings, validate: _Depth | None, *, no_validate: bool
) -> _Depth:
    """Return how deeply the written model is compared; ``none`` if options or settings forbid it.

    Raises:
        SettingsError: the options contradict each other, or one needs runs that settings forbid.
    """
    from memplan_cli.api.models.binding import require_runs

    if no_validate and validate not in (None, "none"):
        raise SettingsError(
            f"--no-validate and --validate {validate} contradict each other",
            hint="remove one of them",
        )
    if no_validate or validate == "none":
        return "none"
    if settings.run:
        return validate or "full"
    # Settings forbid runs: the first option in use that needs a run is refused.
    for option in options_in_use(("tune", "validate", "reference", "idle")):
        require_runs(settings, option)
    return "none"


def _reject_unused_options(
    depth: _Depth, target: TargetChoice, provider: str, output: Output
) -> None:
    """Refuse options that contradict each other or have no effect; note harmless ones.

    Raises:
        SettingsError: an option has no effect, but a user may rely on it.
    """
    if depth != "full":
        reason = "measures the memory of both models, which needs --validate full"
        reject_unused(("tune", "idle"), reason, "remove --no-validate and --validate")
    if target != "portable" and provider not in (target, "auto"):
        raise SettingsError(
            f"--target {target} runs both models on {target}, not on {provider}",
            hint="remove --provider",
        )
    if depth == "none":
        # With --provider cuda, users would believe that the GPU was used.
        unused = ("settings_out", "reference", *(["provider"] if provider == "cuda" else []))
        hint = "remove --no-validate and --no-run"
        reject_unused(unused, "needs the models to be run", hint)
        for option in options_in_use(("provider", "timeout")):
            output.note(
                f"memplan: {option} has no effect: with --no-validate or --no-run nothing is run"
            )
    elif depth == "outputs":
        reason = "needs the memory of the models to be measured"
        reject_unused(("settings_out",), reason, "remove --validate outputs")
    if target != "portable":
        reason = f"is for --target portable, not {target}"
        reject_unused(("external_weights",), reason, "remove the option")
