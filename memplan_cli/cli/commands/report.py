"""``memplan report``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.common import detail_options, format_option, output_options
from memplan_cli.cli.options.chosen import Chosen, settings_options
from memplan_cli.cli.options.outputs import deliver, result_option
from memplan_cli.cli.options.profiles import several_dims
from memplan_cli.cli.options.stdin import SourceFile

if TYPE_CHECKING:
    from memplan_cli.api.models.profiles import Profiles
    from memplan_cli.api.report import ReportExtra
    from memplan_cli.cli.common import Output
    from memplan_cli.reporting.plans.report import Detail

FORMATS = (
    "text", "json", "markdown", "html", "svg", "csv", "chrome-trace", "c-header", "tflm",
    "minimalloc",
)  # fmt: skip


@click.command()
@click.argument("path", metavar="[PLAN|MODEL]", required=False, type=SourceFile())
@several_dims
@settings_options
@click.option(
    "--print-log", is_flag=True, help="Print one line for each tensor that reuses memory."
)
@detail_options
@click.option(
    "--dry-run", is_flag=True, help="Plan a training step of the model too; nothing is run."
)
@format_option(*FORMATS)
@result_option
@output_options
def report(
    path: Path | None,
    *,
    profiles: Profiles,
    settings: Chosen,
    print_log: bool,
    detail: Detail,
    dry_run: bool,
    form: str,
    out: Path | None,
    output: Output,
) -> None:
    """Show a plan, or plan a model in memory and show that.

    Without an argument: the newest *.memplan.json of this folder.

    \b
    memplan report --print-log
    memplan report model.onnx --format html -o report.html
    """
    from memplan_cli import api
    from memplan_cli.api.graph_facts import facts_for
    from memplan_cli.api.model_or_plan import reject_unused_settings
    from memplan_cli.api.models.plan_files import named_from_here
    from memplan_cli.api.output.output_files import refuse_targets
    from memplan_cli.api.plan_sections import FEATURE_SECTIONS
    from memplan_cli.api.report import interface_of, plan_in_file_order
    from memplan_cli.reporting import check_detail, render
    from memplan_cli.reporting.hints import over_budget
    from memplan_cli.reporting.pages.plan_page import PageContext
    from memplan_cli.reporting.plans.exports import c_header

    check_detail(detail, form)
    path = path or api.newest_plan(Path.cwd())
    asked = (
        *settings.given,
        *(["dim"] if profiles else []),
        *(["dry-run"] if dry_run else []),
    )
    reject_unused_settings((path,), asked)
    refuse_targets({"-o": out}, (path,))
    chosen = None if path.suffix == ".json" else settings.load(path)
    extras: list[ReportExtra] = ["dry-run"] if dry_run else []
    if form == "json" and not profiles:
        # JSON holds all numbers. The predicted ones need a session, which runs nothing.
        extras.append("process")
    plan = api.report(path, chosen, output.progress, profiles=profiles, extras=extras)
    page_context = PageContext(facts=facts_for(path, plan)) if form == "html" else None
    if page_context and chosen and plan.report.chosen_order != "file":
        kept = plan_in_file_order(path, chosen, profiles)
        page_context = replace(page_context, label="in the order of the file", plan=kept)
    color = output.color and out is None
    if form == "c-header" and chosen and not print_log:
        text = c_header(plan, interface_of(path, chosen))
    else:
        plan = plan if chosen or form == "json" else named_from_here(plan, path)
        text = render(
            plan,
            form,
            color=color,
            print_log=print_log,
            page_context=page_context,
            detail=detail,
            sections=FEATURE_SECTIONS,
        )
    deliver(text, out, output)
    if missed := over_budget(plan.report):
        output.reason(f"memplan: {missed}")
        raise SystemExit(1)
