"""``memplan optimize``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import click

from memplan_cli.cli.common import (
    detail_options,
    format_option,
    output_options,
    provider_option,
    say,
    timeout_option,
)
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.outputs import TargetFile
from memplan_cli.cli.options.profiles import several_dims
from memplan_cli.cli.options.stdin import model_argument, refuse_nameless
from memplan_cli.cli.options.unused import given, reject_unused
from memplan_cli.cli.options.validation import COST, validation_options
from memplan_cli.errors import SettingsError
from memplan_cli.settings.choices import ExternalWeightsChoice, NotesChoice, TargetChoice

if TYPE_CHECKING:
    from pathlib import Path

    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.cli.common import Output
    from memplan_cli.cli.options.validation import Validation
    from memplan_cli.core.results.plan import Plan
    from memplan_cli.reporting.plans.report import Detail


def _why_not(plan: Plan) -> str:
    """Return why a plan was not written."""
    from memplan_cli.reporting.hints import over_budget

    missed, found = over_budget(plan.report), plan.report.validation
    if missed:
        return missed
    if found is not None and found.max_abs_diff is None and found.notes:
        return found.notes[0]  # it does not run, and why
    return "the rewritten model gives other outputs"


@click.command()
@model_argument
@click.option("-o", "--output", "out", type=TargetFile(), help="Optimized model to write.")
@click.option("--plan", "plan_file", type=TargetFile(), help="Plan file to write.")
@several_dims
@settings_options
@click.option(
    "--target",
    type=click.Choice(get_args(TargetChoice)),
    default="portable",
    show_default=True,
    help="Order the graph as it is, or as optimized offline by the runtime for a provider.",
)
@click.option(
    "--external-weights",
    type=click.Choice(get_args(ExternalWeightsChoice)),
    help="Move weights out of a portable file where loading it takes less then (default), or not.",
)
@click.option(
    "--notes",
    type=click.Choice(get_args(NotesChoice)),
    help="Write the plan on the model's nodes and values too (default), or into its own file alone.",
)
@click.option(
    "--settings-out",
    type=TargetFile(),
    help="Write the recommended session settings as Python, and as JSON beside it.",
)
@click.option(
    "--certificate",
    type=TargetFile(),
    help="Write a witness of each bound of the plan, for verify-certificate.",
)
@validation_options
@provider_option
@timeout_option
@click.option(
    "--print-log", is_flag=True, help="Print one line for each tensor that reuses memory."
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
    settings: Chosen,
    target: TargetChoice,
    external_weights: ExternalWeightsChoice | None,
    notes: NotesChoice | None,
    settings_out: Path | None,
    certificate: Path | None,
    validation: Validation,
    provider: str,
    timeout: float,
    print_log: bool,
    detail: Detail,
    form: str,
    output: Output,
) -> None:
    """Plan MODEL's memory, write it in the order that needs least, and prove it.

    Writes <stem>.memplan.onnx and <stem>.memplan.json beside MODEL.

    \b
    memplan optimize model.onnx --level 1 --exclude fc1
    """
    from memplan_cli import api
    from memplan_cli.api.models.binding import refuse_run
    from memplan_cli.api.models.plan_files import named_from_here
    from memplan_cli.api.plan_sections import FEATURE_SECTIONS
    from memplan_cli.reporting import check_detail, render

    refuse_nameless(model, out)
    check_detail(detail, form)
    own = settings.load(model)
    if not own.run:
        refuse_run(own, _asks_for_a_run(validation))
        validation = replace(validation, depth=None)
    if validation.depth is None:
        _reject_unused_options(provider, output)
    elif validation.depth == "outputs":
        hint = "leave --validate outputs out"
        reject_unused(("settings_out",), "needs the models' memory to be looked at", hint)
    if validation.search == "measured":
        output.note(f"memplan: {COST}")
    if target != "portable" and provider not in (target, "auto"):
        raise SettingsError(
            f"--target {target} runs both models on its own provider, not on {provider}",
            hint="leave --provider out",
        )
    if target != "portable":
        hint = "leave it out"
        reject_unused(("external_weights",), f"is for --target portable, not {target}", hint)
    moved = external_weights or own.external_weights
    own = replace(own, external_weights=moved, notes=notes or own.notes)
    done = api.optimize(
        model,
        replace(own, target=target),
        profiles=profiles,
        out=out,
        plan_file=plan_file,
        settings_out=settings_out,
        certificate=certificate,
        check=validation.check(provider, timeout),
        progress=output.progress,
    )
    seen = named_from_here(done.plan, done.plan_file) if form != "json" else done.plan
    shown = render(
        seen,
        form,
        color=output.color,
        print_log=print_log,
        detail=detail,
        sections=FEATURE_SECTIONS,
    )
    say(shown)
    if done.model is None:
        output.reason(f"memplan: {_why_not(done.plan)}: nothing was written")
        raise SystemExit(1)
    *first, last = done.written
    output.note(f"memplan: wrote {', '.join(map(str, first))} and {last}")


def _asks_for_a_run(validation: Validation) -> str:
    """Return the option that would run the models, where somebody gave one."""
    options = given(("tune", "validate")) if validation.depth is not None else ()
    return next(iter(options), "")


def _reject_unused_options(provider: str, output: Output) -> None:
    """Refuse or note options that do nothing where nothing is run.

    Raises:
        SettingsError: somebody could believe that a GPU was used, or waits for settings.
    """
    unused = ("settings_out", "provider") if provider == "cuda" else ("settings_out",)
    reject_unused(unused, "needs the models to be run", "leave --no-validate and --no-run out")
    for option in given(("provider", "timeout")):
        output.note(
            f"memplan: {option} changes nothing: with --no-validate or --no-run nothing is run"
        )
