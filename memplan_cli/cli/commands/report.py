"""``memplan report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.options import (
    detail_options,
    format_option,
    invocation,
    output_options,
    repeated_options,
    result_option,
)
from memplan_cli.cli.output import deliver, stdout_is_terminal
from memplan_cli.cli.settings_options import expose_option, settings_options, several_dims
from memplan_cli.cli.values import SourceFile
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.report import ReportExtra
    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output
    from memplan_cli.reporting.plans.report import Detail

FORMATS = (
    "text", "json", "markdown", "html", "svg", "csv", "chrome-trace", "c-header", "tflm",
    "minimalloc",
)  # fmt: skip


@click.command(
    cls=GroupedCommand, most_used=("--dim", "--inputs", "--format", "--output", "--verbose")
)
@click.argument("path", metavar="[PLAN|MODEL]", required=False, type=SourceFile())
@several_dims
@settings_options
@expose_option
@click.option(
    "--print-log", is_flag=True, help="Print a line for each tensor that reuses memory."
)
@detail_options
@click.option(
    "--dry-run",
    is_flag=True,
    help="Also plan a training step of the model. Nothing is run or written.",
)
@format_option(*FORMATS)
@result_option
@output_options
def report(
    path: Path | None,
    *,
    profiles: Profiles,
    request: Request,
    print_log: bool,
    detail: Detail,
    dry_run: bool,
    form: str,
    out: Path | None,
    output: Output,
) -> None:
    """Show a plan, or plan a model in memory and show the plan.

    Without an argument, show the newest *.memplan.json of the current folder. Exit code 1 if the
    plan exceeds its --budget.

    \b
    memplan report --print-log
    memplan report model.onnx --format html -o report.html
    """
    from memplan_cli import api
    from memplan_cli.api.graph_facts import facts_for
    from memplan_cli.api.model_or_plan import is_plan_file, reject_settings_of_plans
    from memplan_cli.api.models.file_names import model_beside
    from memplan_cli.api.models.plan_files import named_from_here
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.plan_sections import FEATURE_SECTIONS
    from memplan_cli.api.report import interface_of
    from memplan_cli.reporting.formats import check_options, render
    from memplan_cli.reporting.hints import over_budget
    from memplan_cli.reporting.plans.exports import c_header

    check_options(form, detail, print_log=print_log)
    if form == "html" and out is None and stdout_is_terminal():
        raise SettingsError(
            "--format html is a page for a browser", hint="write it with -o FILE"
        )
    path = path or api.newest_plan(Path.cwd())
    is_plan = is_plan_file(path)
    reject_settings_of_plans((path,), request.option_names)
    refuse_targets({"-o": out}, (path,))
    model_settings = None if is_plan else request.load(path)
    extras: list[ReportExtra] = ["dry-run"] if dry_run else []
    if form in ("text", "json", "markdown", "html") and not is_plan and not profiles:
        # The process takes a session but no run. It is predicted for one size, and profiles have
        # several.
        extras.append("process")
    plan = api.report(path, model_settings, output.progress, profiles=profiles, extras=extras)
    if is_plan:
        written = model_beside(path)
        answered = invocation(written if written.is_file() else None, output)
        # A plan file names its model from its own folder: all formats but JSON name it from here.
        plan = plan if form == "json" else named_from_here(plan, path)
    else:
        answered = invocation(None, output, repeated_options)
    if form == "c-header" and model_settings is not None:
        # The model also has the inputs and outputs, which no plan contains.
        text = c_header(plan, interface_of(path, model_settings))
    else:
        text = render(
            plan,
            form,
            color=output.color and out is None,
            print_log=print_log,
            facts=facts_for(path, plan) if form == "html" else None,
            detail=detail,
            sections=FEATURE_SECTIONS,
            invocation=answered,
        )
    deliver(text, out, output)
    if budget_message := over_budget(plan.report):
        output.reason(f"memplan: {budget_message}")
        raise SystemExit(1)
