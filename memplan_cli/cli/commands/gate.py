"""``memplan gate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memplan_cli.cli.help import GroupedCommand
from memplan_cli.cli.next_step import next_step, say_next
from memplan_cli.cli.options import format_option, output_options, result_option
from memplan_cli.cli.output import say
from memplan_cli.cli.settings_options import keywords, settings_options
from memplan_cli.errors import SettingsError

if TYPE_CHECKING:
    from memplan_cli.api.gate import VerdictFile, Verdicts
    from memplan_cli.api.request import Request
    from memplan_cli.cli.output import Output
    from memplan_cli.reporting.document import NextStep

FORMATS = ("text", "json", "markdown", "github", "junit", "sarif")


@click.command(
    cls=GroupedCommand,
    most_used=(
        "--max-memory",
        "--baseline",
        "--max-increase",
        "--update-baseline",
        "--format",
    ),
)
@click.argument(
    "models", metavar="MODEL|PLAN...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help=(
        "Baseline file to compare with. The default is memplan.baseline.json of the current "
        "folder, if it exists."
    ),
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help=(
        "Memory limit, for example 512MiB or 1.5 GB. It limits the predicted process, with the "
        "interpreter and the runtime, unless --metric names another number."
    ),
)
@click.option(
    "--max-increase",
    metavar="2%|SIZE",
    help="Allowed increase over the baseline, as a percentage or a size.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help=(
        "Check this number of the report. The default: with --max-memory process.total, with a "
        "baseline the metrics that were recorded in it. Repeatable."
    ),
)
@click.option(
    "--ratchet",
    is_flag=True,
    default=None,
    help=(
        "Also fail if a number is lower than in the baseline, until the baseline records it. "
        "With --update-baseline, record a model only if none of its numbers grew."
    ),
)
@click.option(
    "--update-baseline", is_flag=True, help="Write the current numbers into the baseline file."
)
@click.option(
    "--allow-version-change",
    is_flag=True,
    default=None,
    help="Compare with a baseline that was made with another version of the runtime.",
)
@settings_options
@format_option(*FORMATS)
@result_option
@click.option(
    "--write",
    "format_files",
    multiple=True,
    metavar="FORMAT=FILE",
    help="Write the result into a file in another format too. Repeatable.",
)
@output_options
def gate(
    models: tuple[Path, ...],
    *,
    baseline: Path | None,
    max_memory: str | None,
    max_increase: str | None,
    metrics: tuple[str, ...],
    ratchet: bool | None,
    update_baseline: bool,
    allow_version_change: bool | None,
    request: Request,
    form: str,
    out: Path | None,
    format_files: tuple[str, ...],
    output: Output,
) -> None:
    """Fail if a model needs more memory than a limit or a baseline allows.

    MODEL may be a glob. Exit code 1 if a check fails; the result names the tensors that grew.

    \b
    memplan gate model.onnx --max-memory 512MiB
    memplan gate 'models/*.onnx' --update-baseline
    memplan gate 'models/*.onnx' --max-increase 2% --format github
    """
    from memplan_cli.api.gate import VerdictFile, gate
    from memplan_cli.reporting.commands.gate_report import RENDERERS

    rules: dict[str, object] = {
        "max_memory": max_memory,
        "max_increase": max_increase,
        "metric": list(metrics) or None,
        "ratchet": ratchet,
        "allow_version_change": allow_version_change,
    }
    files = _parse_format_files(format_files)
    if out is not None:
        files = (VerdictFile(out, form, "-o"), *files)
    verdicts = gate(
        models,
        rules,
        baseline=baseline,
        mode="update-baseline" if update_baseline else "check",
        files=files,
        **keywords(request, output),
    )
    for path in dict.fromkeys(file.path for file in files):
        output.note(f"memplan: wrote {path}")
    if update_baseline:
        for verdict in verdicts:
            if not verdict.recorded:
                name = verdict.snapshot.model
                output.reason(f"memplan: {name} fails: it was not recorded in the baseline")
    if out is None:
        say(RENDERERS[form](verdicts))
        say_next(form, _next_step(models, verdicts))
    raise SystemExit(0 if verdicts.passed else 1)


def _next_step(models: tuple[Path, ...], verdicts: Verdicts) -> NextStep:
    """Return the command that a user may run next: after a failure, one that explains the memory."""
    for verdict in verdicts:
        if not verdict.passed:
            failed_metrics = [result.metric for result in verdict.results if result.fails]
            # ``why`` explains the tensors, and with ``--process`` the parts of the process.
            extra = ("--process",) if "process.total" in failed_metrics else ()
            return next_step("See what needs it", "why", [verdict.snapshot.model], *extra)
    if any(verdict.recorded for verdict in verdicts):
        return next_step("Check it", "gate", models, without=("--update-baseline",))
    has_baseline = any(verdict.difference is not None for verdict in verdicts)
    if not has_baseline:
        return next_step("Record a baseline", "gate", models, "--update-baseline")
    return next_step("Check it in a CI job", "gate", models, "--format github")


def _parse_format_files(texts: tuple[str, ...]) -> tuple[VerdictFile, ...]:
    """Read the ``FORMAT=FILE`` texts of ``--write``.

    Raises:
        SettingsError: a text has another form, an unknown format, or ``-`` as its file.
    """
    from memplan_cli.api.gate import VerdictFile

    files = []
    for text in texts:
        form, sign, path = text.partition("=")
        if form not in FORMATS or not sign or not path:
            raise SettingsError(
                f"--write takes FORMAT=FILE, not {text!r}",
                hint=f"the formats are {', '.join(FORMATS)}",
            )
        if path == "-":
            raise SettingsError(
                "--write takes FORMAT=FILE, and '-' is not a file",
                hint=f"--format {form} prints the result on standard output",
            )
        files.append(VerdictFile(Path(path), form, f"--write {form}={Path(path)}"))
    return tuple(files)
